// labels: sanitizers
// prepare() on a device: the decisions of the host, bit by bit, for every pre-pass and reach.
#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/cuda/prepass/device_prepare.hpp>
#include <gdpo/loss.hpp>

#include "support/catch.hpp"
#include "support/exact.hpp"
#include "support/message.hpp"
#include "support/prepass_batch.hpp"

namespace prepare_test {

namespace {

using namespace prepass_batch;
using gdpo::TokenBatch, gdpo::view;

/// What is read of a prepared batch, in memory of the host.
struct Read {
  std::vector<double> mask, completion, weights, kl_weights;  ///< Empty: absent.
  std::vector<double> findings;
  bool operator==(const Read& o) const {
    return same(mask, o.mask) && same(completion, o.completion) && same(weights, o.weights) &&
           same(kl_weights, o.kl_weights) && same(findings, o.findings);
  }
  static bool same(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))) return false;
    }
    return true;
  }
};

std::vector<double> numbers_of(const gdpo::NonFinite& rollout, double threshold) {
  return {static_cast<double>(rollout.count), static_cast<double>(rollout.row),
          static_cast<double>(rollout.token), threshold};
}

/// n elements in memory of the test's device.
template <class T>
std::vector<T> copied(const T* data, std::size_t n) {
#if defined(GDPO_TEST_ON_GPU)
  std::vector<T> values(n);
  gdpo::cuda::check("copied",
                    cudaMemcpy(values.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
#else
  return std::vector<T>(data, data + n);
#endif
}

/// Reads dense arrays of the prepared batch; weights at its valid tokens alone.
template <class S>
Read read(const TokenBatch<S>& b, std::size_t n, bool on_host, double threshold) {
  Read r;
  const auto get = [&](const auto& tokens, std::vector<double>& to, bool of_valid) {
    if (!tokens) return;
    using T = std::decay_t<decltype(tokens.at(0, 0, 0))>;
    const T* const data = static_cast<const T*>(tokens.data());
    for (const T x : on_host ? std::vector<T>(data, data + n) : copied(data, n))
      to.push_back(static_cast<double>(x));
    for (std::size_t k = 0; k < n && of_valid && !r.mask.empty(); ++k) {
      if (r.mask[k] == 0) to[k] = 1;
    }
  };
  get(b.mask, r.mask, false), get(b.completion_mask, r.completion, false);
  get(b.weights, r.weights, true), get(b.kl_weights, r.kl_weights, true);
  for (auto* marks : {&r.mask, &r.completion})
    for (double& x : *marks) x = x != 0;
  if (on_host) {
    r.findings = numbers_of(b.rollout_non_finite, threshold);
  } else {
    const auto f = copied(b.prepared.on_device, 1)[0];
    r.findings = numbers_of(f.rollout, f.entropy_threshold);
  }
  return r;
}

using Passes = std::vector<AnyPass>;

template <class S>
Read of_host(const Numbers& d, Passes passes) {
  const Stored<S, OnHost> host(d);
  double threshold = std::numeric_limits<double>::infinity();
  for (AnyPass& pass : passes) pass = bound(pass, host), pass.threshold = &threshold;
  gdpo::PrepassMemory<S> memory;
  const auto prepared = gdpo::prepare(host.batch, memory, passes[0], passes[1], passes[2]);
  return read(prepared, d.positions(), true, threshold);
}
template <class S, class Device>
Read of_device(const Device& device, const Numbers& d, Passes passes) {
  const Stored<S, InDevice> on(d);
  for (AnyPass& pass : passes) pass = bound(pass, on);
  DeviceMemory memory(on.batch);
  return read(gdpo::prepare(device, on.batch, memory(), passes[0], passes[1], passes[2]),
              d.positions(), false, 0);
}

template <class S>
void check(unsigned seed, int kind) {
  INFO("seed " << seed << ", kind " << kind);
  Random random(seed * 16 + static_cast<unsigned>(kind));
  const bool large = random.chance(0.1);
  const Numbers d =
      large ? random_numbers(random, 40, 300, 0.01) : random_numbers(random, 11, 90, 0.03);
  Passes passes(3);
  passes[0] = random_pass(random, kind);
  for (std::size_t i = 1; i < 3; ++i) {
    if (random.chance(0.4)) passes[i] = random_pass(random, random.below(kinds));
  }
  gdpo::cuda::Tuning few;
  few.blocks = 1 + random.below(4);
  const Read wanted = of_host<S>(d, passes);
  const Read got = of_device<S>(test_device(seed), d, passes);
  CHECK(got.mask == wanted.mask);
  CHECK(got.completion == wanted.completion);
  CHECK(Read::same(got.weights, wanted.weights));
  CHECK(Read::same(got.kl_weights, wanted.kl_weights));
  CHECK(Read::same(got.findings, wanted.findings));
  CHECK(of_device<S>(test_device(seed + 1, few), poisoned(d), passes) == got);
}

}  // namespace

TEST_CASE("cuda prepare: every pre-pass decides as on the host", "[cuda][prepass]") {
  for (int kind = 0; kind < kinds; ++kind) {
    for (unsigned seed = 0; seed < 30; ++seed) {
      check<float>(seed, kind);
      check<double>(seed + 1000, kind);
    }
  }
}

}  // namespace prepare_test
