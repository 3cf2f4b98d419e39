// labels: sanitizers
// policy_loss_from_logits on a device gives the bits of its parts called one by one, for any launch
// configuration, and the numbers of the host within tolerances.
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/loss/any_surrogate.hpp>

#include "support/catch.hpp"
#include "support/cuda_loss.hpp"
#include "support/host_only.hpp"
#include "support/logits_step.hpp"
#include "support/message.hpp"

namespace logits_loss_test {

namespace {

using logits_step::Layout, logits_step::Step, logits_step::sequences, logits_step::width,
    logits_step::tokens;

template <class T>
std::vector<T> filled(T value) {
  return std::vector<T>(tokens, value);
}
template <class U>
struct Outcome {
  gdpo::LossResult result;
  std::vector<U> dlogits;
  std::vector<float> logp, entropies, dlogp;
  std::vector<double> logsumexp;
};
template <class U>
bool same(const Outcome<U>& a, const Outcome<U>& b) {
  using logit_cases::same;
  return same(loss_product::numbers(a.result), loss_product::numbers(b.result)) &&
         same(a.dlogits, b.dlogits) && same(a.logp, b.logp) && same(a.entropies, b.entropies) &&
         same(a.dlogp, b.dlogp) && same(a.logsumexp, b.logsumexp);
}

/// The arrays that a call writes, on the device.
template <class U>
struct Written {
  OnDevice<U> dlogits;
  OnDevice<float> logp{filled(7.0f)}, entropies{filled(7.0f)}, dlogp{filled(7.0f)};
  OnDevice<double> logsumexp{filled(7.0)};
  OnDevice<gdpo::LossResult> result{std::vector<gdpo::LossResult>(1)};

  explicit Written(std::size_t numbers) : dlogits(std::vector<U>(numbers)) {}
  Outcome<U> host() const {
    return {result.host()[0], dlogits.host(), logp.host(),
            entropies.host(), dlogp.host(),   logsumexp.host()};
  }
};

template <class U, int Rank, class T, class Loss>
Outcome<U> on_device(const TestDevice& device, const Loss& loss, const Step<T>& step, int options,
                     bool in_place = false, bool outputs = true) {
  Step<T, OnDevice> s(step);
  const Layout<T, Rank, OnDevice> l{s};
  const auto logits = l.logits();
  const auto batch = l.batch(options);
  Written<U> to(step.logits.size());
  TestScratch scratch(gdpo::cuda::scratch_bytes(logits, batch));
  OnDevice<gdpo::Normalizer> normalizer(std::vector<gdpo::Normalizer>(1));
  gdpo::cuda::count_into(device, logits, batch, normalizer.data(), scratch());
  gdpo::cuda::FromLogits out;
  if (outputs)
    out = {l.by_token(to.logp), l.by_token(to.entropies), l.by_token(to.dlogp),
           l.by_token(to.logsumexp)};
  auto dlogits = l.table(to.dlogits);
  if constexpr (std::is_same_v<T, U>) {
    if (in_place) dlogits = l.table(s.logits);
  }
  gdpo::policy_loss_from_logits(device, loss, logits, batch, normalizer.data(), dlogits,
                                to.result.data(), scratch(), out);
  Outcome<U> o = to.host();
  if constexpr (std::is_same_v<T, U>) {
    if (in_place) o.dlogits = s.logits.host();
  }
  return o;
}
template <int Rank, class T, class Loss>
Outcome<T> one_by_one(const Loss& loss, const Step<T>& step, int options) {
  const TestDevice device = test_device(11);
  Step<T> host = step;
  const Layout<T, Rank> of_host{host};
  const gdpo::Normalizer normalizer = gdpo::count(of_host.logits(), of_host.batch(options));
  Step<T, OnDevice> s(step);
  const Layout<T, Rank, OnDevice> l{s};
  auto logits = l.logits();
  auto batch = l.batch(options);
  logits.mask = batch.mask;
  Written<T> to(step.logits.size());
  gdpo::token_logprobs_into(
      device, logits, {l.by_token(to.logp), l.by_token(to.entropies), l.by_token(to.logsumexp)});
  batch.logp = l.by_token(to.logp), batch.entropies = l.by_token(to.entropies);
  TestScratch scratch(gdpo::cuda::scratch_bytes(loss, batch));
  gdpo::cuda::evaluate(device, loss, batch, normalizer, l.by_token(to.dlogp), to.result.data(),
                       scratch());
  gdpo::token_logprobs_backward(device, logits, {l.by_token(to.dlogp), {}},
                                l.by_token(to.logsumexp), l.table(to.dlogits));
  return to.host();
}

gdpo::cuda::Tuning tuned(int blocks, std::size_t shared_bytes, bool rows_of_warps = true) {
  gdpo::cuda::Tuning tuning;
  tuning.blocks = blocks, tuning.shared_bytes = shared_bytes;
  if (!rows_of_warps) tuning.warp_row = 0;
  return tuning;
}

/// Compares one call with its parts, with other launch configurations and with the host.
///
/// The log-probs of device and host agree within 1e-6, so ratios agree within 1e-6 of themselves
/// and dlogp within a small multiple of that: 1e-5 of itself, or 1e-7 where the terms of surrogate
/// and KL, a few tenths at most, cancel. A token whose ratio falls on different sides of the clip
/// would differ by its whole gradient; the data of Step keeps ratios away from the clip.
template <class T, int Rank, class Loss>
void check_loss(const Loss& loss, int vocabulary, int step = 1) {
  for (int options = 0; options < 16; options += step) {
    const auto seed = static_cast<unsigned>(400 + options);
    INFO("seed " << seed << ", options " << options << ", rank " << Rank);
    const Step<T> s(seed, vocabulary);
    // 48 KiB and the kernel's own shared memory are more than a device gives without being asked.
    const TestDevice device = test_device(seed, tuned(3, options % 2 ? 1000 : 48 * 1024));
    const TestDevice other = test_device(seed + 77, tuned(1000, 0, false));
    const Outcome<T> one = on_device<T, Rank>(device, loss, s, options);
    CHECK(same(one, one_by_one<Rank>(loss, s, options)));
    CHECK(same(on_device<T, Rank>(other, loss, s, options, true), one));
    const Outcome<T> silent = on_device<T, Rank>(other, loss, s, options, true, false);
    CHECK(logit_cases::same(silent.dlogits, one.dlogits));
    CHECK(logit_cases::same(silent.dlogp, filled(7.0f)));

    Step<T> host = s;
    const Layout<T, Rank> l{host};
    gdpo::LogitsWorkspace w;
    std::vector<T> dlogits(s.logits.size());
    const auto logits = l.logits();
    const auto batch = l.batch(options);
    const gdpo::LossResult r = gdpo::policy_loss_from_logits(
        gdpo::seq, loss, logits, batch, gdpo::count(logits, batch), l.table(dlogits), w);
    CHECK(one.result.loss == Approx(r.loss).epsilon(1e-5).margin(1e-6));
    CHECK(one.result.metrics.entropy.mean() == Approx(r.metrics.entropy.mean()).epsilon(1e-6));
    CHECK(one.result.normalizer.tokens == r.normalizer.tokens);
    constexpr double rounding = sizeof(T) == 2 ? 0x1p-7 : 2e-5;  // 2^-7: one bit of a bfloat16
    for (std::size_t k = 0; k < tokens; ++k) {
      CHECK(std::fabs(one.dlogp[k] - w.dlogp[k]) <= 1e-5f * std::fabs(w.dlogp[k]) + 1e-7f);
      CHECK((one.dlogp[k] == 0) == (w.dlogp[k] == 0));
    }
    for (std::size_t j = 0; j < dlogits.size(); ++j) {
      const double x = gdpo::load(dlogits[j]), y = gdpo::load(one.dlogits[j]);
      if (!(std::fabs(x - y) <= rounding * std::fabs(x) + 1e-7)) CHECK(x == y);
    }
  }
}

}  // namespace

TEST_CASE("cuda: one call from logits to dlogits has the bits of its parts, levels of tokens") {
  check_loss<float, 3>(gdpo::grpo_loss, 301);
  check_loss<gdpo::BFloat16, 2>(gdpo::grpo_loss, 704);
  gdpo::PolicyLoss<gdpo::level::Token<gdpo::map::Clamp>, gdpo::surrogate::Ratio, gdpo::Kl<>> mapped;
  mapped.aggregate = gdpo::aggregate::token_mean();
  mapped.kl.beta = 0.1;
  check_loss<float, 2>(mapped, 40, 3);
  check_loss<float, 2>(logits_step::OwnLoss{}, 40, 3);
  // A row takes more than 48 KiB, and a thread loads its four vectors more than once.
  check_loss<float, 3>(gdpo::grpo_loss, 13001, 7);
  // A factor that reads the mean advantage of the row, the reference and the sampling policy.
  check_loss<float, 3>(
      gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None,
                       gdpo::Aggregate, gdpo::Factors<cuda_loss::OfTheRow>>{},
      50);
  // The same, chosen at run time.
  using Any = gdpo::AnyFactors<gdpo::Factors<>, gdpo::Factors<cuda_loss::OfTheRow>>;
  check_loss<float, 3>(
      gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None,
                       gdpo::Aggregate, Any>{{}, {}, {}, {}, gdpo::Factors<cuda_loss::OfTheRow>{}},
      50);
}
TEST_CASE("cuda: one call from logits to dlogits has the bits of its parts, levels of segments") {
  auto sequence = gdpo::gspo_loss;
  sequence.surrogate.low = 0.5, sequence.surrogate.high = 1;
  check_loss<float, 3>(sequence, 100);
  check_loss<gdpo::BFloat16, 2>(sequence, 333, 3);
}

TEST_CASE("cuda: no more of a row of logits is kept than a block of the device has memory for") {
  constexpr std::size_t of_the_kernel = 2 * 1024;  // shared memory of the kernel beside the row
  for (const int major : {8, 9, 10, 11, 12}) {     // sm_86, sm_89 and sm_120 have the least
    // Two blocks share 227 KiB on sm_90 and sm_100; elsewhere one block has 99 KiB.
    const std::size_t most = major == 9 || major == 10 ? 227 * 1024 / 2 : 99 * 1024;
    CHECK(gdpo::cuda::Tuning::of(major, 100).shared_bytes + of_the_kernel <= most);
  }
}

TEST_CASE("cuda: rows of logits around the shared memory that a device gives unasked",
          "[sanitize]") {
  const Step<float> s(21, 12400);
  const auto run = [&](std::size_t shared_bytes) {
    return on_device<float, 3>(test_device(1, tuned(4, shared_bytes)), gdpo::grpo_loss, s, 0);
  };
  const auto none = run(0);
  for (std::size_t less = 0; less <= 1024; less += 128) {
    INFO("48 KiB less " << less << " bytes");
    CHECK(same(run(48 * 1024 - less), none));
  }
  CHECK(same(run(72 * 1024), none));  // the value of Tuning::of for sm_80
}

TEST_CASE("cuda: dlogits in another storage than logits", "[sanitize]") {
  const Step<gdpo::BFloat16> s(17, 77);
  const auto wide = on_device<float, 3>(test_device(1), gdpo::grpo_loss, s, 0);
  const auto narrow = on_device<gdpo::BFloat16, 3>(test_device(2), gdpo::grpo_loss, s, 0);
  for (std::size_t j = 0; j < wide.dlogits.size(); ++j) {
    gdpo::BFloat16 x;
    gdpo::store(x, wide.dlogits[j]);
    CHECK((x.bits & 0x7fff) == (narrow.dlogits[j].bits & 0x7fff));
  }
}

TEST_CASE("cuda: masks of logits and of the batch, and the ends of packed sequences",
          "[sanitize]") {
  Step<float> s(18, 60);
  s.mask.assign(tokens, 1);
  Random random(19);
  for (float& x : s.logits) x = static_cast<float>(logit_cases::normal(random));
  for (std::size_t k = 0; k < tokens; ++k) s.targets[k] = static_cast<std::int64_t>(k);
  s.old_logp.assign(tokens, -4), s.ref_logp.assign(tokens, -4);
  std::vector<unsigned char> not_third(tokens, 1);
  not_third[2] = 0;
  s.mask[6] = 0;
  const TestDevice device = test_device(4);
  gdpo::LossResult result;
  gdpo::Normalizer normalizer;
  // Lets f(logits, batch) change the call of the current step, and runs it. Returns the rows of
  // dlogits that are all 0.
  const auto run = [&](const auto& f, bool counts) {
    Step<float, OnDevice> on(s);
    const Layout<float, 2, OnDevice> l{on};
    auto logits = l.logits();
    auto batch = l.batch(0);
    OnDevice<unsigned char> mask(not_third);
    logits.mask = gdpo::view(mask.data(), tokens), logits.offsets = batch.offsets;
    f(logits, batch);
    Written<float> to(s.logits.size());
    TestScratch scratch(gdpo::cuda::scratch_bytes(logits, batch));
    if (counts) {
      OnDevice<gdpo::Normalizer> n(std::vector<gdpo::Normalizer>(1));
      gdpo::cuda::count_into(device, logits, batch, n.data(), scratch());
      normalizer = n.host()[0];
    }
    gdpo::policy_loss_from_logits(device, gdpo::grpo_loss, logits, batch, normalizer,
                                  l.table(to.dlogits), to.result.data(), scratch());
    result = to.result.host()[0];
    const std::vector<float> dlogits = to.dlogits.host();
    std::vector<int> zero;
    for (int k = 0; k < tokens; ++k) {
      const auto* row = dlogits.data() + k * 60;
      if (std::all_of(row, row + 60, [](float x) { return x == 0; })) zero.push_back(k);
    }
    return zero;
  };
  CHECK(run([](auto&, auto& batch) { batch.offsets = {}; }, true) ==
        std::vector<int>{2, 4, 6, 12, 19});
  CHECK(result.metrics.entropy.count == 15);
  const Layout<float, 2> of_host{s};
  auto logits = of_host.logits();
  logits.mask = gdpo::view(not_third), logits.offsets = gdpo::view(s.offsets);
  auto batch = of_host.batch(0);
  batch.offsets = {};  // then the offsets of the logits count
  const gdpo::Normalizer host = gdpo::count(logits, batch);
  CHECK((normalizer.tokens == 15 && host.tokens == 15));
  CHECK((normalizer.rows == host.rows && normalizer.non_empty_rows == host.non_empty_rows));

  // The host cannot check offsets in device memory. A row that no sequence holds counts as masked,
  // and nothing outside the arrays is read.
  const auto of_batch = [](auto& of, auto& b) { of.offsets = {}, of.mask = {}, b.mask = {}; };
  s.offsets = {5, 5, 8, 8, 12};
  CHECK(run(of_batch, false) == std::vector<int>{0, 1, 2, 3, 4, 12, 13, 14, 15, 16, 17, 18, 19});
  s.offsets = {0, 9, 4, 400, 11};
  CHECK(run(of_batch, false).empty());
}

TEST_CASE("cuda: a row of weight 0 has no gradient, whatever stands there", "[sanitize]") {
  Step<float> s(14, 90);
  s.row_weights = {0, 1, 1, 1};
  for (std::size_t k = 0; k < width; ++k)
    s.old_logp[k] = std::nanf(""), s.logits[k * 90] = std::nanf("");
  const auto run = [&] { return on_device<float, 3>(test_device(1), gdpo::grpo_loss, s, 4); };
  const auto got = run();
  CHECK(logit_cases::same(got.dlogits, one_by_one<3>(gdpo::grpo_loss, s, 4).dlogits));
  CHECK(std::count(got.dlogits.begin(), got.dlogits.begin() + width * 90, 0.0f) == width * 90);
  // A weight that is not finite counts as 0.
  s.row_weights[0] = std::numeric_limits<double>::infinity();
  CHECK(logit_cases::same(run().dlogits, got.dlogits));
}

TEST_CASE("cuda: what is not finite in one token spoils its row of logits alone") {
  for (int input = 0; input < 4; ++input) {
    Step<float> s(15, 90);
    const auto at =
        static_cast<std::size_t>(std::find(s.mask.begin(), s.mask.end(), 1) - s.mask.begin());
    (input == 0   ? s.old_logp
     : input == 1 ? s.ref_logp
     : input == 2 ? s.token_advantages
                  : s.logits)[input == 3 ? at * 90 : at] = std::nanf("");
    const auto got = on_device<float, 3>(test_device(2), gdpo::grpo_loss, s, 1);
    const auto parts = one_by_one<3>(gdpo::grpo_loss, s, 1);
    CHECK(logit_cases::same(got.dlogits, parts.dlogits));
    CHECK(logit_cases::same(got.dlogp, parts.dlogp));
    CHECK(std::count_if(got.dlogits.begin(), got.dlogits.end(),
                        [](float x) { return std::isnan(x); }) == 90);
    CHECK(std::isnan(got.dlogits[at * 90]));
  }
}

TEST_CASE("cuda: a call from logits enqueues what it says") {
  Step<float> s(22, 30);
  const Layout<float, 3> l{s};
  const auto logits = l.logits();
  const auto batch = l.batch(0);
  std::vector<float> dlogits(s.logits.size(), 7.0f);
  gdpo::LossResult result;
  const std::size_t bytes = gdpo::cuda::scratch_bytes(logits, batch);
  std::vector<double> memory(bytes / sizeof(double) + 1);
  const auto launches = [&](const auto& loss) {
    const HostOnly device;
    gdpo::policy_loss_from_logits(device, loss, logits, batch, gdpo::Normalizer{20, 4, 3, 0},
                                  l.table(dlogits), &result,
                                  gdpo::cuda::Scratch{memory.data(), bytes});
    return device.launches;
  };
  CHECK(launches(gdpo::grpo_loss) == 5);
  CHECK(launches(gdpo::gspo_loss) == 5);
  const HostOnly device;
  gdpo::Normalizer normalizer;
  gdpo::cuda::count_into(device, logits, batch, &normalizer, {memory.data(), bytes});
  CHECK(device.launches == 3);
  CHECK(std::count(dlogits.begin(), dlogits.end(), 7.0f) ==
        static_cast<std::ptrdiff_t>(dlogits.size()));
}

TEST_CASE("cuda: what only a device refuses of a call from logits") {
  Step<float> s(20, 30);
  const Layout<float, 3> l{s};
  const auto logits = l.logits();
  const auto batch = l.batch(0);
  std::vector<float> dlogits(s.logits.size());
  gdpo::LossResult result;
  const std::size_t bytes = gdpo::cuda::scratch_bytes(logits, batch);
  std::vector<double> memory(bytes / sizeof(double) + 1);
  const auto says = [&](const std::string& part, gdpo::LossResult* target, std::size_t size,
                        const gdpo::cuda::FromLogits& out) {
    const HostOnly device;
    const std::string message = message_of([&] {
      gdpo::policy_loss_from_logits(device, gdpo::grpo_loss, logits, batch,
                                    gdpo::Normalizer{20, 4, 3, 0}, l.table(dlogits), target,
                                    {memory.data(), size}, out);
    });
    CHECK_THAT(message, Catch::Matchers::ContainsSubstring(part));
    CHECK(device.launches == 0);
  };
  says("result", nullptr, bytes, {});
  std::vector<float> short_out(3);
  says("out.logp", &result, bytes, {gdpo::view(short_out), {}, {}, {}});
  says("scratch", &result, bytes - 1, {});
}

}  // namespace logits_loss_test
