// labels: lanes, sanitizers
// The mismatch report: its formulas in long double, and the laws of its bits. Partition and order
// of merges, padding, packing and rank 3, and what masked places hold change none; a permutation of
// the rows changes only places.
#include <gdpo/mismatch.hpp>
#include <limits>
#include <map>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/mismatch.hpp"

namespace report_laws_test {

namespace {

using gdpo::MismatchReport, gdpo::MismatchSettings;
using mismatch_support::differs, mismatch_support::Places;
using real = long double;

constexpr double nan_ = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();

struct Token {
  double old, rollout, weight;
  bool valid, completion;
};
using Rows = std::vector<std::vector<Token>>;

/// Rows of up to 9 tokens with holes, some empty. The numbers are exact in float.
Rows random_rows(Random& random, int count, double spread, double wild) {
  Rows rows;
  const auto stored = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  for (int i = 0; i < count; ++i) {
    std::vector<Token> row;
    const double p = random.pick({0.0, 0.6, 1.0, 1.0});
    for (int n = random.below(10); n > 0; --n) {
      Token t{};
      t.old = stored(-3 * random.uniform());
      t.rollout = stored(t.old + spread * (random.uniform() + random.uniform() - 1));
      if (random.chance(0.2)) t.rollout = t.old;
      t.weight = stored(random.pick({0.0, 1.0, 2.0, 2 * random.uniform()}));
      t.valid = random.chance(p), t.completion = t.valid || random.chance(0.5);
      if (random.chance(wild)) t.rollout = random.pick({nan_, nan_, -inf, inf});
      if (random.chance(wild)) t.old = random.pick({nan_, -inf});
      if (random.chance(wild)) t.weight = random.pick({nan_, inf});
      row.push_back(t);
    }
    rows.push_back(row);
  }
  return rows;
}

enum class Layout { Padded, Packed, Rank3 };

/// The rows as arrays. Masked places and padding hold what `random` picks, numbers or not.
template <class S>
class Arrays {
 public:
  gdpo::TokenBatch<S> batch;

  Arrays(const Rows& rows, Layout layout, Random random, bool weights = true) {
    const auto count = static_cast<gdpo::index_t>(rows.size());
    std::size_t width = 1;
    for (const auto& row : rows) width = row.size() > width ? row.size() : width;
    if (layout == Layout::Padded) width += static_cast<std::size_t>(random.below(3));
    offsets_.push_back(0);
    for (const auto& row : rows) {
      const std::size_t length = layout == Layout::Packed ? row.size() : width;
      for (std::size_t t = 0; t < length; ++t) {
        const bool there = t < row.size(), valid = there && row[t].valid;
        const auto put = [&](std::vector<S>& to, double Token::*member) {
          to.push_back(static_cast<S>(valid ? row[t].*member
                                            : random.pick({nan_, inf, -inf, 1e30, 0.0, -1.0})));
        };
        put(old_, &Token::old), put(rollout_, &Token::rollout), put(weights_, &Token::weight);
        mask_.push_back(valid), completion_.push_back(there && row[t].completion);
      }
      offsets_.push_back(static_cast<std::int64_t>(old_.size()));
    }
    const auto n = static_cast<gdpo::index_t>(old_.size()), w = static_cast<gdpo::index_t>(width);
    const auto view = [&](const auto& v) {
      using View = gdpo::TokenView<std::decay_t<decltype(v[0])>>;
      if (layout == Layout::Packed) return View(gdpo::view(v.data(), n));
      if (layout == Layout::Padded) return View(gdpo::view(v.data(), count, w));
      const gdpo::index_t prompts = count % 2 == 0 ? count / 2 : 1;
      return View(gdpo::view(v.data(), prompts, count / (prompts > 0 ? prompts : 1), w));
    };
    batch.old_logp = view(old_), batch.rollout_logp = view(rollout_);
    if (weights) batch.weights = view(weights_);
    batch.mask = view(mask_), batch.completion_mask = view(completion_);
    if (layout == Layout::Packed) batch.offsets = gdpo::view(offsets_);
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

 private:
  std::vector<S> old_, rollout_, weights_;
  std::vector<unsigned char> mask_, completion_;
  std::vector<std::int64_t> offsets_;
};

template <class S>
MismatchReport report_of(const Rows& rows, const MismatchSettings& settings,
                         Layout layout = Layout::Padded, std::uint64_t seed = 1,
                         gdpo::index_t first_row = 0) {
  const Arrays<S> arrays(rows, layout, Random(seed));
  return gdpo::mismatch(arrays.batch, settings, first_row);
}

MismatchSettings random_settings(Random& random) {
  MismatchSettings s;
  s.token_low = random.pick({0.0, 0.5, 0.8}), s.token_high = random.pick({1.2, 2.0, inf});
  s.row_low = random.pick({0.0, 0.5, 0.9}), s.row_high = random.pick({1.1, 2.0});
  s.clamp = random.pick({20.0, 0.1, 1.0, inf});
  s.count_eps = random.pick({0.0, 1e-8, 0.5}), s.ess_eps = random.pick({0.0, 1e-8});
  s.empty_rows = random.chance(0.5);
  return s;
}

// ---- the formulas ----

real cut(real x, real low, real high) { return x < low ? low : x > high ? high : x; }

/// Statistics of numbers, by their definitions.
struct Numbers {
  std::vector<real> x;
  real eps = 0;
  real divisor() const { return static_cast<real>(x.size()) + eps; }
  template <class F>
  real mean_of(const F& f) const {
    real sum = 0;
    for (const real v : x) sum += f(v);
    return x.empty() ? 0 : sum / divisor();
  }
  real mean() const {
    return mean_of([](real v) { return v; });
  }
  real square() const {
    return mean_of([](real v) { return v * v; });
  }
  real std() const {
    const real variance = square() - mean() * mean();
    return variance > 0 ? std::sqrt(variance) : 0;
  }
  real ess(real ess_eps) const {
    const real m = mean() + ess_eps;
    return square() > 0 ? m * m / square() : 0;
  }
  real chi2() const { return x.empty() ? 0 : square() - 1; }
  real share(bool above, double bound) const {
    return mean_of([=](real v) {
      return (above ? v > static_cast<real>(bound) : v < static_cast<real>(bound)) ? real(1)
                                                                                   : real(0);
    });
  }
};

/// All metrics by their names.
std::map<std::string, real> formulas(const Rows& rows, const MismatchSettings& s) {
  const real clamp = static_cast<real>(s.clamp), eps = static_cast<real>(s.count_eps);
  Numbers x, r, w, v, k3, reverse, reverse3, js, factor, distance, size;
  Numbers log_ppl, rollout_log_ppl, diff, p, g, m, row_w, ppl, rollout_ppl, abs_diff, ppl_ratio;
  for (Numbers* n : {&x, &r, &w, &v, &k3, &reverse, &reverse3, &js, &factor, &distance, &size})
    n->eps = eps;
  real missing = 0, tokens = 0, masked = 0, dropped = 0, dropping_rows = 0, scored_rows = 0,
       valid_rows = 0, lost_rows = 0, masked_rows = 0;
  for (const auto& row : rows) {
    real n = 0, valid = 0, sum_old = 0, sum_rollout = 0, sum_r = 0, sum_w = 0, zeros = 0, out = 0;
    for (const Token& t : row) {
      out += !t.valid && t.completion;
      if (!t.valid) continue;
      valid += 1;
      missing += std::isnan(t.rollout);
      if (!std::isfinite(t.rollout) || !std::isfinite(t.old)) continue;
      const real o = static_cast<real>(t.old), q = static_cast<real>(t.rollout), d = o - q;
      const real ratio = std::exp(cut(d, -clamp, clamp));
      const real weight = std::isfinite(t.weight) ? static_cast<real>(t.weight) : 0;
      n += 1, sum_old += o, sum_rollout += q, sum_r += ratio, sum_w += weight;
      zeros += weight == 0;
      x.x.push_back(d), size.x.push_back(std::fabs(d)), r.x.push_back(ratio);
      k3.x.push_back(std::expm1(d) - d), reverse.x.push_back(ratio * d);
      reverse3.x.push_back(std::expm1(-d) + d), js.x.push_back(std::log(std::cosh(d / 2)));
      factor.x.push_back(std::exp(std::fabs(d)));
      distance.x.push_back(std::fabs(std::exp(o) - std::exp(q)));
      w.x.push_back(weight);
      v.x.push_back(cut(weight, static_cast<real>(s.token_low), static_cast<real>(s.token_high)));
    }
    tokens += valid, masked += out, dropped += zeros;
    valid_rows += valid > 0, scored_rows += n > 0, dropping_rows += zeros > 0;
    lost_rows += n > 0 && zeros == n, masked_rows += valid == 0 && out > 0;
    if (n == 0 && !s.empty_rows) continue;
    const auto mean = [&](real sum) { return n + eps > 0 ? sum / (n + eps) : 0; };
    const real a = -mean(sum_old), b = -mean(sum_rollout), d = -mean(sum_old - sum_rollout);
    log_ppl.x.push_back(a), rollout_log_ppl.x.push_back(b), diff.x.push_back(d);
    ppl.x.push_back(std::exp(a)), rollout_ppl.x.push_back(std::exp(b));
    abs_diff.x.push_back(std::fabs(d)), ppl_ratio.x.push_back(std::exp(d));
    p.x.push_back(std::exp(cut(sum_old - sum_rollout, -clamp, clamp)));
    g.x.push_back(std::exp(cut(-d, -clamp, clamp)));
    m.x.push_back(mean(sum_r)), row_w.x.push_back(mean(sum_w));
  }
  const real e = static_cast<real>(s.ess_eps), counted = static_cast<real>(row_w.x.size());
  const auto over = [](real part, real all) { return all > 0 ? part / all : 0; };
  const real n = static_cast<real>(x.x.size());
  return {{"kl", -x.mean()},
          {"k3_kl", k3.mean()},
          {"reverse_kl", reverse.mean()},
          {"reverse_k3_kl", reverse3.mean()},
          {"js_divergence", js.mean()},
          {"abs_log_diff", size.mean()},
          {"mult_prob_error", factor.mean()},
          {"prob_diff", distance.mean()},
          {"ratio_mean", r.mean()},
          {"ratio_std", r.std()},
          {"chi2_token", r.chi2()},
          {"token_ess", r.ess(e)},
          {"token_fraction_low", r.share(false, s.token_low)},
          {"token_fraction_high", r.share(true, s.token_high)},
          {"mean_log_ppl", log_ppl.mean()},
          {"mean_ppl", ppl.mean()},
          {"mean_rollout_log_ppl", rollout_log_ppl.mean()},
          {"mean_rollout_ppl", rollout_ppl.mean()},
          {"mean_log_ppl_diff", diff.mean()},
          {"mean_abs_log_ppl_diff", abs_diff.mean()},
          {"mean_ppl_ratio", ppl_ratio.mean()},
          {"product_mean", p.mean()},
          {"product_std", p.std()},
          {"chi2_product", p.chi2()},
          {"product_ess", p.ess(e)},
          {"product_fraction_low", p.share(false, s.row_low)},
          {"product_fraction_high", p.share(true, s.row_high)},
          {"geometric_mean", g.mean()},
          {"geometric_std", g.std()},
          {"chi2_geometric", g.chi2()},
          {"geometric_ess", g.ess(e)},
          {"geometric_fraction_low", g.share(false, s.row_low)},
          {"geometric_fraction_high", g.share(true, s.row_high)},
          {"mean_fraction_low", m.share(false, s.row_low)},
          {"mean_fraction_high", m.share(true, s.row_high)},
          {"weight_mean", w.mean()},
          {"weight_std", w.std()},
          {"weight_ess", w.ess(e)},
          {"bounded_weight_ess", v.ess(e)},
          {"row_weight_mean", row_w.mean()},
          {"row_weight_std", counted > 1 ? row_w.std() * std::sqrt(counted / (counted - 1)) : 0},
          {"row_weight_ess", row_w.ess(e)},
          {"weight_dropped", n > 0 ? dropped / (n + eps) : 0},
          {"rows_dropping", over(dropping_rows, scored_rows)},
          {"dropped_share", over(dropped + masked, tokens + masked)},
          {"dropped_row_share", over(lost_rows + masked_rows, valid_rows + masked_rows)},
          {"missing_share", over(missing, tokens)}};
}

}  // namespace

TEST_CASE("every metric is its formula", "[mismatch]") {
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const double spread = random.pick({0.01, 0.3, 3.0});
    const Rows rows = random_rows(random, random.below(7), spread, random.pick({0.0, 0.1}));
    const MismatchSettings settings = random_settings(random);
    const MismatchReport report =
        seed % 2 == 0 ? report_of<double>(rows, settings) : report_of<float>(rows, settings);
    const std::map<std::string, real> wanted = formulas(rows, settings);
    REQUIRE(wanted.size() == std::size(gdpo::detail::mismatch_metrics));
    for (const gdpo::detail::MismatchMetric& metric : gdpo::detail::mismatch_metrics) {
      INFO(metric.name);
      // Sums of up to 60 numbers, each within a few 2^-53 of itself. A standard deviation is the
      // root of a variance that is off by that much of the mean square.
      const real exact = wanted.at(metric.name), got = static_cast<real>(metric.of(report));
      const std::string name = metric.name;
      const bool root = name.size() > 4 && name.compare(name.size() - 4, 4, "_std") == 0;
      const real size = std::fabs(exact) + 1;
      CHECK(std::fabs(got - exact) <= (root ? 3e-8L * (size < 1 ? 1 : size) : 1e-13L * size));
    }
  }
}

TEST_CASE("micro-batches merge to the bits of the whole, in any order", "[mismatch]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Rows rows = random_rows(random, 1 + random.below(12), random.pick({0.1, 3.0}), 0.05);
    const MismatchSettings settings = random_settings(random);
    const MismatchReport whole = report_of<float>(rows, settings);
    std::vector<MismatchReport> parts;
    for (std::size_t first = 0; first < rows.size();) {
      const std::size_t last =
          std::min(rows.size(), first + static_cast<std::size_t>(random.below(4)));
      const Rows part(rows.begin() + static_cast<std::ptrdiff_t>(first),
                      rows.begin() + static_cast<std::ptrdiff_t>(last));
      parts.push_back(report_of<float>(part, settings, Layout::Packed, seed,
                                       static_cast<gdpo::index_t>(first)));
      first = last;
    }
    random.shuffle(parts);
    while (parts.size() > 1) {  // any tree
      const auto k = static_cast<std::size_t>(random.below(static_cast<int>(parts.size()) - 1));
      parts[k] = random.chance(0.5) ? merge(parts[k], parts.back()) : merge(parts.back(), parts[k]);
      parts.pop_back();
    }
    CHECK(differs(parts[0], whole) == "");
  }
}

TEST_CASE("a permutation of the rows moves places and changes nothing else", "[mismatch]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Rows rows = random_rows(random, 1 + random.below(9), 1, 0.05);
    const MismatchSettings settings = random_settings(random);
    const MismatchReport before = report_of<double>(rows, settings);
    random.shuffle(rows);
    CHECK(differs(before, report_of<double>(rows, settings), Places::LeftOut) == "");
  }
}

TEST_CASE("layout, element type and what masked places hold change no bit", "[mismatch]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Rows rows = random_rows(random, random.below(9), 1, 0.05);
    const MismatchSettings settings = random_settings(random);
    const MismatchReport padded = report_of<float>(rows, settings);
    CHECK(differs(padded, report_of<float>(rows, settings, Layout::Padded, seed + 1000)) == "");
    CHECK(differs(padded, report_of<float>(rows, settings, Layout::Packed, seed)) == "");
    CHECK(differs(padded, report_of<float>(rows, settings, Layout::Rank3, seed)) == "");
    CHECK(differs(padded, report_of<double>(rows, settings, Layout::Packed, seed)) == "");
  }
}

namespace {

/// The report by a plain loop: row by row, token by token.
MismatchReport plain_report(const Rows& rows, const MismatchSettings& settings, bool weights) {
  using namespace gdpo::detail;
  MismatchReport report;
  report.settings = settings;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<gdpo::index_t>(i);
    MismatchRow sums;
    gdpo::index_t masked = 0;
    for (std::size_t t = 0; t < rows[i].size(); ++t) {
      const Token& given = rows[i][t];
      masked += !given.valid && given.completion;
      if (!given.valid) continue;
      MismatchToken<double> token(settings, true, given.old, given.rollout);
      token.js = token.divergence(token.cosh);
      token.weigh(settings, weights ? given.weight : 1.0, weights);
#define GDPO_X(name, ...) sums.name += token.name;
      GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
      if (!token.scored) continue;
      GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
      GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, end, of)                                                              \
  if (sums.name.row < 0 ||                                                                 \
      (mismatch_list::End::end == mismatch_list::End::Least ? token.of < sums.name.value   \
                                                            : token.of > sums.name.value)) \
    sums.name = {token.of, row, static_cast<gdpo::index_t>(t)};
      GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
    }
    sums.finish(settings, row, masked);
    add_mismatch(report, sums);
  }
  return report;
}

/// Rows of which some are longer than what the lanes take at once, with masked ends and middles.
Rows long_rows(Random& random) {
  Rows rows = random_rows(random, random.below(20), random.pick({0.1, 5.0, 2000.0}), 0.05);
  for (auto& row : rows) {
    if (row.empty() || random.chance(0.3)) continue;
    const auto length = static_cast<std::size_t>(random.below(200));
    const auto first = static_cast<std::size_t>(random.below(150)),
               last = first + static_cast<std::size_t>(random.below(200));
    const double holes = random.pick({0.0, 0.05, 1.0});
    std::vector<Token> longer;
    for (std::size_t t = 0; t < length; ++t) {
      Token token = row[t % row.size()];
      token.rollout = static_cast<double>(
          static_cast<float>(token.rollout - random.pick({0.0, 0.0, 0.125, -1.5})));
      token.valid = t >= first && t < last && !random.chance(holes);
      longer.push_back(token);
    }
    row = longer;
  }
  return rows;
}

}  // namespace

TEST_CASE("rows side by side have the bits of a plain loop", "[mismatch]") {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Rows rows = long_rows(random);
    MismatchSettings settings = random_settings(random);
    if (random.chance(0.2)) settings.token_low = 1.1, settings.token_high = 1.2;
    const bool weights = random.chance(0.5);
    const Layout layout = random.chance(0.5) ? Layout::Packed : Layout::Padded;
    const MismatchReport plain = plain_report(rows, settings, weights);
    const Arrays<float> single(rows, layout, Random(seed), weights);
    const Arrays<double> arrays(rows, layout, Random(seed), weights);
    REQUIRE(differs(gdpo::mismatch(single.batch, settings), plain) == "");
    REQUIRE(differs(gdpo::mismatch(arrays.batch, settings), plain) == "");
  }
}

TEST_CASE("policies that agree have divergences of exactly 0 and ratios of exactly 1",
          "[mismatch]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Rows rows = random_rows(random, 5, 1, 0);
    rows.push_back({{-1.25, -1.25, 1, true, true}});
    for (auto& row : rows) {
      for (Token& t : row) t.rollout = t.old, t.weight = 1;
    }
    MismatchSettings settings;
    settings.clamp = random.pick({20.0, inf});
    const MismatchReport r = report_of<float>(rows, settings);
    for (const double zero :
         {r.kl(), r.k3_kl(), r.reverse_kl(), r.reverse_k3_kl(), r.js_divergence(), r.abs_log_diff(),
          r.prob_diff(), r.ratio_std(), r.chi2_token(), r.mean_log_ppl_diff(),
          r.mean_abs_log_ppl_diff(), r.product_std(), r.chi2_product(), r.geometric_std(),
          r.chi2_geometric(), r.weight_std(), r.row_weight_deviation.value,
          r.abs_log_ratio_max.value})
      CHECK(gdpo::math::bits_of(zero) == 0);  // and not -0
    for (const double one :
         {r.mult_prob_error(), r.ratio_mean(), r.token_ess(), r.mean_ppl_ratio(), r.product_mean(),
          r.product_ess(), r.geometric_mean(), r.geometric_ess(), r.weight_mean(), r.weight_ess(),
          r.row_weight_mean(), r.ratio_min.value, r.ratio_max.value, r.product_max.value})
      CHECK(one == 1);
  }
}

TEST_CASE("after prepare() the report is of its mask and weights", "[mismatch]") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Rows rows = random_rows(random, 1 + random.below(6), 1, 0.05);
    for (auto& row : rows) {
      for (Token& t : row) t.completion = t.valid;
    }
    const Arrays<double> arrays(rows, Layout::Padded, Random(seed), false);
    gdpo::prepass::Importance weight;
    weight.clip.hi = 1.5;
    gdpo::prepass::Gate gate;
    gate.min = 0.6, gate.max = 1.6, gate.reach = gdpo::Reach::Mask;
    gdpo::PrepassMemory<double> memory;
    const auto prepared = gdpo::prepare(arrays.batch, memory, weight, gate);
    const gdpo::index_t width = arrays.batch.old_logp.shape().extent[1];
    Rows decided = rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<gdpo::index_t>(i);
      for (std::size_t t = 0; t < rows[i].size(); ++t) {
        const auto k = static_cast<gdpo::index_t>(t);
        decided[i][t].valid = prepared.mask.at(row, row * width, k) != 0;
        decided[i][t].weight = prepared.weights.at(row, row * width, k);
      }
    }
    const MismatchReport report = gdpo::mismatch(prepared);
    CHECK(differs(report, report_of<double>(decided, {}, Layout::Packed, seed)) == "");
    CHECK(report.weighed == report.scored);
    CHECK(report.missing == 0);  // the gate has dropped them
  }
}

}  // namespace report_laws_test
