// labels: lanes
// policy_loss_from_logits gives the bits of three calls, token_logprobs, the loss and
// token_logprobs_backward, whatever the level, the layout, the target, and the place of dlogits.
// Its gradient is that of long double.
#include <cstring>
#include <gdpo/loss/any_surrogate.hpp>
#include <gdpo/with/eigen.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/logits_step.hpp"
#include "support/loss_archetypes.hpp"

namespace policy_loss_test {

namespace {

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(static_cast<const void*>(a.data()), b.data(), a.size() * sizeof(T)) == 0;
}

using logits_step::Layout, logits_step::Step, logits_step::sequences, logits_step::width,
    logits_step::tokens;
constexpr int vocabulary = 700;
constexpr std::size_t entries = vocabulary;

template <class T>
struct Outcome {
  gdpo::LossResult result;
  std::vector<T> dlogits;
  std::vector<float> logp, entropies, dlogp;
};
template <class T>
bool same(const Outcome<T>& a, const Outcome<T>& b) {
  const auto bits = [](double x, double y) { return std::memcmp(&x, &y, sizeof x) == 0; };
  return bits(a.result.loss, b.result.loss) && bits(a.result.policy_loss, b.result.policy_loss) &&
         bits(a.result.metrics.entropy.sum, b.result.metrics.entropy.sum) &&
         bits(a.result.metrics.ratio.sum, b.result.metrics.ratio.sum) &&
         bits(a.result.metrics.clip_fraction.sum, b.result.metrics.clip_fraction.sum) &&
         same(a.dlogits, b.dlogits) && same(a.logp, b.logp) && same(a.entropies, b.entropies) &&
         same(a.dlogp, b.dlogp);
}

/// The result of the three calls.
template <class T, int Rank, class Loss>
Outcome<T> three_calls(const Loss& loss, const Layout<T, Rank>& l, gdpo::TokenBatch<float> batch) {
  gdpo::LogitBatch<T, Rank> logits = l.logits();
  logits.mask = batch.mask;
  gdpo::TokenLogprobs f = gdpo::token_logprobs(gdpo::seq, logits);
  std::vector<float> dlogp(tokens);
  batch.logp = l.by_token(f.logp);
  batch.entropies = l.by_token(f.entropy);
  gdpo::LossWorkspace<float> memory;
  const gdpo::LossResult result =
      gdpo::evaluate(gdpo::seq, loss, batch, gdpo::count(batch), l.by_token(dlogp), memory);
  std::vector<T> dlogits(l.s.logits.size());
  gdpo::token_logprobs_backward(gdpo::seq, logits, {l.by_token(dlogp), {}}, l.by_token(f.logsumexp),
                                l.table(dlogits));
  return {result, dlogits, f.logp, f.entropy, dlogp};
}
/// The result of the one call, with dlogits beside the logits or over them.
template <class Exec, class T, int Rank, class Loss>
Outcome<T> one_call(const Exec& exec, const Loss& loss, const Layout<T, Rank>& l,
                    const gdpo::TokenBatch<float>& batch, bool in_place = false) {
  gdpo::LogitsWorkspace w;
  std::vector<T> kept = l.s.logits, beside(kept.size());
  const auto logits = l.logits();
  const gdpo::LossResult result =
      gdpo::policy_loss_from_logits(exec, loss, logits, batch, gdpo::count(logits, batch),
                                    in_place ? l.table(l.s.logits) : l.table(beside), w);
  if (in_place) std::swap(l.s.logits, kept), beside = kept;
  return {result, beside, w.logp, w.entropies, w.dlogp};
}

template <class T, int Rank, class Loss>
void check_loss(const Loss& loss) {
  for (int options = 0; options < 16; ++options) {
    const std::uint64_t seed = 40 + static_cast<std::uint64_t>(options);
    INFO("seed " << seed << ", options " << options << ", rank " << Rank);
    Step<T> s(seed, vocabulary);
    const Layout<T, Rank> l{s};
    const gdpo::TokenBatch<float> batch = l.batch(options);
    const Outcome<T> expected = three_calls(loss, l, batch);
    CHECK(same(one_call(gdpo::seq, loss, l, batch), expected));
    CHECK(same(one_call(gdpo::simd, loss, l, batch), expected));
    CHECK(same(one_call(gdpo::parallel(executors::Backwards{}), loss, l, batch), expected));
    CHECK(same(one_call(gdpo::parallel(executors::Threads{2}), loss, l, batch), expected));
    CHECK(same(one_call(gdpo::simd, loss, l, batch, true), expected));
    CHECK(std::count(expected.dlogp.begin(), expected.dlogp.end(), 0.0f) < tokens);
  }
}
template <class Loss>
void check_layouts(const Loss& loss) {
  check_loss<float, 3>(loss);
  check_loss<float, 2>(loss);
}

}  // namespace

TEST_CASE("one call has the bits of three: levels of tokens") {
  check_layouts(gdpo::grpo_loss);
  gdpo::PolicyLoss<gdpo::level::Token<gdpo::map::Clamp>, gdpo::surrogate::Ratio, gdpo::Kl<>> mapped;
  mapped.aggregate = gdpo::aggregate::token_mean();
  mapped.kl.beta = 0.1;
  check_layouts(mapped);
  check_loss<gdpo::BFloat16, 3>(gdpo::dapo_loss);
  check_loss<float, 2>(logits_step::OwnLoss{});
  // A factor that reads the mean advantage of the row, the reference and the sampling policy.
  check_loss<float, 3>(
      gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None,
                       gdpo::Aggregate, gdpo::Factors<archetype::OfTheRow>>{});
  // KL terms with a factor and with an aggregate of their own.
  using OfTheRow = gdpo::Factors<archetype::OfTheRow>;
  check_loss<float, 3>(gdpo::with_kl(
      gdpo::grpo_loss, gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeightedK2, OfTheRow>{0.1}));
  check_loss<float, 2>(gdpo::with_kl(
      gdpo::grpo_loss, gdpo::with_aggregate(gdpo::Kl<>{0.1}, gdpo::aggregate::token_mean())));
  // The factor again, chosen at run time.
  using Any = gdpo::AnyFactors<gdpo::Factors<>, gdpo::Factors<archetype::OfTheRow>>;
  check_loss<float, 3>(
      gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None,
                       gdpo::Aggregate, Any>{{}, {}, {}, {}, gdpo::Factors<archetype::OfTheRow>{}});
}
TEST_CASE("a loss that is no PolicyLoss has the bits of the PolicyLoss of its members") {
  const logits_step::OwnLoss own;
  const auto composed = gdpo::with_kl(own, own.kl);
  static_assert(std::is_same_v<decltype(composed),
                               const gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                                                      gdpo::Kl<gdpo::kl::K2>>>);
  Step<float> s(71, vocabulary);
  const Layout<float, 3> l{s};
  const Outcome<float> expected = three_calls(composed, l, l.batch(0));
  CHECK(same(three_calls(own, l, l.batch(0)), expected));
  CHECK(!same(three_calls(gdpo::with_kl(own, gdpo::Kl<gdpo::kl::K2>{0.03}), l, l.batch(0)),
              expected));
}
TEST_CASE("one call has the bits of three: levels of segments") {
  auto sequence = gdpo::gspo_loss;
  // With GSPO's own clip range, 3e-4, every ratio of this batch would be clipped.
  sequence.surrogate.low = 0.5, sequence.surrogate.high = 1;
  check_layouts(sequence);
  auto token = gdpo::gspo_token_loss;
  token.surrogate = sequence.surrogate;
  check_loss<gdpo::BFloat16, 2>(token);
}

TEST_CASE("dlogits are the slope of the loss by the logits") {
  // The expected gradient is dloss/dlogp of the loss in double, on log-probs of long double, times
  // onehot - p. Log-probs in float have an error of 5e-7 + 2^-24 |logp|, the ratio has this error
  // relative to itself, and products in float have some 2^-24.
  Step<float> s(77, vocabulary);
  const Layout<float, 3> l{s};
  const gdpo::TokenBatch<float> batch = l.batch(0);
  const Outcome<float> got = one_call(gdpo::simd, gdpo::grpo_loss, l, batch);

  std::vector<double> logp(tokens), old_logp(s.old_logp.begin(), s.old_logp.end()),
      ref_logp(s.ref_logp.begin(), s.ref_logp.end());
  std::vector<double> dlogp(tokens);
  for (int k = 0; k < tokens; ++k) {
    logp[static_cast<std::size_t>(k)] =
        s.mask[static_cast<std::size_t>(k)] ? static_cast<double>(s.naive_logp(k)) : 0.0;
  }
  gdpo::TokenBatch<double> exact;
  exact.logp = gdpo::view(logp.data(), sequences, width);
  exact.old_logp = gdpo::view(old_logp.data(), sequences, width);
  exact.ref_logp = gdpo::view(ref_logp.data(), sequences, width);
  exact.mask = batch.mask;
  exact.advantages = batch.advantages;
  const gdpo::LossResult expected =
      gdpo::grpo_loss(exact, gdpo::count(exact), gdpo::view(dlogp.data(), sequences, width));
  CHECK(got.result.loss == Approx(expected.loss).epsilon(2e-6));
  const double largest = std::abs(*std::max_element(
      dlogp.begin(), dlogp.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
  for (int k = 0; k < tokens; ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (!s.mask[at]) continue;
    const auto gradient = naive::logits_gradient(
        s.softmax(k), static_cast<std::size_t>(s.targets[at]), dlogp[at], 0, 1);
    for (std::size_t j = 0; j < entries; ++j) {
      const double error = static_cast<double>(got.dlogits[at * entries + j] - gradient[j]);
      if (!(std::abs(error) <= 3e-6 * largest))
        FAIL_CHECK("token " << k << ", entry " << j << ": " << error);
    }
  }
}

TEST_CASE("what is measured and what is kept") {
  Step<float> s(5, vocabulary);
  const Layout<float, 3> l{s};
  gdpo::TokenBatch<float> batch = l.batch(0);
  const gdpo::LossResult r = one_call(gdpo::simd, gdpo::grpo_loss, l, batch).result;
  CHECK(r.metrics.entropy.count == r.normalizer.tokens);
  CHECK(r.metrics.entropy.mean() > 1);
  std::vector<float> own(tokens, 0.25f);
  batch.entropies = l.by_token(own);
  CHECK(one_call(gdpo::simd, gdpo::grpo_loss, l, batch).result.metrics.entropy.mean() == 0.25);
}

TEST_CASE("a row of weight 0 has no gradient, whatever stands there") {
  Step<float> s(14, vocabulary);
  s.row_weights = {0, 1, 1, 1};
  for (std::size_t k = 0; k < width; ++k)
    s.old_logp[k] = std::nanf(""), s.logits[k * entries] = std::nanf("");
  const Layout<float, 3> l{s};
  const Outcome<float> got = one_call(gdpo::simd, gdpo::grpo_loss, l, l.batch(4));
  CHECK(same(got, three_calls(gdpo::grpo_loss, l, l.batch(4))));
  CHECK(std::count(got.dlogits.begin(), got.dlogits.begin() + width * vocabulary, 0.0f) ==
        width * vocabulary);
}

TEST_CASE("a workspace of another batch changes nothing") {
  gdpo::LogitsWorkspace w;
  for (const std::uint64_t seed : {std::uint64_t{15}, std::uint64_t{16}}) {
    Step<float> s(seed, vocabulary);
    const Layout<float, 3> l{s};
    const auto logits = l.logits();
    const gdpo::TokenBatch<float> batch = l.batch(6);
    std::vector<float> dlogits(s.logits.size());
    gdpo::policy_loss_from_logits(gdpo::parallel(executors::Threads{1}), gdpo::grpo_loss, logits,
                                  batch, gdpo::count(logits, batch), l.table(dlogits), w);
    CHECK(same(dlogits, one_call(gdpo::simd, gdpo::grpo_loss, l, batch).dlogits));
    // A call that ended in the first sequence leaves this state.
    w.workers[0].sequence = 0;
  }
}

TEST_CASE("masks of the logits and of the batch: both, or either alone") {
  Step<float> s(6, vocabulary);
  const Layout<float, 3> l{s};
  gdpo::TokenBatch<float> batch = l.batch(0);
  const Outcome<float> expected = one_call(gdpo::simd, gdpo::grpo_loss, l, batch);
  auto logits = l.logits();
  logits.mask = batch.mask;
  std::vector<float> dlogits(s.logits.size());
  const auto run = [&] {
    return gdpo::policy_loss_from_logits(gdpo::grpo_loss, logits, batch, gdpo::count(logits, batch),
                                         l.table(dlogits));
  };
  CHECK(run().loss == expected.result.loss);
  batch.mask = {};
  CHECK(run().loss == expected.result.loss);
  CHECK(same(dlogits, expected.dlogits));
}

TEST_CASE("whole packed sequences: the last row of each is not a token of the loss") {
  Step<float> s(8, vocabulary);
  s.mask.assign(tokens, 1);
  for (std::size_t k = 0; k < tokens; ++k) s.targets[k] = static_cast<std::int64_t>(k) * 7;
  Random random(9);
  for (float& x : s.logits) x = static_cast<float>(logit_cases::normal(random));
  s.old_logp.assign(tokens, -6.5f), s.ref_logp.assign(tokens, -6.5f);
  const Layout<float, 2> l{s};
  const auto logits =
      gdpo::aligned(l.table(s.logits), gdpo::view(s.targets), gdpo::view(s.offsets));
  gdpo::TokenBatch<float> batch = l.batch(0);
  batch.mask = {};
  batch.offsets = {};  // the logits have them
  CHECK(gdpo::count(logits, batch).tokens == tokens - 3);
  CHECK(gdpo::count(logits, batch).rows == 4);
  CHECK(gdpo::count(logits, batch).non_empty_rows == 3);
  std::vector<float> dlogits(s.logits.size());
  gdpo::LogitsWorkspace w;
  gdpo::policy_loss_from_logits(gdpo::simd, gdpo::grpo_loss, logits, batch,
                                gdpo::count(logits, batch), l.table(dlogits), w);
  for (const std::size_t last : {std::size_t{4}, std::size_t{12}, std::size_t{19}}) {
    CHECK(w.mask[last] == 0);
    CHECK(std::count(&dlogits[last * entries], &dlogits[last * entries] + vocabulary, 0.0f) ==
          vocabulary);
  }
  CHECK(std::count(dlogits.begin(), dlogits.end(), 0.0f) < 8 * vocabulary);
}

TEST_CASE("pre-passes without log-probs: the batch as prepared") {
  Step<float> s(10, vocabulary);
  const Layout<float, 3> l{s};
  const std::vector<double> truncated{1, 0, 0, 0};
  gdpo::TokenBatch<float> batch = l.batch(0);
  batch.logp = batch.old_logp;  // only its shape is used
  gdpo::PrepassMemory<float> memory;
  const gdpo::TokenBatch<float> prepared = gdpo::prepare(
      batch, memory, gdpo::prepass::Overlong{gdpo::view(truncated), gdpo::Reach::Mask});
  const Outcome<float> expected = three_calls(gdpo::grpo_loss, l, prepared);
  CHECK(same(one_call(gdpo::simd, gdpo::grpo_loss, l, prepared), expected));
  for (int j = 0; j < width * vocabulary; ++j) {
    if (expected.dlogits[static_cast<std::size_t>(j)] != 0)
      FAIL_CHECK("a truncated row has a gradient at " << j);
  }
}

TEST_CASE("pre-passes that read log-probs: the three calls by turns") {
  Step<float> s(11, vocabulary);
  const Layout<float, 3> l{s};
  auto logits = l.logits();
  gdpo::TokenBatch<float> batch = l.batch(0);
  logits.mask = batch.mask;
  std::vector<float> logp(tokens), entropy(tokens), dlogp(tokens), dlogits(s.logits.size(), 42.0f);
  std::vector<double> logsumexp(tokens);
  gdpo::token_logprobs_into(gdpo::simd, logits,
                            {l.by_token(logp), l.by_token(entropy), l.by_token(logsumexp)});
  batch.logp = l.by_token(logp);
  batch.entropies = l.by_token(entropy);
  gdpo::PrepassMemory<float> memory;
  const gdpo::TokenBatch<float> prepared =
      gdpo::prepare(batch, memory, gdpo::prepass::TopEntropy{0.5});
  gdpo::dapo_loss(prepared, gdpo::count(prepared), l.by_token(dlogp));
  gdpo::token_logprobs_backward(gdpo::simd, logits, {l.by_token(dlogp), {}}, l.by_token(logsumexp),
                                l.table(dlogits));
  int rows = 0;
  for (std::size_t k = 0; k < tokens; ++k) {
    const bool any = dlogits[k * entries] != 0;
    CHECK(any == (dlogp[k] != 0));
    if (any) CHECK(static_cast<double>(entropy[k]) >= prepared.entropy_threshold);
    rows += any;
  }
  CHECK(rows > 0);
}

TEST_CASE("no allocation after the first call, and 21 bytes a row") {
  Step<float> s(12, vocabulary);
  const Layout<float, 3> l{s};
  const auto logits = l.logits();
  const gdpo::TokenBatch<float> batch = l.batch(7);
  const gdpo::Normalizer n = gdpo::count(logits, batch);
  std::vector<float> dlogits(s.logits.size());
  gdpo::LogitsWorkspace w;
  const auto check = [&](const auto& loss) {
    gdpo::policy_loss_from_logits(gdpo::simd, loss, logits, batch, n, l.table(dlogits), w);
    const long before = counted::allocations;
    gdpo::policy_loss_from_logits(gdpo::simd, loss, logits, batch, n, l.table(dlogits), w);
    CHECK(counted::allocations == before);
  };
  check(gdpo::grpo_loss);
  check(gdpo::gspo_loss);
  const auto bytes = [](const auto& v) { return v.size() * sizeof(v[0]); };
  CHECK(bytes(w.logp) + bytes(w.entropies) + bytes(w.dlogp) + bytes(w.logsumexp) + bytes(w.mask) ==
        21 * tokens);
}

TEST_CASE("no sequence, and sequences without a token") {
  std::vector<float> nothing;
  const std::vector<int> ids;
  const auto check = [&](const auto& loss, int count) {
    const std::vector<double> advantages(static_cast<std::size_t>(count), 1.0);
    gdpo::TokenBatch<float> batch;
    batch.advantages = gdpo::view(advantages);
    const auto logits = gdpo::aligned(gdpo::view(nothing.data(), count, 0, vocabulary),
                                      gdpo::view(ids.data(), count, 0));
    const gdpo::LossResult r =
        gdpo::policy_loss_from_logits(loss, logits, batch, gdpo::count(logits, batch),
                                      gdpo::view(nothing.data(), count, 0, vocabulary));
    CHECK(r.loss == 0);
    CHECK(r.metrics.rows == count);
  };
  check(gdpo::grpo_loss, 0), check(gdpo::grpo_loss, 3);
  check(gdpo::gspo_loss, 0), check(gdpo::gspo_loss, 3);
}

}  // namespace policy_loss_test
