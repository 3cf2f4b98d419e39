// Calls whose arguments are arrays: masked statistics, advantages of tokens, columns, measurements
// and controllers.
#include <gdpo/advantage/broadcast.hpp>
#include <gdpo/advantage/whiten.hpp>
#include <gdpo/constraint/pid.hpp>
#include <gdpo/constraint/placement.hpp>
#include <gdpo/constraint/shortfall.hpp>
#include <gdpo/value/token_penalty.hpp>

#include "fuzz/trial.hpp"

namespace fuzz {
namespace {

template <class T, int Rank>
std::array<index_t, static_cast<std::size_t>(Rank)> some_extents(Input& in) {
  std::array<index_t, static_cast<std::size_t>(Rank)> extent{};
  for (index_t& e : extent) e = in.below(6);
  return extent;
}

/// Values and a mask of M, which may be absent.
template <class T, class M, int Rank>
struct Masked {
  Array<T, Rank> values;
  Array<M, Rank> mask;

  explicit Masked(Trial& t) : Masked(t, some_extents<T, Rank>(t.in)) {}
  template <class Extents>
  Masked(Trial& t, const Extents& extents)
      : values(t.filled<T>(extents,
                           [&t] {
                             const bool gap = std::is_floating_point_v<T> && t.in.chance(3);
                             return gap ? nan : t.in.number();
                           })),
        mask(t.filled<M>(extents, [&t] { return t.in.below(4) < 3; })) {
    if (t.in.below(4) == 3) mask.data = nullptr;
    t.need(values.sound(), "values");
    t.need(mask.absent() || (mask.sound() && same_shape(mask, values)), "mask");
    t.leave_out_if(t.well_formed() && (values.large() || mask.large()));
  }
  bool counts(std::size_t i, const std::vector<double>& flags) const {
    return mask.absent() || flags[i] != 0;
  }
  /// The values that count, of row `row` only unless it is -1.
  std::vector<real> counted(index_t row = -1) const {
    const std::vector<double> all = values.numbers(), flags = mask.numbers();
    const index_t width = values.extent(static_cast<std::size_t>(Rank - 1));
    std::vector<real> x;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (row >= 0 && static_cast<index_t>(i) / width != row) continue;
      if (counts(i, flags)) x.push_back(static_cast<real>(all[i]));
    }
    return x;
  }
};
real sum(const std::vector<real>& x) {
  real s = 0;
  for (const real v : x) s += v;
  return s;
}
real mean(const std::vector<real>& x, double count_eps) {
  return x.empty() ? 0 : sum(x) / (static_cast<real>(x.size()) + static_cast<real>(count_eps));
}
/// The mean and the variance that whiten_into and masked_variance document.
struct Spread {
  real mean = 0, variance = 0;
  bool known = false;
  Spread(const std::vector<real>& x, int ddof, double count_eps) : mean(fuzz::mean(x, count_eps)) {
    const real n = static_cast<real>(x.size()), count = n + static_cast<real>(count_eps);
    known = n > ddof;
    if (!known) return;
    for (const real v : x) variance += (v - mean) * (v - mean) / count * (n / (n - ddof));
  }
};
constexpr real close = 1e-13L;  // some dozen roundings of sums of up to 25 values of order 2

double eps_of(Trial& t, const char* what) {
  const double eps = t.in.hostile(16) ? odd_number(t.in) : t.in.pick({0.0, 1e-8, 0.5});
  t.need(eps >= 0 && std::isfinite(eps), what);
  return eps;
}
int ddof_of(Trial& t) {
  const int ddof =
      t.in.hostile(16) ? t.in.pick({-1, std::numeric_limits<int>::min()}) : t.in.below(3);
  t.need(ddof >= 0, "ddof");
  return ddof;
}

void masked_mean(Trial& t) {
  const Masked<double, unsigned char, 1> m(t);
  const double eps = eps_of(t, "count_eps");
  double result = 0;
  if (t.make_call({"gdpo::masked_mean"},
                  [&] { result = gdpo::masked_mean(m.values.view(), m.mask.view(), eps); }))
    t.compare("mean", result, mean(m.counted(), eps), close);
}
void masked_mean_over(Trial& t) {
  const Masked<float, int, 2> m(t);
  const double over = t.in.hostile(24) ? odd_number(t.in) : t.in.pick({1.0, 8.0, 1e-3});
  t.need(over > 0 && std::isfinite(over), "denominator");
  double result = 0;
  if (t.make_call({"gdpo::masked_mean_over"},
                  [&] { result = gdpo::masked_mean_over(m.values.view(), m.mask.view(), over); }))
    t.compare("mean", result, sum(m.counted()) / static_cast<real>(over), 1000 * close);
}
void masked_row_means(Trial& t) {
  const Masked<int, unsigned char, 2> m(t);
  const double eps = eps_of(t, "count_eps");
  std::vector<double> result;
  if (!t.make_call({"gdpo::masked_row_means"},
                   [&] { result = gdpo::masked_row_means(m.values.view(), m.mask.view(), eps); }))
    return;
  t.compare("rows", static_cast<real>(result.size()), static_cast<real>(m.values.extent(0)), 0);
  for (std::size_t i = 0; i < result.size(); ++i)
    t.compare("mean of a row", result[i], mean(m.counted(static_cast<index_t>(i)), eps), close);
}
void masked_row_mean(Trial& t) {
  const Masked<double, float, 2> m(t);
  double result = 0;
  if (!t.make_call({"gdpo::masked_row_mean"},
                   [&] { result = gdpo::masked_row_mean(m.values.view(), m.mask.view()); }))
    return;
  std::vector<real> means;
  for (index_t i = 0; i < m.values.extent(0); ++i) means.push_back(mean(m.counted(i), 0));
  t.compare("mean", result, mean(means, 0), close);
}
void masked_moments(Trial& t) {
  const Masked<float, unsigned char, 2> m(t);
  gdpo::Moments result;
  if (!t.make_call({"gdpo::masked_moments"},
                   [&] { result = gdpo::masked_moments(m.values.view(), m.mask.view()); }))
    return;
  const std::vector<real> x = m.counted();
  const Spread spread(x, 0, 0);
  t.compare("n", static_cast<real>(result.n), static_cast<real>(x.size()), 0);
  t.compare("mean", result.mean, spread.mean, close);
  t.compare("m2", result.m2, spread.variance * static_cast<real>(x.size()), 100 * close);
}
void masked_variance(Trial& t) {
  const Masked<double, int, 1> m(t);
  const int ddof = ddof_of(t);
  const double eps = eps_of(t, "count_eps");
  double result = 0;
  if (t.make_call({"gdpo::masked_variance"}, [&] {
        result = gdpo::masked_variance(m.values.view(), m.mask.view(), ddof, eps);
      })) {
    const Spread spread(m.counted(), ddof, eps);
    // A NaN shows in the variance even where too few values count for one.
    t.compare("variance", result, std::isnan(spread.mean) ? spread.mean : spread.variance,
              100 * close);
  }
}
void whiten_into(Trial& t) {
  const auto extents = some_extents<double, 2>(t.in);
  const Masked<double, unsigned char, 2> m(t, extents);
  gdpo::Renorm renorm = gdpo::renorm::token_weighted_batch();
  renorm.ddof = ddof_of(t);
  renorm.count_eps = eps_of(t, "renorm.count_eps");
  renorm.keep_mean = t.in.chance(64);
  const auto out = t.output<float>(extents);
  t.need(out->sound() && same_shape(*out, m.values), "out");
  if (!t.make_call({"gdpo::whiten_into"},
                   [&] { gdpo::whiten_into(m.values.view(), m.mask.view(), renorm, out->view()); }))
    return;
  const Spread spread(m.counted(), renorm.ddof, renorm.count_eps);
  const std::vector<double> x = m.values.numbers(), flags = m.mask.numbers(), y = out->numbers();
  const real factor = spread.known ? 1 / std::sqrt(spread.variance + 1e-8L) : 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    real expected = 0;
    if (m.counts(i, flags)) {
      const real d = static_cast<real>(x[i]) - spread.mean;
      // A NaN that counts makes all of them NaN.
      expected = std::isnan(spread.mean) ? spread.mean : d == 0 ? 0 : d * factor;
      if (renorm.keep_mean) expected += spread.mean;
    }
    t.compare("whitened", y[i], expected, 1e-6L * (1 + std::fabs(expected)));
  }
}

void broadcast_into(Trial& t) {
  const index_t rows = t.in.below(5), width = t.in.below(5);
  const auto advantages = t.input<float, 1>({rows});
  const auto mask = t.filled<int, 2>({rows, width}, [&] { return t.in.below(3); });
  const auto out = t.output<double, 2>({rows, width});
  t.need(advantages.sound(), "advantages");
  t.need(mask.sound() && mask.extent(0) == advantages.extent(0), "mask");
  t.need(out->sound() && same_shape(*out, mask), "out");
  t.leave_out_if(t.well_formed() && (mask.large() || advantages.large()));
  if (!t.make_call({"gdpo::broadcast_into"},
                   [&] { gdpo::broadcast_into(advantages.view(), mask.view(), out->view()); }))
    return;
  const std::vector<double> a = advantages.numbers(), flags = mask.numbers(), y = out->numbers();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto row = i / static_cast<std::size_t>(mask.extent(1));
    t.compare("advantage of a token", y[i], flags[i] != 0 ? a[row] : 0, 0);
  }
}
void token_advantages_into(Trial& t) {
  const index_t rows = t.in.below(5), width = t.in.below(5);
  const auto advantages = t.input<double, 1>({rows});
  const auto logp = t.input<float, 2>({rows, width});
  const auto ref_logp = t.input<double, 2>({rows, width});
  auto mask = t.filled<unsigned char, 2>({rows, width}, [&] { return t.in.below(4) < 3; });
  if (t.in.chance(64)) mask.data = nullptr;
  const auto out = t.output<double, 2>({rows, width});
  const gdpo::penalty::Token<> penalty{t.in.hostile(16) ? odd_number(t.in)
                                                        : t.in.pick({0.0, 0.5, -2.0})};
  t.need(std::isfinite(penalty.coef), "penalty.coef");
  t.need(advantages.sound(), "advantages");
  t.need(out->sound() && out->extent(0) == advantages.extent(0), "out");
  t.need(mask.absent() || (mask.sound() && same_shape(mask, *out)), "mask");
  const bool read = penalty.coef != 0 && !out->shape.without_elements();
  const auto check = [&](const auto& tokens, const char* name) {
    t.need(tokens.absent() ? !read : tokens.sound() && same_shape(tokens, *out), name);
  };
  check(logp, "logp"), check(ref_logp, "ref_logp");
  t.leave_out_if(t.well_formed() && (out->large() || advantages.large()));
  if (!t.make_call({"gdpo::token_advantages_into"}, [&] {
        gdpo::token_advantages_into(advantages.view(), mask.view(), logp.view(), ref_logp.view(),
                                    penalty, out->view());
      }))
    return;
  const std::vector<double> a = advantages.numbers(), flags = mask.numbers(), y = out->numbers(),
                            p = logp.numbers(), r = ref_logp.numbers();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto row = i / static_cast<std::size_t>(out->extent(1));
    const double kl = read ? penalty.coef * (p[i] - r[i]) : 0;
    t.compare("advantage of a token", y[i], mask.absent() || flags[i] != 0 ? a[row] - kl : 0, 0);
  }
}

void column(Trial& t) {
  const index_t rows = t.in.below(5), columns = 1 + t.in.below(4);
  const auto array = t.input<float, 2>({rows, columns});
  const index_t c =
      t.in.hostile(72) ? odd_extent(t.in, columns - 1) : t.in.below(static_cast<int>(columns));
  t.need(c >= 0 && c < array.extent(1), "c");
  gdpo::View<float, 1> result;
  if (!t.make_call({"gdpo::column"}, [&] { result = gdpo::column(array.view(), c); })) return;
  t.compare("extent", static_cast<real>(result.extent[0]), static_cast<real>(array.extent(0)), 0);
  t.compare("null", !result.data, array.absent(), 0);
  const std::vector<double> x = array.numbers();
  for (index_t i = 0; array.readable() && i < array.extent(0); ++i)
    t.compare("element", result(i), x[static_cast<std::size_t>(i * array.extent(1) + c)], 0);
}

void measure(Trial& t) {
  const index_t prompts = t.in.below(4), completions = t.in.below(4);
  const auto values = t.filled<float, 1>({prompts * completions},
                                         [&] { return t.in.chance(32) ? nan : t.in.number(); });
  AnyColumn<double> valid;
  if (t.in.chance(128))
    valid = numbers_column(t, prompts, completions, [&] { return t.in.below(3); });
  gdpo::SetPoint point{t.in.hostile(16) ? odd_number(t.in) : t.in.number(),
                       t.in.hostile(16) ? odd_number(t.in) : 0.5,
                       t.in.pick({gdpo::Bound::AtLeast, gdpo::Bound::AtMost})};
  t.need(std::isfinite(point.limit), "set_point.limit");
  t.need(point.scale > 0 && std::isfinite(point.scale), "set_point.scale");
  t.need(values.sound(), "values");
  t.need(valid.fits(values.extent(0)), "valid");
  t.leave_out_if(t.well_formed() && values.large());
  gdpo::ConstraintMetrics m;
  if (!t.make_call({"gdpo::measure", "gdpo::Column"},
                   [&] { m = gdpo::measure(values.view(), point, valid.make()); }))
    return;
  real count = 0, total = 0, hinges = 0, beyond = 0, largest = 0, missing = 0;
  const std::vector<double> x = values.numbers();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || (valid.present && valid.numbers[i] == 0)) {
      ++missing;
      continue;
    }
    const real by = static_cast<real>(point.bound == gdpo::Bound::AtMost ? x[i] - point.limit
                                                                         : point.limit - x[i]);
    ++count, total += static_cast<real>(x[i]);
    if (by > 0) ++beyond, hinges += by, largest = std::fmax(largest, by);
  }
  t.compare("count", m.count, count, 0), t.compare("sum", m.sum, total, 0);
  t.compare("violation_sum", m.violation_sum, hinges, 0),
      t.compare("violated", m.violated, beyond, 0);
  t.compare("largest", m.largest, largest, 0), t.compare("missing", m.missing, missing, 0);
}

void mix_into(Trial& t) {
  const index_t rows = t.in.below(5), m = t.in.below(4);
  const auto reward = t.input<double, 1>({rows});
  const auto cost = t.input<float, 2>({m, rows});
  const bool odd = t.in.hostile(32), zero = t.in.chance(48);
  const auto lambda = t.filled<double, 1>({m}, [&] {
    return odd && t.in.chance(128) ? odd_number(t.in) : zero ? 0.0 : 0.25 * t.in.below(9);
  });
  const auto norm =
      t.in.pick({gdpo::LambdaNorm::None, gdpo::LambdaNorm::Sum, gdpo::LambdaNorm::Diff});
  const auto out = t.output<double, 1>({rows});
  const index_t n = out->extent(0);
  t.need(out->sound(), "out");
  t.need(reward.sound() && reward.extent(0) == n, "reward_advantages");
  t.need(lambda.sound(), "lambda");
  t.need(cost.shape.sound() && cost.extent(0) == lambda.extent(0) &&
             (cost.extent(0) == 0 || cost.extent(1) == n),
         "cost_advantages");
  real total = 0;
  for (const double l : lambda.numbers()) {
    t.need(l >= 0 && std::isfinite(l), "multipliers");
    total += static_cast<real>(l);
  }
  t.need(!(total > 0) || cost.sound(), "cost_advantages are read");
  t.leave_out_if(t.well_formed() && (out->large() || cost.large()));
  if (!t.make_call({"gdpo::mix_into"}, [&] {
        const auto multipliers = lambda.view();
        gdpo::mix_into(reward.view(), cost.view(), gdpo::View<const double, 1>(multipliers), norm,
                       out->view());
      }))
    return;
  const std::vector<double> a = reward.numbers(), c = cost.numbers(), l = lambda.numbers(),
                            y = out->numbers();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const real weight = norm == gdpo::LambdaNorm::Diff ? std::fmax(0.0L, 1 - total) : 1.0L;
    real expected = weight * static_cast<real>(a[i]);
    for (std::size_t k = 0; k < l.size(); ++k) {
      if (l[k] > 0) expected -= static_cast<real>(l[k]) * static_cast<real>(c[k * y.size() + i]);
    }
    if (norm == gdpo::LambdaNorm::Sum) expected /= 1 + total;
    t.compare("mixed", y[i], expected, close);
  }
}

/// An update must do what the same update from a vector does, or nothing at all.
template <class Entry, class Value>
void update(Trial& t, const Value& value) {
  const index_t m = 1 + t.in.below(3);
  gdpo::PidLagrangian pid(gdpo::PidGains{}, m), same = pid;
  const gdpo::PidLagrangian before = pid;
  const auto made = t.filled<index_t, 1>({m}, [&] { return 0; });  // extents and strides
  Array<Entry, 1> entries;
  entries.shape.extent = made.shape.extent, entries.stride = made.stride;
  entries.size = made.size;
  entries.block.reset(new Entry[entries.size]());
  if (!made.absent()) entries.data = entries.block.get() + (made.data - made.block.get());
  t.need(entries.extent(0) == m, "one entry for each constraint");
  t.need(entries.sound(), "values");
  std::vector<Entry> all;
  entries.each([&](Entry& entry, index_t) { entry = value(); });
  entries.each([&](Entry& entry, index_t) { all.push_back(entry); });
  if constexpr (std::is_same_v<Entry, gdpo::SumCount>) {
    for (const gdpo::SumCount& s : all) t.need(!(s.count < 0), "a count of at least 0");
  }
  const bool computed = t.make_call({"gdpo::PidLagrangian::update"}, [&] {
    const auto view = entries.view();
    pid.update(gdpo::View<const Entry, 1>(view));
  });
  if (computed) same.update(all);
  const gdpo::PidLagrangian& expected = computed ? same : before;
  for (index_t c = 0; c < m; ++c) {
    const auto k = static_cast<std::size_t>(c);
    t.compare("lambda", pid.lambda(c), expected.lambda(c), 0);
    t.compare("integral", pid.state().integral[k], expected.state().integral[k], 0);
    t.compare("held", static_cast<real>(pid.state().held[k]),
              static_cast<real>(expected.state().held[k]), 0);
  }
}
void update_means(Trial& t) {
  update<double>(t, [&] { return t.in.chance(16) ? odd_number(t.in) : t.in.number(); });
}
void update_sums(Trial& t) {
  update<gdpo::SumCount>(t, [&] {
    const double count = t.in.hostile(48) ? odd_number(t.in) : t.in.below(4);
    return gdpo::SumCount{t.in.number(), count};
  });
}

}  // namespace

const std::vector<Case>& array_cases() {
  static const std::vector<Case> cases{{"masked_mean", masked_mean},
                                       {"masked_mean_over", masked_mean_over},
                                       {"masked_row_means", masked_row_means},
                                       {"masked_row_mean", masked_row_mean},
                                       {"masked_moments", masked_moments},
                                       {"masked_variance", masked_variance},
                                       {"whiten_into", whiten_into},
                                       {"broadcast_into", broadcast_into},
                                       {"token_advantages_into", token_advantages_into},
                                       {"column", column},
                                       {"measure", measure},
                                       {"mix_into", mix_into},
                                       {"PidLagrangian::update of means", update_means},
                                       {"PidLagrangian::update of sums", update_sums}};
  return cases;
}

}  // namespace fuzz
