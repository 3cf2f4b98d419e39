// Calls of the critic's side: advantages and returns of tokens, the value loss and its counts.
#include <gdpo/value.hpp>
#include <reference/naive_value.hpp>
#include <reference/naive_value_loss.hpp>

#include "fuzz/token_arrays.hpp"

namespace fuzz {
namespace {

constexpr gdpo::EpsAt every_eps_at[] = {gdpo::EpsAt::Var,      gdpo::EpsAt::Std,
                                        gdpo::EpsAt::ClampStd, gdpo::EpsAt::ClampVar,
                                        gdpo::EpsAt::None,     gdpo::EpsAt::StdOrOne};

/// Gives a batch an array of numbers. Where the mask hides them they are often NaN, elsewhere
/// seldom.
template <class S>
void give_numbers(TokenRows& b, Numbers<S>& to) {
  Input& in = b.t.in;
  const std::vector<double>& mask = b.mask.numbers;
  std::size_t next = 0;
  const auto value = [&] {
    const std::size_t k = next++;
    const bool hidden = k < mask.size() && mask[k] == 0;
    return in.chance(hidden ? 128 : 3) ? nan : in.number();
  };
  if (in.chance(48)) {
    b.give<float>(to, value);
  } else {
    b.give<S>(to, value);
  }
}

/// One of the numbers, or, if hostile, one that nobody means.
double setting(Trial& t, std::initializer_list<double> options) {
  return t.in.hostile(12) ? odd_number(t.in) : t.in.pick(options);
}
bool is_share(double x) { return x >= 0 && x <= 1; }
bool at_least_0(double x) { return x >= 0 && std::isfinite(x); }

// ---- advantages_and_returns_into ----

void choose(Trial& t, gdpo::returns::RewardToGo& r, naive::ReturnsSettings& s) {
  r.gamma = setting(t, {1, 0.5, 0.75, 0});
  t.need(is_share(r.gamma), "returns.gamma");
  s.gae = false, s.gamma = r.gamma;
}
void choose(Trial& t, gdpo::returns::Gae& r, naive::ReturnsSettings& s) {
  r.gamma = setting(t, {1, 0.5, 0.75, 0});
  r.lambda = setting(t, {0.5, 1, 0.95, 0});
  r.lambda_returns = setting(t, {gdpo::same_lambda, 1, gdpo::same_lambda, 0.25});
  if (t.in.chance(64)) r.length_alpha = setting(t, {0.05, 0.5, 2, 0});
  t.need(is_share(r.gamma) && is_share(r.lambda), "returns.gamma, returns.lambda");
  const bool same = std::isnan(r.lambda_returns);
  t.need(same || is_share(r.lambda_returns), "returns.lambda_returns");
  t.need(at_least_0(r.length_alpha), "returns.length_alpha");
  s.gamma = r.gamma, s.lambda = r.lambda, s.length_alpha = r.length_alpha;
  s.lambda_returns = same ? r.lambda : r.lambda_returns;
}
template <class Returns>
void choose_steps(Trial& t, Returns& r, naive::ReturnsSettings& s) {
  using gdpo::Steps, naive::StepsOf;
  const auto k = static_cast<std::size_t>(t.in.below(4));
  constexpr Steps of[] = {Steps::Valid, Steps::Row, Steps::RowRewardOnValid, Steps::Turns};
  constexpr StepsOf expected[] = {StepsOf::Valid, StepsOf::Row, StepsOf::RowRewardOnValid,
                                  StepsOf::Turns};
  r.steps = of[k], s.steps = expected[k];
}

void choose(Trial& t, gdpo::Renorm& r) {
  if (r.over == gdpo::RenormOver::None) return;
  if (t.in.chance(128)) {
    r.ddof = t.in.hostile(12) ? -1 : t.in.pick({1, 0, 2});
    r.eps = setting(t, {1e-8, 0.25, 0});
    r.eps_at = every_eps_at[t.in.below(6)];
    r.keep_mean = t.in.chance(64);
  }
  if (t.in.chance(48)) r.count_eps = setting(t, {0.5, 1e-8});
  t.need(r.ddof >= 0, "renorm.ddof");
  t.need(at_least_0(r.eps) && at_least_0(r.count_eps), "renorm.eps, renorm.count_eps");
}

/// What a renormalization makes of the advantages at the valid tokens.
struct Whitened {
  real mean = 0, multiplier = 1, back = 0;
  bool decided = true;  // false: rounding decides between 0 and 1 / 0

  real of(real a) const { return (a - mean) * multiplier + back; }
  /// The change of a result when each advantage changes by `error`.
  real change(real a, real error) const {
    return 8 * error * (1 + multiplier * (1 + std::fabs(a - mean) * multiplier));
  }
};
Whitened whitened(const gdpo::Renorm& r, const std::vector<real>& a, real largest) {
  const real n = static_cast<real>(a.size()), count = n + r.count_eps;
  Whitened w;
  if (a.empty() || r.over == gdpo::RenormOver::None) return w;
  real square = 0;
  for (const real x : a) w.mean += x / count;
  for (const real x : a) square += (x - w.mean) * (x - w.mean);
  if (std::isnan(square)) {
    w.mean = nan;
    return w;
  }
  const real dof = n - r.ddof, variance = dof > 0 ? square / count * n / dof : 0, eps = r.eps,
             root = std::sqrt(variance);
  const bool one_at_0 = r.eps_at == gdpo::EpsAt::StdOrOne;
  real denominator = root + eps;
  if (r.eps_at == gdpo::EpsAt::Var) denominator = std::sqrt(variance + eps);
  if (r.eps_at == gdpo::EpsAt::ClampStd) denominator = std::fmax(root, eps);
  if (r.eps_at == gdpo::EpsAt::ClampVar) denominator = std::sqrt(std::fmax(variance, eps));
  const bool without_spread = dof <= 0 || (one_at_0 ? root : denominator) == 0;
  w.multiplier = without_spread ? (one_at_0 ? 1 : 0) : 1 / denominator;
  if (r.eps_at == gdpo::EpsAt::None) w.multiplier = 1;
  if (r.keep_mean) w.back = w.mean;
  w.decided = eps >= 0.1 || root > 1e-4L * (1 + largest) || dof <= 0;
  return w;
}

real kl_of(const gdpo::kl::K1&, real logp, real ref_logp) { return logp - ref_logp; }
real kl_of(const gdpo::kl::K3&, real logp, real ref_logp) {
  return std::expm1(ref_logp - logp) - (ref_logp - logp);
}

template <class S, class Returns, class Kind, gdpo::RenormOver Over, class Exec>
void advantages_and_returns(Trial& t) {
  using Estimator = gdpo::TokenAdvantage<Returns, gdpo::Kl<Kind>>;
  TokenRows b(t);
  Estimator e;
  naive::ReturnsSettings settings;
  choose(t, e.returns, settings);
  choose_steps(t, e.returns, settings);
  if (Over == gdpo::RenormOver::Tokens) e.renorm = gdpo::renorm::token_weighted_batch();
  choose(t, e.renorm);
  if (t.in.chance(96)) e.penalty.coef = setting(t, {0.25, -0.5});
  t.need(std::isfinite(e.penalty.coef), "penalty.coef");
  if (t.in.chance(64)) e.reward_clip = {setting(t, {-1, -infinity}), setting(t, {1, infinity})};
  t.need(e.reward_clip.lo < e.reward_clip.hi, "reward_clip");

  b.give_marks();
  b.give_offsets();
  Numbers<S> rewards, values, logp, ref_logp;
  Written<S> advantages, returns;
  AnyColumn<double> row_rewards, bootstrap;
  const bool penalized = e.penalty.coef != 0, gae = settings.gae;
  if (t.in.chance(24)) {  // the advantages over the rewards
    b.with_extents([&](const auto& extents) {
      const auto array = t.in_place<S>(extents, [&] { return t.in.number(); });
      rewards.take(array);
      advantages.take_output(array);
      t.need_apart(*array);
    });
  } else {
    if (!t.in.chance(64)) give_numbers(b, rewards);
    if (!t.in.hostile(8)) b.give_output(advantages);
  }
  if (gae ? !t.in.hostile(12) : t.in.chance(24)) give_numbers(b, values);
  if (penalized ? !t.in.hostile(12) : t.in.chance(24)) give_numbers(b, logp);
  if (penalized ? !t.in.hostile(12) : t.in.chance(24)) give_numbers(b, ref_logp);
  if (!t.in.chance(64)) b.give_output(returns);
  if (rewards.given ? t.in.chance(64) : penalized ? t.in.chance(128) : !t.in.hostile(48))
    row_rewards = b.row_column([&] { return t.in.number(); });
  if (t.in.chance(64))
    bootstrap = b.row_column([&] { return t.in.chance(4) ? nan : t.in.number(); });

  b.need_one_shape(
      [&](const auto& visit) {
        visit(rewards), visit(values), visit(logp), visit(ref_logp), visit(b.mask);
        visit(advantages), visit(returns);
      },
      EmptyArrays::OfTheShape);
  // The shape may be that of any array but the returns.
  bool shaped = advantages.shaped || b.mask.shaped;
  for (const auto* a : {&rewards, &values, &logp, &ref_logp}) shaped = shaped || a->shaped;
  t.need(shaped || !returns.shaped, "advantages");
  b.need_column(row_rewards), b.need_column(bootstrap);
  if (t.well_formed() && b.tokens > 0) {
    t.need(advantages.given, "advantages");
    t.need(rewards.given || row_rewards.present || penalized, "batch.rewards");
    t.need(values.given || !gae, "batch.values");
    t.need((logp.given && ref_logp.given) || !penalized, "batch.logp, batch.ref_logp");
  }
  t.leave_out_if(t.well_formed() && b.too_long());
  const bool short_form = std::is_same_v<Exec, gdpo::Simd> && t.in.chance(64);
  gdpo::ReturnsWorkspace<S> workspace;
  if (!t.make_call({"gdpo::advantages_and_returns_into", "gdpo::Column"}, [&] {
        gdpo::ReturnBatch<S> batch;
        batch.rewards = rewards.view, batch.values = values.view;
        batch.logp = logp.view, batch.ref_logp = ref_logp.view, batch.mask = b.mask.view;
        batch.row_rewards = row_rewards.make(), batch.bootstrap = bootstrap.make();
        batch.offsets = b.offsets.make();
        if (short_form) {
          gdpo::advantages_and_returns_into(batch, e, advantages.make(), returns.make());
        } else {
          gdpo::advantages_and_returns_into(Exec{}, batch, e, advantages.make(), returns.make(),
                                            workspace);
        }
      }))
    return;
  if (b.tokens == 0) return;

  std::vector<naive::ReturnsResult> expected;
  std::vector<real> at_valid;
  real largest = 0;
  for (index_t i = 0; i < b.rows; ++i) {
    naive::ReturnsRow row;
    for (index_t j = 0; j < b.length(i); ++j) {
      const std::size_t k = b.at(i, j);
      row.valid.push_back(b.valid(k));
      row.rewards.push_back(rewards.given ? rewards.numbers[k] : 0);
      row.values.push_back(gae ? values.numbers[k] : 0);
      row.penalties.push_back(
          penalized ? e.penalty.coef * kl_of(Kind{}, logp.numbers[k], ref_logp.numbers[k]) : 0);
    }
    const auto of_row = static_cast<std::size_t>(i);
    if (row_rewards.present) {
      const real lo = e.reward_clip.lo, hi = e.reward_clip.hi;
      row.row_reward = std::fmin(std::fmax(row_rewards.numbers[of_row], lo), hi);
    }
    if (bootstrap.present) row.bootstrap = bootstrap.numbers[of_row];
    expected.push_back(naive::returns_of_row(row, settings));
    for (index_t j = 0; j < b.length(i); ++j) {
      if (!b.valid(b.at(i, j))) continue;
      at_valid.push_back(expected.back().advantages[static_cast<std::size_t>(j)]);
      largest = std::fmax(largest, std::fabs(at_valid.back()));
    }
  }
  const Whitened w = whitened(e.renorm, at_valid, largest);
  constexpr real unit = std::is_same_v<S, float> ? 2.4e-7L : 1e-14L;
  const std::vector<double> a = advantages.now();
  std::vector<double> g;
  if (returns.given) g = returns.now();
  for (index_t i = 0; i < b.rows; ++i) {
    const naive::ReturnsResult& row = expected[static_cast<std::size_t>(i)];
    for (index_t j = 0; j < b.length(i); ++j) {
      const std::size_t k = b.at(i, j), in_row = static_cast<std::size_t>(j);
      const bool valid = b.valid(k);
      const real advantage = valid ? w.of(row.advantages[in_row]) : 0, error = unit * (1 + largest);
      if (!valid || w.decided) {
        t.compare(
            "advantage of a token", a[k], advantage,
            valid ? w.change(row.advantages[in_row], error) + unit * std::fabs(advantage) : 0);
      }
      if (returns.given) {
        const real wanted = valid ? row.returns[in_row] : 0;
        t.compare("return", g[k], wanted, valid ? unit * (8 + largest + std::fabs(wanted)) : 0);
      }
    }
  }
}

// ---- ValueLoss ----

/// A batch and what its arrays are. S: its scalar.
template <class S>
struct Values : TokenRows {
  Numbers<S> values, old_values, returns;
  AnyColumn<double> row_weights;

  explicit Values(Trial& trial) : TokenRows(trial) {}

  void need_shapes(bool with_values) {
    if (with_values) {
      shape_from(values);
      t.need(values.shaped, "batch.values");
    }
    need_one_shape(
        [&](const auto& visit) { visit(values), visit(old_values), visit(returns), visit(mask); },
        EmptyArrays::OfAnyShape);
    need_column(row_weights);
  }
  gdpo::ValueBatch<S> make() const {
    gdpo::ValueBatch<S> b;
    b.values = values.view, b.old_values = old_values.view, b.returns = returns.view;
    b.mask = mask.view, b.offsets = offsets.make(), b.row_weights = row_weights.make();
    return b;
  }
  /// The batch as the oracle takes it: padded rows, with mask 0 behind the end of packed ones. A
  /// NaN among the old values makes the loss of its token NaN, if they are read.
  naive_value::Data data(bool reads_old) const {
    naive_value::Data d;
    d.rows = static_cast<int>(rows);
    for (index_t i = 0; i < rows; ++i) d.width = std::max(d.width, static_cast<int>(length(i)));
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < d.width; ++j) {
        const bool inside = j < length(i);
        const std::size_t k = inside ? at(i, j) : 0;
        const auto number = [&](const Numbers<S>& of) {
          return inside && of.given ? of.numbers[k] : 0;
        };
        const bool unknown = reads_old && std::isnan(number(old_values));
        d.values.push_back(unknown ? nan : number(values));
        d.old_values.push_back(number(old_values)), d.returns.push_back(number(returns));
        d.mask.push_back(inside && valid(k));
      }
    }
    if (row_weights.present) d.row_weights = row_weights.numbers;
    return d;
  }
};

/// Settings of an aggregate, and what the oracle calls it. `factor` multiplies its count.
void choose(Trial& t, gdpo::Aggregate& a, naive_value::Settings& s, double& factor, index_t width) {
  using Mode = gdpo::Aggregate::Mode;
  if (a.mode == Mode::TokenMean) return;
  if (a.mode == Mode::SeqMeanTokenMean) {
    s.aggregate = naive_value::Aggregate::RowsTokenMean;
    if (!t.in.chance(128)) return;
    a.over = gdpo::Over::NonEmptyRows;
    s.aggregate = naive_value::Aggregate::NonEmptyRowsTokenMean;
    return;
  }
  s.aggregate = naive_value::Aggregate::RowsTokenSum;
  a.padded_width = t.in.chance(64);
  a.constant = a.padded_width && !t.in.chance(64) ? 0 : setting(t, {8, 0.5});
  const bool of_width = a.padded_width && a.constant == 0;
  t.need(of_width || (a.constant > 0 && std::isfinite(a.constant)), "aggregate.constant");
  factor = of_width ? static_cast<double>(width) : a.constant;
}

template <class S, gdpo::Aggregate::Mode mode, class Exec>
void value_loss(Trial& t) {
  Values<S> b(t);
  b.give_marks();
  b.give_offsets();
  gdpo::ValueLoss<> loss;
  loss.aggregate = {
      mode, mode == gdpo::Aggregate::Mode::TokenMean ? gdpo::Over::Tokens : gdpo::Over::Rows};
  naive_value::Settings settings;
  const bool exact_clip = !t.in.chance(32);
  if (t.in.chance(160)) loss.clip = exact_clip ? setting(t, {0.5, 0, 1, 1e39}) : 0.2;
  loss.half = settings.half = !t.in.chance(64);
  if (t.in.chance(64)) loss.delta = setting(t, {0.5, 1, 4});
  settings.delta = loss.delta;
  t.need(loss.delta > 0, "delta");
  t.need(loss.clip >= 0, "clip");
  settings.clip = loss.clip;
  settings.clips = loss.clip <= static_cast<double>(std::numeric_limits<S>::max());
  if (!t.in.hostile(6)) give_numbers(b, b.values);
  if (settings.clips ? !t.in.hostile(12) : t.in.chance(24)) give_numbers(b, b.old_values);
  if (!t.in.hostile(12)) give_numbers(b, b.returns);
  if (t.in.chance(48)) {
    b.row_weights = b.row_column([&] {
      return t.in.chance(12) ? t.in.pick({nan, infinity}) : t.in.below(4);
    });
  }
  Written<S> gradient;
  if (!t.in.chance(64)) b.give_output(gradient);

  b.need_shapes(true);
  double factor = 1;
  choose(t, loss.aggregate, settings, factor, b.width);
  t.need(!loss.aggregate.reads_width() || !b.offsets.present, "aggregate.padded_width");
  if (t.in.chance(48)) loss.aggregate.count_eps = setting(t, {0.5, 1e-8});
  t.need(at_least_0(loss.aggregate.count_eps), "aggregate.count_eps");
  if (t.in.hostile(12)) loss.aggregate.scale = t.in.pick({nan, infinity, -infinity});
  t.need(std::isfinite(loss.aggregate.scale), "aggregate.scale");
  if (t.well_formed() && b.tokens > 0) {
    t.need(b.returns.given, "batch.returns");
    t.need(b.old_values.given || !settings.clips, "batch.old_values");
  }
  if (gradient.given) t.need(gradient.has_shape_of(b.values), "gradient");
  t.leave_out_if(t.well_formed() && b.too_long());

  naive_value::Data data;
  naive_value::Counts counted;
  if (t.well_formed() && !b.too_long()) {
    data = b.data(settings.clips);
    counted = naive_value::count(data);
    for (std::size_t i = 0; i < data.row_weights.size(); ++i) {
      for (int j = 0; j < data.width; ++j) {
        t.need(data.row_weights[i] >= 0 || !std::isfinite(data.row_weights[i]) ||
                   !data.mask[data.at(static_cast<int>(i), j)],
               "row weights of at least 0");
      }
    }
  }
  const bool any = counted.tokens > 0;
  gdpo::Normalizer n;
  n.tokens = static_cast<double>(counted.tokens), n.rows = static_cast<double>(counted.rows);
  n.non_empty_rows = static_cast<double>(counted.non_empty_rows);
  if (t.in.chance(32)) n.tokens *= 2, n.rows *= 2, n.non_empty_rows += 1;  // of several ranks
  if (t.in.chance(24)) loss.aggregate.over = gdpo::Over::Given, n.given = t.in.below(4);
  if (t.in.hostile(24)) {
    double* const of[] = {&n.tokens, &n.rows, &n.non_empty_rows, &n.given};
    *of[t.in.below(4)] = odd_number(t.in);
  }
  for (const double x : {n.tokens, n.rows, n.non_empty_rows, n.given})
    t.need(at_least_0(x), "a count");
  const gdpo::Over over = loss.aggregate.over;
  const double divides = over == gdpo::Over::Tokens         ? n.tokens
                         : over == gdpo::Over::Rows         ? n.rows
                         : over == gdpo::Over::NonEmptyRows ? n.non_empty_rows
                                                            : n.given;
  t.need(!any || divides > 0, "a count of more than 0");
  const bool short_form = std::is_same_v<Exec, gdpo::Simd> && t.in.chance(64);
  gdpo::ValueLossResult result;
  gdpo::ValueWorkspace<S> workspace;
  if (!t.make_call({"gdpo::ValueLoss", "gdpo::Column"}, [&] {
        result = short_form ? loss(b.make(), n, gradient.make())
                            : loss(Exec{}, b.make(), n, gradient.make(), workspace);
      }))
    return;

  // A row whose weight is 0 or not finite adds nothing.
  bool all_add = true;
  for (std::size_t i = 0; i < data.row_weights.size(); ++i) {
    double& weight = data.row_weights[i];
    if (std::isfinite(weight) && weight != 0) continue;
    weight = 0, all_add = false;
    for (int j = 0; j < data.width; ++j) data.mask[data.at(static_cast<int>(i), j)] = 0;
  }
  naive_value::Counts divisors;
  divisors.tokens = divisors.rows = divisors.non_empty_rows =
      (static_cast<real>(divides) + loss.aggregate.count_eps) * factor;
  const naive_value::Result expected = naive_value::loss(data, settings, divisors);
  constexpr real unit = std::is_same_v<S, float> ? 4e-6L : 1e-12L;
  t.compare("loss", result.loss, expected.loss, unit * (1 + expected.terms));
  t.compare("rows", static_cast<real>(result.metrics.rows), static_cast<real>(b.rows), 0);
  bool decided = true;  // whether no rounding decides which square is the larger one
  for (const real d : expected.distance) decided = decided && (exact_clip || d > 1e-5L);
  if (all_add && !std::isnan(expected.terms)) {
    t.compare("tokens", result.metrics.value.count, counted.tokens, 0);
    real values = 0;
    for (const real v : expected.values) values += v;
    t.compare("values", result.metrics.value.sum, values, unit * (1 + 2 * counted.tokens));
    if (decided) t.compare("clipped", result.metrics.clip_fraction.sum, expected.clipped, 0);
  }
  if (!gradient.given) return;
  const std::vector<double> got = gradient.now();
  real largest = 1;
  for (const real g : expected.gradient) largest = std::fmax(largest, std::fabs(g));
  for (index_t i = 0; i < b.rows; ++i) {
    for (index_t j = 0; j < b.length(i); ++j) {
      const std::size_t k = data.at(static_cast<int>(i), static_cast<int>(j));
      if (!exact_clip && expected.distance[k] <= 1e-5L) continue;
      t.compare("gradient", got[b.at(i, j)], expected.gradient[k],
                data.mask[k] != 0 ? unit * largest : 0);
    }
  }
}

template <class S>
void count_values(Trial& t) {
  Values<S> b(t);
  b.give_marks();
  b.give_offsets();
  if (t.in.chance(96)) give_numbers(b, b.values);
  if (t.in.chance(32)) give_numbers(b, b.old_values);
  if (t.in.chance(32)) give_numbers(b, b.returns);
  if (t.in.chance(64)) b.row_weights = b.row_column([&] { return t.in.number(); });
  b.need_shapes(false);
  // Offsets alone may say that there are many tokens: none of them is looked at.
  t.leave_out_if(t.well_formed() && (b.large || b.rows > most_work));
  gdpo::Normalizer n;
  if (!t.make_call({"gdpo::count", "gdpo::Column"}, [&] { n = gdpo::count(b.make()); })) return;
  b.compare_counts(n);
}

}  // namespace

const std::vector<Case>& value_cases() {
  using gdpo::Seq, gdpo::Simd, gdpo::kl::K1, gdpo::kl::K3;
  constexpr auto None = gdpo::RenormOver::None, Tokens = gdpo::RenormOver::Tokens;
  using gdpo::returns::Gae, gdpo::returns::RewardToGo;
  using Mode = gdpo::Aggregate::Mode;
  constexpr const char* returns = "advantages_and_returns";
  static const std::vector<Case> cases{
      {returns, advantages_and_returns<double, Gae, K1, None, Seq>},
      {returns, advantages_and_returns<float, Gae, K1, Tokens, Simd>},
      {returns, advantages_and_returns<double, RewardToGo, K3, Tokens, Seq>},
      {returns, advantages_and_returns<float, RewardToGo, K1, None, Simd>},
      {"ValueLoss", value_loss<float, Mode::TokenMean, Simd>},
      {"ValueLoss", value_loss<double, Mode::SeqMeanTokenMean, Seq>},
      {"ValueLoss", value_loss<double, Mode::SeqMeanTokenSumNorm, Simd>},
      {"count", count_values<float>}};
  return cases;
}

}  // namespace fuzz
