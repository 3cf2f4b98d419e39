// Memory that the library allocates: this program replaces operator new to count calls and bytes.
#include <atomic>
#include <cstdlib>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/with/openmp.hpp>
#include <new>

#include "../logits_data.hpp"
#include "../token_data.hpp"
#include "experiments.hpp"

namespace {
std::atomic<long> calls{0}, bytes{0};
void* counted(void* p, std::size_t size) {
  if (!p) throw std::bad_alloc();
  ++calls;
  bytes += static_cast<long>(size);
  return p;
}
}  // namespace

// Not inlined: g++ warns where it sees the `free` of one operator but not the `malloc` of the
// other.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return counted(std::malloc(size > 0 ? size : 1), size);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(a, (size + a) / a * a), size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace gates {
namespace {

/// Allocations of a second call with the same workspace, the most over all targets.
double allocations_of_a_second_loss() {
  TokenData data(64, 1027);
  double most = 0;
  const auto run = [&](const auto& exec) {
    const auto loss = gdpo::grpo_loss;
    gdpo::LossWorkspace<float> workspace;
    const gdpo::Normalizer normalizer = gdpo::count(data.padded());
    const auto call = [&] {
      loss(exec, data.padded(), normalizer, data.padded_gradient(), workspace);
    };
    call();
    const long before = calls;
    call();
    most = std::max(most, static_cast<double>(calls - before));
  };
  run(gdpo::seq);
  run(gdpo::simd);
  run(gdpo::parallel(gdpo::OpenMp{2}));
  return most;
}

/// MiB that the first call allocates, its workspace included.
double mebibytes_of_a_loss_from_logits() {
  TokenData tokens(4, 64);
  LogitsData data(256, 152064);
  const gdpo::Normalizer normalizer = gdpo::count(tokens.padded());
  double most = 0;
  const auto run = [&](const auto& exec) {
    gdpo::LogitBatch<float, 3> batch;
    batch.logits = gdpo::view(std::as_const(data.logits).data(), 4, 64, data.tokens);
    batch.targets = gdpo::view(data.targets.data(), 4, 64);
    gdpo::TokenBatch<float> of_tokens = tokens.padded();
    of_tokens.logp = {};
    batch.mask = of_tokens.mask;
    const long before = bytes;
    gdpo::LogitsWorkspace workspace;
    gdpo::policy_loss_from_logits(exec, gdpo::grpo_loss, batch, of_tokens, normalizer,
                                  gdpo::view(data.logits.data(), 4, 64, data.tokens), workspace);
    most = std::max(most, static_cast<double>(bytes - before) / (1 << 20));
  };
  run(gdpo::simd);
  run(gdpo::parallel(gdpo::OpenMp{2}));
  return most;
}

void set_up(Bench& bench) {
  if (bench.wants("loss")) bench.number("loss", allocations_of_a_second_loss());
  if (bench.wants("logits")) bench.number("logits", mebibytes_of_a_loss_from_logits());
}

}  // namespace

std::vector<Experiment> memory() {
  return {{"Memory",
           {{"loss: allocations of a second call with a workspace; seq, simd, 2 threads",
             at_most(0), "loss"},
            {"policy_loss_from_logits: MiB beyond its arguments, 256 rows of 152064", at_most(1),
             "logits"}},
           set_up}};
}

}  // namespace gates
