// labels: sanitizers, long
// The loss on a device compared with the loss on seq, for every kind of policy, on random batches
// in every layout. Also, no bit depends on the layout, on what masked tokens hold, on the grid, or
// on the order of blocks and threads.
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/any_surrogate.hpp>
#include <gdpo/presets/all.hpp>

#include "support/catch.hpp"
#include "support/cuda_loss.hpp"
#include "support/few_rounds.hpp"

namespace loss_test {

namespace {

using cuda_loss::Data;
using cuda_loss::Layout;
using cuda_loss::Outcome;
using gdpo::AnyKl;
using gdpo::Factors;
using gdpo::Kl;
using gdpo::Kls;
using gdpo::PolicyLoss;
using gdpo::surrogate::Ratio;
using gdpo::surrogate::Reinforce;
using loss_product::simplify;
namespace aggregate = gdpo::aggregate;
namespace kl = gdpo::kl;
namespace level = gdpo::level;
namespace map = gdpo::map;
namespace metrics = gdpo::metrics;
namespace statistic = gdpo::statistic;

// ---- random settings ----

template <class E, class R, class F, class A>
void set_kl(Random&, Kl<E, R, F, A>& to, const loss_product::Settings& s, std::size_t k) {
  loss_product::set_kl(to, s, k);
}
void set_kl(Random& random, AnyKl& to, const loss_product::Settings& s, std::size_t k) {
  Kl<> as;
  loss_product::set_kl(as, s, k);
  to.beta = as.beta, to.against = as.against, to.input = as.input, to.output = as.output;
  to.estimator = static_cast<gdpo::KlEstimator>(random.below(naive_loss::estimators));
  to.gradient = static_cast<gdpo::KlGradient>(random.below(naive_loss::rules));
  to.max_weight = s.kl[k].max_weight, to.gate_beta = s.kl[k].gate_beta;
  if (random.chance(0.3)) to.factor = gdpo::KlFactor::TeacherGate;
}
/// A term whose factor reads no array of its own: its rows may have only what most calls have.
using Bounded = Kl<kl::K3, kl::Direct, Factors<gdpo::factor::ClippedRatio>>;
void set_kl(Random&, Bounded& to, const loss_product::Settings& s, std::size_t k) {
  Kl<> as;
  loss_product::set_kl(as, s, k);
  to.beta = as.beta, to.against = as.against, to.input = as.input, to.output = as.output;
  to.factor.first = {0.9, 1.1};
}
void set_aggregate(Random& random, gdpo::Aggregate& a, bool is_packed) {
  a.mode = static_cast<gdpo::Aggregate::Mode>(random.below(6));
  a.scale = random.pick({1.0, 4.0}), a.over = static_cast<gdpo::Over>(random.below(4));
  a.row_count_eps = random.pick({0.0, 1e-8, 0.5});
  a.padded_width = !is_packed && random.chance(0.5);
  a.constant = a.padded_width ? 0 : 64;
}
/// Random numbers for all settings of a loss.
template <class Loss>
void randomize(Random& random, Loss& loss, bool is_packed) {
  loss_product::Settings s;
  s.kl.resize(3);
  s.surrogate = loss_product::known_as<naive_loss::Surrogate, decltype(loss.surrogate)>();
  loss_product::random_settings(random, s);
  loss_product::set_level(loss.level, s);
  loss_product::set_surrogate(loss.surrogate, s);
  std::size_t k = 0;
  gdpo::detail::for_each_kl(loss.kl, [&](auto& term) {
    set_kl(random, term, s, k++);
    if (random.chance(0.4)) term.against = gdpo::Against::Ref, term.input = term.output = {};
    if (random.chance(0.2)) term.beta = 0;
    if constexpr (gdpo::detail::has_aggregate_v<std::decay_t<decltype(term)>>)
      set_aggregate(random, term.aggregate, is_packed);
  });
  set_aggregate(random, loss.aggregate, is_packed);
}

// ---- random batches ----

/// Packed rows as padded ones: the mask hides what is beyond their lengths.
Data padded(const Data& d, const std::vector<int>& lengths) {
  Data p = d;
  if (lengths.empty()) return p;
  if (p.mask.empty()) p.mask.assign(p.logp.size(), 1);
  for (int i = 0; i < d.rows; ++i) {
    for (int t = lengths[static_cast<std::size_t>(i)]; t < d.width; ++t) p.mask[d.at(i, t)] = 0;
  }
  return p;
}
/// Puts NaN, infinities and other numbers where the mask is 0.
void poison_masked(Random& random, Data& d) {
  for (std::size_t k = 0; k < d.mask.size(); ++k) {
    if (d.mask[k] != 0) continue;
    for (const auto member : loss_product::token_arrays) {
      if (!(d.*member).empty())
        (d.*member)[k] = random.pick({std::nan(""), HUGE_VAL, -HUGE_VAL, 1e38, 0.0, 3.0});
    }
    if (!d.segments.empty()) d.segments[k] = random.below(1000);
  }
}
/// Cuts the gradient to the first lengths[i] tokens of each row. "" where it is exactly 0 at all
/// others.
std::string cut(Outcome& o, const Data& d, const std::vector<int>& lengths) {
  if (lengths.empty()) return "";
  std::vector<double> kept;
  for (int i = 0; i < d.rows; ++i) {
    for (int t = 0; t < d.width; ++t) {
      const double g = o.gradient[d.at(i, t)];
      if (t < lengths[static_cast<std::size_t>(i)]) {
        kept.push_back(g);
      } else if (!same_bits(g, 0)) {
        return "not 0 at a masked token";
      }
    }
  }
  o.gradient = kept;
  return "";
}
template <std::size_t N>
const Layout& pick(Random& random, const Layout (&layouts)[N]) {
  return layouts[random.below(static_cast<int>(N))];
}

// ---- the laws ----

/// Computes one batch in two layouts on two grids. The result is that of seq, and both have the
/// same bits.
template <class S, class Loss>
void check_one(Random& random, const Loss& loss, const Data& d, const std::vector<int>& lengths,
               unsigned seed) {
  const gdpo::Normalizer n = cuda_loss::count(d, lengths);
  const Layout& layout = lengths.empty() ? pick(random, cuda_loss::padded_layouts)
                                         : pick(random, cuda_loss::packed_layouts);
  INFO(layout.name << ", " << d.rows << " rows of " << d.width);
  const auto got = cuda_loss::run<S>(test_device(seed), loss, d, layout, lengths, n);
  CHECK(got.gaps_kept);
  Data other = padded(d, lengths);
  CHECK(cuda_loss::mismatch<S>(loss, other, got, cuda_loss::on_seq<S>(loss, d, lengths, n)) == "");

  poison_masked(random, other);
  gdpo::cuda::Tuning tuning;
  tuning.blocks = random.pick({1, 2, 7, 1056});
  tuning.warp_row = random.pick({0, 1 << 20});
  const Layout& another = pick(random, cuda_loss::padded_layouts);
  INFO("and " << another.name << ", " << tuning.blocks << " blocks");
  auto again = cuda_loss::run<S>(test_device(seed + 1, tuning), loss, other, another, {}, n);
  CHECK(cut(again, d, lengths) == "");
  CHECK(cuda_loss::difference_but_nan(again, got) == "");
}
/// Random settings and batches. A third of the batches have NaN and infinities among the tokens.
template <class S, class Loss>
void check(Loss loss, int rounds = few_rounds ? 12 : 100) {
  for (int seed = 1; seed <= rounds; ++seed) {
    Random random(static_cast<std::uint64_t>(seed));
    INFO("seed " << seed);
    const int rows = 1 + random.below(6),
              width = seed % 8 == 0 ? 100 + random.below(1000) : 1 + random.below(70);
    Data d = cuda_loss::random_batch(random, rows, width, seed % 3 == 0 ? 0.03 : 0);
    const bool is_packed = random.chance(0.4);
    if (random.chance(0.5)) simplify(random, d);
    randomize(random, loss, is_packed);
    loss_product::add_level_log_weights(random, loss, d, seed % 3 == 0 ? 0.03 : 0);
    bool against_old = false;
    gdpo::detail::for_each_kl(
        loss.kl, [&](const auto& k) { against_old |= k.against == gdpo::Against::Old; });
    if (!against_old && random.chance(0.15)) d.old_logp.clear();
    const auto lengths =
        is_packed ? cuda_loss::random_lengths(random, rows, width) : std::vector<int>{};
    check_one<S>(random, loss, d, lengths, static_cast<unsigned>(seed));
  }
}

/// Shapes around the sizes in which kernels cut the work: quads of tokens, the 128 threads of a
/// block with a quad each, 1024 units of rows. Each shape is a batch with every array and a simple
/// one.
template <class S, class Loss>
void check_shapes(Loss loss) {
  const std::pair<int, int> shapes[] = {{1024, 1}, {1025, 3}, {2051, 4}, {5003, 3}, {3, 127},
                                        {3, 128},  {3, 129},  {3, 510},  {3, 512},  {2, 515},
                                        {2, 1024}, {5, 700},  {1, 2048}, {1, 5003}};
  unsigned seed = 100;
  for (const auto& [rows, width] : shapes) {
    if (few_rounds && rows > 1025) continue;
    for (const bool simple : {false, true}) {
      Random random(++seed);
      INFO("seed " << seed);
      randomize(random, loss, true);
      Data d = cuda_loss::random_batch(random, rows, width);
      loss_product::add_level_log_weights(random, loss, d, 0);
      if (simple) simplify(random, d);
      check_one<S>(random, loss, d, {}, seed);
      check_one<S>(random, loss, d, cuda_loss::random_lengths(random, rows, width), seed);
    }
  }
}

/// A trainer's loss with its own settings, on batches with every array and on simple ones, and with
/// its KL term switched on.
template <class Loss>
void check_preset(const Loss& preset) {
  auto loss = preset;
  if (!loss.aggregate.padded_width) loss.aggregate.constant = 64;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d = cuda_loss::random_batch(random, 5, 60);
    if (seed % 2 == 0) simplify(random, d);
    if (seed > 2) gdpo::detail::for_each_kl(loss.kl, [](auto& k) { k.beta = 0.05; });
    check_one<float>(random, loss, d, {}, seed);
  }
}

/// Leaving out metrics changes nothing else.
template <class Loss>
void check_metrics(Loss loss) {
  for (int seed = 1; seed <= (few_rounds ? 8 : 24); ++seed) {
    Random random(static_cast<std::uint64_t>(seed));
    INFO("seed " << seed);
    Data d = cuda_loss::random_batch(random, 4, 1 + random.below(200), seed % 3 == 0 ? 0.02 : 0);
    if (seed % 2 == 0) simplify(random, d);
    randomize(random, loss, false);
    const gdpo::Normalizer n = cuda_loss::count(d);
    const auto run = [&](const auto& of, unsigned grid) {
      return cuda_loss::run<float>(test_device(grid), of, d, cuda_loss::dense, {}, n);
    };
    const auto check = [&](const auto& of) {
      const Outcome got = run(of, 5);
      // mismatch() needs all metrics to bound the error, so these compare with a run that has them.
      CHECK(difference(cuda_loss::unified(got.gradient),
                       cuda_loss::unified(run(loss, 6).gradient)) == "");
      const gdpo::LossResult all = run(loss, 7).result;
      for (const auto member :
           {&gdpo::LossResult::loss, &gdpo::LossResult::policy_loss, &gdpo::LossResult::kl_loss}) {
        const double x = got.result.*member, y = all.*member;
        CHECK((same_bits(x, y) || (std::isnan(x) && std::isnan(y))));
      }
      return std::pair{got.result.metrics, all.metrics};
    };
    const auto same = [](const gdpo::Metric& a, const gdpo::Metric& b) {
      for (const auto number :
           {&gdpo::Metric::sum, &gdpo::Metric::count, &gdpo::Metric::row_sum, &gdpo::Metric::rows,
            &gdpo::Metric::row_min, &gdpo::Metric::row_max}) {
        if (!same_bits(a.*number, b.*number) && !(std::isnan(a.*number) && std::isnan(b.*number)))
          return false;
      }
      return true;
    };
    using M = gdpo::LossMetrics;
    const auto [means, all] = check(gdpo::with_metrics<metrics::Means>(loss));
    for (const auto member :
         {&M::loss, &M::surrogate, &M::kl, &M::clip_fraction, &M::clip_fraction_low,
          &M::clip_fraction_high, &M::approx_kl_k1, &M::approx_kl_k3, &M::ratio, &M::entropy,
          &M::completion_length, &M::clipped_completions}) {
      CHECK(same(means.*member, all.*member));
    }
    CHECK((means.dual_clip_fraction.count == 0 && means.kl_bounded.count == 0));
    const auto [none, again] = check(gdpo::with_metrics<metrics::None>(loss));
    for (const auto member : {&M::loss, &M::kl, &M::clip_fraction, &M::ratio, &M::approx_kl_k3,
                              &M::clip_fraction_any}) {
      CHECK((none.*member).count == 0);
    }
    CHECK(same(none.completion_length, again.completion_length));
    CHECK(same_bits(none.advantage.mean, again.advantage.mean));
    CHECK((none.rows == again.rows && none.degenerate_rows == again.degenerate_rows));
    for (int i = 0; i < gdpo::detail::counted_inputs; ++i) {
      const auto input = gdpo::detail::input_counter(i);
      const gdpo::NonFinite &a = none.non_finite.*input, &b = again.non_finite.*input;
      CHECK((a.count == b.count && a.row == b.row && a.token == b.token));
    }
  }
}

/// The sum of the ratios is that in long double to 1e-6 of itself, and their mean lies in their
/// range, for log ratios from -80 to 20 that float has exactly.
template <class S>
void check_ratios() {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d;
    d.rows = 1, d.width = seed == 1 ? 1 : 1 + random.below(1500);
    naive_loss::real sum = 0;
    for (int t = 0; t < d.width; ++t) {
      const double x = seed == 1 ? -15 : random.below(6401) / 64.0 - 80;
      d.logp.push_back(-1), d.old_logp.push_back(-1 - x), d.ref_logp.push_back(-1);
      d.mask.push_back(seed == 1 || random.chance(0.9));
      if (d.mask.back()) sum += std::exp(static_cast<naive_loss::real>(x));
    }
    d.advantages = {1};
    const auto got = cuda_loss::run<S>(test_device(seed), gdpo::grpo_loss, d, cuda_loss::dense, {},
                                       cuda_loss::count(d));
    const gdpo::Metric& ratio = got.result.metrics.ratio;
    CHECK(std::fabs(static_cast<naive_loss::real>(ratio.sum) - sum) <= 1e-6L * sum);
    CHECK(ratio.row_sum == Approx(ratio.mean()).epsilon(1e-15));
    CHECK((ratio.min * (1 - 1e-6) <= ratio.mean() && ratio.mean() <= ratio.max * (1 + 1e-6)));
  }
}

}  // namespace

using Grpo = PolicyLoss<level::Token<>, Ratio, Kl<>>;
using OfSequence = PolicyLoss<level::Sequence<>, Ratio, Kl<>>;

TEST_CASE("on a device: GRPO, any aggregate", "[cuda][loss]") {
  check<float>(Grpo{});
  check_shapes<float>(Grpo{});
  check<double>(gdpo::grpo_loss);
}

TEST_CASE("on a device: no KL term", "[cuda][loss]") {
  check<float>(PolicyLoss<level::Token<>, Ratio, kl::None>{});
}

TEST_CASE("on a device: every estimator and gradient rule of a KL term", "[cuda][loss]") {
  check<float>(PolicyLoss<level::Token<>, Ratio, AnyKl>{}, few_rounds ? 16 : 300);
}

TEST_CASE("on a device: several KL terms and factors", "[cuda][loss]") {
  check<float>(PolicyLoss<level::Token<map::Clamp>, Reinforce,
                          Kls<Kl<kl::K1, kl::ScoreFunction>, Kl<kl::Abs, kl::StraightThroughK2>>,
                          gdpo::Aggregate, Factors<cuda_loss::ClippedRatio, cuda_loss::ByTag>>{});
}

TEST_CASE("on a device: terms of the token's own ratio", "[cuda][loss]") {
  check<float>(
      PolicyLoss<level::Token<>, Ratio,
                 Kls<Kl<kl::K3, kl::ImportanceWeighted>, Kl<kl::K2, kl::Direct>, Kl<kl::K1>>>{
          {}, {}, {}, gdpo::aggregate::seq_mean_token_sum_norm(64)});
}

TEST_CASE("on a device: KL terms with a factor, an aggregate and settings of a rule",
          "[cuda][loss]") {
  using Gated = Kl<kl::ForwardK1, kl::Direct, Factors<gdpo::factor::TeacherGate>>;
  using Divided = Kl<kl::K3, kl::ImportanceWeightedK2, Factors<>, gdpo::Aggregate>;
  check<float>(PolicyLoss<level::Token<>, gdpo::surrogate::None, Gated>{});
  check<float>(PolicyLoss<level::Token<>, Ratio, Divided>{});
  check<float>(PolicyLoss<level::Sequence<>, Ratio, gdpo::Kls<Divided, Gated, Kl<>>>{});
  check<float>(PolicyLoss<level::Token<>, Ratio, Bounded>{});
}

TEST_CASE("on a device: one ratio a segment", "[cuda][loss]") {
  check<float>(PolicyLoss<level::Sequence<map::Clamp>, Ratio, AnyKl>{});
  check<float>(OfSequence{});
  check_shapes<float>(OfSequence{});
}

TEST_CASE("on a device: one ratio a segment, in double", "[cuda][loss]") {
  check<double>(PolicyLoss<level::Sequence<map::None, statistic::Sum>, Ratio, kl::None>{});
}

TEST_CASE("on a device: the ratio of the segment, the token's derivative", "[cuda][loss]") {
  check<double>(PolicyLoss<level::SequenceToken<map::None, statistic::Sum>, Reinforce, Kl<kl::Abs>,
                           gdpo::Aggregate, Factors<cuda_loss::OfTheRow>>{});
  // The same factor, chosen at run time.
  check<double>(PolicyLoss<level::SequenceToken<>, Reinforce, kl::None, gdpo::Aggregate,
                           gdpo::AnyFactors<Factors<>, Factors<cuda_loss::OfTheRow>>>{
      {}, {}, {}, {}, Factors<cuda_loss::OfTheRow>{}});
#if defined(GDPO_TEST_FULL_PRODUCT)
  check<float>(PolicyLoss<level::SequenceToken<map::Clamp>, Ratio, Kl<kl::K2>>{});
#endif
}

TEST_CASE("on a device: the losses of every trainer", "[cuda][loss][presets][sanitize]") {
  gdpo::presets::for_each_loss([](const auto& preset) {
    INFO(preset.name);
    check_preset(preset.value);
  });
  gdpo::presets::for_each_aggregate([](const auto& preset) {
    INFO(preset.name);
    auto loss = gdpo::verl::vanilla_loss;
    loss.aggregate = preset.value;
    check_preset(loss);
  });
  check_preset(gdpo::with_level<level::Sequence<>>(gdpo::trl::grpo_loss));
  check_preset(gdpo::with_level<level::Sequence<>>(gdpo::liger::bnpo_loss));
  check_preset(gdpo::with_level<level::SequenceToken<>>(gdpo::ms_swift::grpo_loss));
}

TEST_CASE("on a device: the sum of the ratios is exact", "[cuda][loss][metrics]") {
  check_ratios<float>();
  check_ratios<double>();
}

TEST_CASE("on a device: metrics All, Means and None give the same loss and gradient",
          "[cuda][loss][metrics]") {
  check_metrics(Grpo{});
  check_metrics(OfSequence{});
}

}  // namespace loss_test
