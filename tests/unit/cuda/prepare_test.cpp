// labels: sanitizers
// prepare() on a device: the decisions of the host, bit by bit, for every pre-pass and reach.
#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/cuda/prepass/device_prepare.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/presets/trl.hpp>

#include "support/catch.hpp"
#include "support/exact.hpp"
#include "support/host_only.hpp"
#include "support/message.hpp"
#include "support/prepass_batch.hpp"

namespace prepare_test {

namespace {

using namespace prepass_batch;
using gdpo::TokenBatch, gdpo::view;

/// What is read of a prepared batch, in memory of the host.
struct Read {
  std::vector<double> mask, completion, weights, kl_weights, level_logs;  ///< Empty: absent.
  std::vector<double> findings;
  bool operator==(const Read& o) const {
    return same(mask, o.mask) && same(completion, o.completion) && same(weights, o.weights) &&
           same(kl_weights, o.kl_weights) && same(level_logs, o.level_logs) &&
           same(findings, o.findings);
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
  get(b.level_log_weights, r.level_logs, true);
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
  CHECK(Read::same(got.level_logs, wanted.level_logs));
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

TEST_CASE("cuda prepare: a prepared batch is prepared again, in its memory or another",
          "[cuda][prepass]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Numbers d = random_numbers(random, 6, 40, 0.05);
    Passes passes;
    for (int i = 0; i < 6; ++i) passes.push_back(random_pass(random, random.below(kinds)));
    const bool other = random.chance(0.5);
    double threshold = std::numeric_limits<double>::infinity();
    const Stored<float, OnHost> host(d);
    const Stored<float, InDevice> device(d);
    Passes of_host, of_device;
    for (const AnyPass& pass : passes) {
      of_host.push_back(bound(pass, host)), of_host.back().threshold = &threshold;
      of_device.push_back(bound(pass, device));
    }
    gdpo::PrepassMemory<float> memory, memory_2;
    auto prepared = gdpo::prepare(host.batch, memory, of_host[0], of_host[1], of_host[2]);
    prepared =
        gdpo::prepare(prepared, other ? memory_2 : memory, of_host[3], of_host[4], of_host[5]);
    const Read wanted = read(prepared, d.positions(), true, threshold);

    DeviceMemory on(device.batch), on_2(device.batch);
    const auto grid = test_device(seed);
    const auto first =
        gdpo::prepare(grid, device.batch, on(), of_device[0], of_device[1], of_device[2]);
    const auto second =
        gdpo::prepare(grid, first, other ? on_2() : on(), of_device[3], of_device[4], of_device[5]);
    const Read got = read(second, d.positions(), false, 0);
    CHECK(got.mask == wanted.mask);
    CHECK(got.completion == wanted.completion);
    CHECK(Read::same(got.weights, wanted.weights));
    CHECK(Read::same(got.kl_weights, wanted.kl_weights));
    CHECK(Read::same(got.level_logs, wanted.level_logs));
    CHECK(Read::same(got.findings, wanted.findings));
    CHECK(second.prepared.mask_changes == prepared.prepared.mask_changes);
    CHECK(message_of([&] { gdpo::cuda::scratch_bytes(second); }) == "no error");
    CHECK((message_of([&] { gdpo::cuda::scratch_bytes(first); }) == "no error") == other);
    if (!other) continue;
    // The second memory has all that the batch needs: the first may be used again.
    gdpo::prepare(grid, device.batch, on(), bound(random_pass(random, 1), device));
    const Read again = read(second, d.positions(), false, 0);
    CHECK(Read::same(again.weights, got.weights));
    CHECK(Read::same(again.kl_weights, got.kl_weights));
    CHECK(Read::same(again.level_logs, got.level_logs));
  }
}

TEST_CASE("cuda prepare: pre-passes of the mask read it as it was given", "[cuda][prepass]") {
  int changed = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Numbers d = random_numbers(random, 6, 40, 0.0);
    const Stored<float, OnHost> host(d);
    const Stored<float, InDevice> device(d);
    prepass::Gate tokens, rows;
    tokens.reach = Reach::Mask;
    rows = tokens, rows.statistic = prepass::Statistic::SequenceMean;
    // Of three calls the second and the third begin with a mask in the memory that they write.
    gdpo::PrepassMemory<float> memory;
    DeviceMemory on(device.batch);
    auto wanted = host.batch;
    auto got = device.batch;
    for (int call = 0; call < 3; ++call) {
      // Without the tokens that the first one drops, no row would be above its bound.
      tokens.max = rows.max = 1.3 - 0.2 * call;
      const std::vector<double> before =
          call == 0 ? std::vector<double>{} : read(got, d.positions(), false, 0).mask;
      wanted = gdpo::prepare(wanted, memory, tokens, rows);
      got = gdpo::prepare(test_device(seed), got, on(), tokens, rows);
      const Read a = read(got, d.positions(), false, 0);
      CHECK(a.mask == read(wanted, d.positions(), true, 0).mask);
      changed += a.mask != before;
    }
  }
  CHECK(changed > 40);
}

TEST_CASE("cuda prepare: losses and counts take the result", "[cuda][prepass]") {
  Random random(5);
  Numbers d = random_numbers(random, 6, 40, 0.0);
  while (d.kind != Kind::Padded || d.mask.empty() || d.old_logp.empty() ||
         !d.level_log_weights.empty())
    d = random_numbers(random, 6, 40, 0.0);
  std::size_t at = 0;
  while (d.mask[at] == 0) ++at;
  d.rollout_logp[at] = std::nan("");
  const Stored<float, OnHost> host(d);
  const Stored<float, InDevice> device(d);
  const auto passes_of = [](const auto& stored) {
    prepass::TopEntropy top;
    prepass::Importance importance;
    importance.clip.hi = 1.1;
    return std::tuple{prepass::Overlong{stored.truncated}, top, importance};
  };
  gdpo::PrepassMemory<float> memory;
  const auto wanted = std::apply(
      [&](const auto&... p) { return gdpo::prepare(host.batch, memory, p...); }, passes_of(host));
  DeviceMemory on(device.batch);
  const auto grid = test_device();
  const auto got =
      std::apply([&](const auto&... p) { return gdpo::prepare(grid, device.batch, on(), p...); },
                 passes_of(device));

  const auto loss = gdpo::dapo_loss;
  const gdpo::Normalizer counts = gdpo::count(wanted);
  std::vector<float> gradient(d.positions());
  const auto of_host = loss(wanted, counts, view(gradient.data(), d.rows, d.width));
  OnDevice<float> to(std::vector<float>(d.positions(), -77.0F));
  OnDevice<gdpo::Normalizer> normalizer(std::vector<gdpo::Normalizer>(1));
  OnDevice<gdpo::LossResult> result(std::vector<gdpo::LossResult>(1));
  TestScratch scratch(gdpo::cuda::scratch_bytes(loss, got));
  gdpo::cuda::count_into(grid, got, normalizer.data(), scratch());
  loss(grid, got, normalizer.data(), view(to.data(), d.rows, d.width), result.data(), scratch());
  CHECK(normalizer.host()[0].tokens == counts.tokens);
  CHECK(normalizer.host()[0].non_empty_rows == counts.non_empty_rows);
  const gdpo::LossResult of_device = result.host()[0];
  CHECK(std::fabs(of_device.loss - of_host.loss) <= 1e-6 * (1 + std::fabs(of_host.loss)));
  const gdpo::LossMetrics &a = of_device.metrics, &b = of_host.metrics;
  CHECK(a.entropy_threshold == b.entropy_threshold);
  CHECK(std::isfinite(a.entropy_threshold));
  CHECK(a.non_finite.rollout_logp.count == 1);
  CHECK(b.non_finite.rollout_logp.count == 1);
  CHECK(a.non_finite.rollout_logp.row == b.non_finite.rollout_logp.row);
  CHECK(a.non_finite.rollout_logp.token == b.non_finite.rollout_logp.token);
  CHECK(a.completion_length.sum == b.completion_length.sum);
}

TEST_CASE("cuda prepare: other layouts and storage types", "[cuda][prepass]") {
  const int rows = 5, width = 70;
  Random random(3);
  std::vector<gdpo::BFloat16> entropies, rollout;
  std::vector<float> logp;
  std::vector<std::int64_t> mask;
  std::vector<int> flags;
  // Transposed: the rows are columns.
  for (int k = 0; k < rows * width; ++k) {
    logp.push_back(static_cast<float>(-random.uniform()));
    rollout.push_back(gdpo::BFloat16{static_cast<std::uint16_t>(0xbf00 + random.below(128))});
    entropies.push_back(gdpo::BFloat16{static_cast<std::uint16_t>(0x3f80 + random.below(128))});
    mask.push_back(random.below(3));
  }
  for (int i = 0; i < 2 * rows; ++i) flags.push_back(random.below(2));
  OnDevice<gdpo::BFloat16> on_entropies(entropies), on_rollout(rollout);
  OnDevice<float> on_logp(logp);
  OnDevice<std::int64_t> on_mask(mask);
  OnDevice<int> on_flags(flags);
  const auto batch_of = [&](auto* e, auto* r, auto* l, auto* m) {
    TokenBatch<float> b;
    const auto transposed = [&](auto* data) { return view(data, {rows, width}, {1, rows}); };
    b.entropies = transposed(e), b.rollout_logp = transposed(r);
    b.logp = transposed(l), b.mask = transposed(m);
    return b;
  };
  const auto run = [&](const auto& prepare, const auto& column) {
    return prepare(prepass::Overlong{column, Reach::Surrogate}, prepass::TopEntropy{0.6},
                   gdpo::trl::sequence_truncate, prepass::SecondMoment{0.1});
  };
  const auto host = batch_of(entropies.data(), rollout.data(), logp.data(), mask.data());
  gdpo::PrepassMemory<float> memory;
  const auto wanted = run([&](const auto&... p) { return gdpo::prepare(host, memory, p...); },
                          view(flags.data(), {rows}, {2}));
  const auto device =
      batch_of(on_entropies.data(), on_rollout.data(), on_logp.data(), on_mask.data());
  DeviceMemory on(device);
  const auto got =
      run([&](const auto&... p) { return gdpo::prepare(test_device(), device, on(), p...); },
          view(on_flags.data(), {rows}, {2}));
  const std::size_t n = logp.size();
  const Read a = read(got, n, false, 0), b = read(wanted, n, true, wanted.entropy_threshold);
  CHECK(a.mask == b.mask);
  CHECK(Read::same(a.weights, b.weights));
  CHECK(Read::same(a.findings, b.findings));
}

TEST_CASE("cuda prepare: batches without tokens, and offsets that are wrong", "[cuda][prepass]") {
  const auto grid = test_device();
  TokenBatch<float> none;
  none.logp = none.rollout_logp = none.entropies = view(static_cast<const float*>(nullptr), 3, 0);
  OnDevice<double> flags(std::vector<double>{1, 0, 1});
  const gdpo::Column column = view(flags.data(), 3);
  DeviceMemory memory(none);
  const auto all = [&](const TokenBatch<float>& batch, DeviceMemory& of_batch) {
    prepass::Gate gate;
    gate.max = 1.1, gate.statistic = prepass::Statistic::SegmentMean;
    prepass::Importance importance;
    importance.statistic = prepass::Statistic::GroupMean, importance.groups = column;
    prepass::FutureKl future;
    future.safety = std::numeric_limits<double>::infinity();
    prepass::Covariance covariance;
    covariance.reach = batch.advantages ? Reach::Surrogate : Reach::None;
    return gdpo::prepare(grid, batch, of_batch(), gate, importance, prepass::MeanOne{},
                         prepass::Overlong{column}, prepass::TopEntropy{}, prepass::SecondMoment{},
                         covariance, future);
  };
  const auto prepared = all(none, memory);
  CHECK(copied(prepared.prepared.on_device, 1)[0].entropy_threshold ==
        std::numeric_limits<double>::infinity());
  CHECK(prepared.mask.extent(0) == 3);
  CHECK(prepared.prepared.mask_changes == 1);

  // Rows become shorter; nothing outside the arrays is read (under the sanitizers).
  const std::vector<float> numbers(12, -0.5F);
  OnDevice<float> tokens(numbers);
  OnDevice<double> advantages(std::vector<double>{1, -1, 2});
  for (const auto& wrong :
       {std::vector<gdpo::index_t>{0, 20, 3, 12}, {-4, 5, 2, 90}, {3, 3, 4, 4}}) {
    OnDevice<gdpo::index_t> offsets(wrong);
    TokenBatch<float> packed;
    packed.logp = packed.rollout_logp = packed.entropies = view(tokens.data(), 12);
    packed.advantages = view(advantages.data(), 3);
    packed.offsets = view(offsets.data(), 4);
    DeviceMemory of_packed(packed);
    CHECK_NOTHROW(all(packed, of_packed));
  }
}

TEST_CASE("cuda prepare: a chain is its parts", "[cuda][prepass]") {
  Random random(8);
  const Numbers d = random_numbers(random, 8, 50, 0.02);
  const Stored<double, InDevice> on(d);
  prepass::MaskedImportance chain;
  chain.first.clip.hi = 1.2, chain.rest.first.max = 1.3, chain.rest.first.reach = Reach::Mask;
  DeviceMemory a(on.batch), b(on.batch);
  const auto grid = test_device();
  const auto of_chain = gdpo::prepare(grid, on.batch, a(), chain);
  const auto of_parts = gdpo::prepare(grid, on.batch, b(), chain.first, chain.rest.first);
  CHECK(read(of_chain, d.positions(), false, 0) == read(of_parts, d.positions(), false, 0));
}

namespace {

/// The launches of a prepare() of 1000 tokens with a rollout_logp.
template <class S, class Pass>
int launches(const Pass& pass, bool packed = false) {
  static const S tokens[1000] = {};
  static const gdpo::index_t offsets[5] = {};
  static const double advantages[4] = {};
  TokenBatch<S> batch;
  batch.logp = batch.old_logp = batch.rollout_logp = batch.teacher_logp = batch.entropies =
      packed ? gdpo::TokenView<S>(view(tokens, 1000)) : gdpo::TokenView<S>(view(tokens, 4, 250));
  if (packed) batch.offsets = view(offsets, 5);
  batch.advantages = view(advantages, 4);
  gdpo::cuda::PrepassMemory memory{unused_scratch().data, unused_scratch().bytes};
  const HostOnly device;
  gdpo::prepare(device, batch, memory, pass);
  return device.launches - 3;  // copies, the count of rollout_logp, and what it reports
}

}  // namespace

TEST_CASE("cuda prepare: how many launches", "[cuda][prepass]") {
  const double flags[4] = {};
  const gdpo::Column column = view(flags, 4);
  prepass::Importance importance;
  CHECK(launches<float>(importance) == 1);
  importance.statistic = prepass::Statistic::SequenceMean;
  CHECK(launches<float>(importance) == 2);
  importance.statistic = prepass::Statistic::SegmentSum;
  CHECK(launches<float>(importance) == 2);
  importance.statistic = prepass::Statistic::GroupMax, importance.groups = column;
  CHECK(launches<float>(importance) == 3);
  prepass::Gate gate;
  gate.max = 2;
  CHECK(launches<float>(gate) == 1);
  gate.when = prepass::When::Outward, gate.advantage = prepass::GateAdvantage::Row;
  CHECK(launches<float>(gate) == 2);
  CHECK(launches<float>(prepass::MeanOne{}) == 3);
  CHECK(launches<float>(prepass::Overlong{column}) == 1);
  CHECK(launches<float>(prepass::FutureKl{}) == 1);
  CHECK(launches<float>(prepass::TeacherRatio{}) == 1);
  CHECK(launches<float>(prepass::TeacherPrefix{}) == 2);
  CHECK(launches<float>(prepass::TopEntropy{}) == 14);
  CHECK(launches<double>(prepass::TopEntropy{}) == 21);
  CHECK(launches<double>(prepass::TopEntropy{0.5, 1.0}) == 2);
  CHECK(launches<float>(prepass::SecondMoment{}) == 20 + 3);
  CHECK(launches<float>(prepass::SecondMoment{}, true) == 21 + 3);
  CHECK(launches<float>(prepass::Covariance{}) == 22 + 3);
  prepass::EntropyClip clip;
  CHECK(launches<float>(clip) == 24 + 3);
  CHECK(launches<float>(clip, true) == 25 + 3);
  clip.zero_advantage = true;
  CHECK(launches<float>(clip) == 25 + 3);
  CHECK(launches<float>(prepass::DegenerateGroups{}) == -1);  // off: nothing is copied
}

TEST_CASE("cuda prepare: what it refuses besides what the host does", "[cuda][prepass][errors]") {
  const float tokens[6] = {};
  const gdpo::index_t offsets[3] = {0, 2, 6};
  TokenBatch<float> batch;
  batch.offsets = view(offsets, 3);
  const HostOnly device;
  gdpo::cuda::PrepassMemory memory{unused_scratch().data, unused_scratch().bytes};
  CHECK(
      message_of([&] { gdpo::prepare(device, batch, memory); }) ==
      "gdpo::prepare: batch: given offsets alone; needed: an array of tokens, which says how many "
      "there are: the offsets are in device memory");
  batch.logp = view(tokens, 6);
  gdpo::cuda::PrepassMemory small{unused_scratch().data, 100};
  CHECK(message_of([&] { gdpo::prepare(device, batch, small); }) ==
        "gdpo::prepare: memory: given 100 bytes; needed: " +
            std::to_string(gdpo::cuda::prepass_bytes(batch)) +
            " bytes, as prepass_bytes(...) says");
  gdpo::cuda::PrepassMemory absent;
  CHECK(message_of([&] { gdpo::prepare(device, batch, absent); }).find("given no memory") !=
        std::string::npos);
  CHECK(device.launches == 0);
  CHECK(small.uses.empty());
}

}  // namespace prepare_test
