// Calls of an update that take arrays of numbers or results: shape_rewards, clip_grad_norm, polyak
// and Step.
#include <gdpo/update/clip_grad_norm.hpp>
#include <gdpo/update/polyak.hpp>
#include <gdpo/update/shape_rewards.hpp>
#include <gdpo/update/step.hpp>

#include "fuzz/trial.hpp"

namespace fuzz {
namespace {

using Numbers = std::vector<double>;

real as_real(double x) { return static_cast<real>(x); }
/// One unit in the last place of 1, and the least number above 0, of a type of elements.
template <class T>
constexpr double unit = std::numeric_limits<T>::epsilon();
template <>
constexpr double unit<gdpo::BFloat16> = 0x1p-7;
template <>
constexpr double unit<gdpo::Float16> = 0x1p-10;
template <class T>
constexpr double least = std::numeric_limits<T>::denorm_min();
template <>
constexpr double least<gdpo::BFloat16> = 0x1p-133;
template <>
constexpr double least<gdpo::Float16> = 0x1p-24;

// ---- shape_rewards ----

namespace shaping = gdpo::update::shaping;

/// A setting: one of the usual ones, or an odd one where it may be wrong.
double setting(Trial& t, std::initializer_list<double> usual) {
  return t.in.hostile(10) ? odd_number(t.in) : t.in.pick(usual);
}
bool at_least_0(double x) { return x >= 0 && std::isfinite(x); }

// Each makes a rule, and says what it needs.
void choose(Trial& t, shaping::Clip& rule) {
  rule.min = setting(t, {-1.0, -infinity, 0.25}), rule.max = setting(t, {0.25, infinity, 1.0});
  t.need(rule.min <= rule.max, "bounds in order");
}
void choose(Trial& t, shaping::Affine& rule) {
  rule.scale = setting(t, {2.0, 0.0, -0.5}), rule.offset = setting(t, {0.0, 1.5});
  t.need(std::isfinite(rule.scale) && std::isfinite(rule.offset), "a finite line");
}
void choose(Trial& t, shaping::SoftOverlong& rule) {
  rule.max_length = setting(t, {6.0, 8.0}), rule.buffer = setting(t, {4.0, 2.0});
  rule.penalty = setting(t, {1.0, 0.0, 0.5}), rule.clamp = t.in.chance(128);
  t.need(at_least_0(rule.max_length) && at_least_0(rule.penalty), "max_length and penalty");
  t.need(rule.buffer > 0 && rule.buffer <= rule.max_length, "buffer");
}
void choose(Trial& t, shaping::LengthTarget& rule) {
  rule.target = setting(t, {4.0, 0.0}), rule.alpha = setting(t, {0.25, 0.0});
  t.need(at_least_0(rule.target) && at_least_0(rule.alpha), "target and alpha");
}
void choose(Trial& t, shaping::LengthLimit& rule) {
  rule.limit = setting(t, {4.0, 0.0}), rule.alpha = setting(t, {0.25, 0.0});
  rule.delta = setting(t, {0.5, 1.0, 0.0});
  t.need(at_least_0(rule.limit) && at_least_0(rule.alpha), "limit and alpha");
  t.need(rule.delta >= 0 && rule.delta <= 1, "delta");
}
void choose(Trial& t, shaping::LengthAtMost& rule) {
  rule.limit = setting(t, {4.0, 0.0});
  t.need(at_least_0(rule.limit), "limit");
}

// The same rules in plain words. All numbers are multiples of a power of 2, so they are exact.
double shaped(const shaping::Clip& rule, double r, double) {
  return r < rule.min ? rule.min : r > rule.max ? rule.max : r;
}
double shaped(const shaping::Affine& rule, double r, double) {
  return std::fma(rule.scale, r, rule.offset);
}
double shaped(const shaping::SoftOverlong& rule, double r, double n) {
  const double over = n - (rule.max_length - rule.buffer);
  if (over <= 0) return r;
  return r - (rule.clamp && over > rule.buffer ? 1 : over / rule.buffer) * rule.penalty;
}
double shaped(const shaping::LengthTarget& rule, double r, double n) {
  return r - rule.alpha * std::fabs(rule.target - n);
}
double shaped(const shaping::LengthLimit& rule, double r, double n) {
  const double factor = rule.alpha * (rule.limit - n) + rule.delta;
  return r * (factor < 0 ? 0 : factor > 1 ? 1 : factor);
}
double shaped(const shaping::LengthAtMost& rule, double, double n) {
  return n <= rule.limit ? 1 : 0;
}

template <class T, class First, class Second>
void shape_rewards(Trial& t) {
  const index_t prompts = t.in.below(4), completions = t.in.below(4);
  const auto rewards = t.in_place<T, 1>({prompts * completions}, [&] {
    return t.in.chance(24) ? t.in.pick({nan, infinity, -infinity}) : t.in.number();
  });
  const Numbers before = rewards->numbers();
  const index_t rows = rewards->extent(0);
  AnyColumn<double> lengths;
  if (!t.in.chance(24)) {
    const bool odd = t.in.hostile(24);
    lengths = numbers_column(t, prompts, completions, [&] {
      return odd && t.in.chance(64) ? odd_number(t.in) : t.in.below(10);
    });
  }
  First first;
  Second second;
  choose(t, first), choose(t, second);
  const bool read = gdpo::detail::reads_tokens_v<First> || gdpo::detail::reads_tokens_v<Second>;
  t.need(rewards->sound() && !rewards->repeats(), "rewards");
  t.need(rows <= 1 || !rewards->large(), "a stride that is not 0");
  t.need(lengths.fits(rows) && (lengths.present || !read || rows == 0), "lengths");
  for (const double n : lengths.numbers) t.need(at_least_0(n), "counts");
  gdpo::update::ShapedRewards result;
  if (!t.make_call({"gdpo::update::shape_rewards", "gdpo::Column"}, [&] {
        result = gdpo::update::shape_rewards(rewards->view(), lengths.make(), first, second);
      }))
    return;
  const Numbers after = rewards->numbers();
  index_t changed = 0, missing = 0, not_finite = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (std::isnan(before[i])) {
      ++missing;
      t.compare("a missing reward", after[i], as_real(nan), 0);
      continue;
    }
    const double tokens = lengths.present ? lengths.numbers[i] : nan;
    double x = shaped(first, before[i], tokens);
    if (!std::isnan(x)) x = shaped(second, x, tokens);
    if (std::isnan(x)) x = infinity;
    t.compare("reward", after[i], as_real(x), as_real(unit<T> * std::fabs(x)));
    changed += after[i] != before[i], not_finite += std::isinf(after[i]);
  }
  t.compare("changed", static_cast<real>(result.changed), static_cast<real>(changed), 0);
  t.compare("missing", static_cast<real>(result.missing), static_cast<real>(missing), 0);
  t.compare("not_finite", static_cast<real>(result.not_finite), static_cast<real>(not_finite), 0);
}

// ---- lists of arrays ----

/// An array of a list, of any type and rank.
struct Parameter {
  std::function<gdpo::update::ParameterView()> view;
  std::function<Numbers()> now;
  Numbers before;
  int rank = 0;
  index_t extent[3] = {1, 1, 1};
  bool sound = false, writable = true, repeats = false, is_double = false;
  const void* begin = nullptr;  // of an array that has elements
  double unit = 0, least = 0;   // of its type

  bool writes() const { return sound && writable && !repeats; }
};

template <class T, std::size_t Rank>
Parameter parameter_of(Trial& t, const std::array<index_t, Rank>& wanted, bool written) {
  const bool extreme = t.in.chance(24);
  const auto array = t.in_place<T>(wanted, [&] {
    if (extreme && t.in.chance(64))
      return std::is_same_v<T, double> ? t.in.pick({1.5e308, 1e-300, -1e300, infinity, nan})
                                       : t.in.pick({infinity, nan, -infinity});
    return t.in.number();
  });
  Parameter p;
  p.writable = written != t.in.hostile(12);
  const bool writable = p.writable, is_replica = t.in.chance(64);
  p.view = [array, writable, is_replica] {
    const auto v = array->view();
    constexpr int rank = static_cast<int>(Rank);
    const auto made = [&](const auto& of) {
      return is_replica ? gdpo::update::replicated(of) : gdpo::update::ParameterView(of);
    };
    return writable ? made(v) : made(gdpo::View<const T, rank>(v));
  };
  p.now = [array] { return array->numbers(); };
  p.before = p.now();
  p.rank = static_cast<int>(Rank);
  for (std::size_t r = 0; r < Rank; ++r) p.extent[r] = array->extent(r);
  p.sound = array->sound();
  p.writable = p.writable || array->shape.without_elements();
  p.repeats = array->repeats() || (array->large() && !array->shape.without_elements());
  p.is_double = std::is_same_v<gdpo::result_t<T>, double>;
  if (!array->shape.without_elements()) p.begin = array->data;
  p.unit = unit<T>, p.least = least<T>;
  return p;
}
template <std::size_t Rank>
Parameter parameter(Trial& t, const std::array<index_t, Rank>& wanted, bool written) {
  switch (t.in.below(4)) {
    case 0:
      return parameter_of<float>(t, wanted, written);
    case 1:
      return parameter_of<double>(t, wanted, written);
    case 2:
      return parameter_of<gdpo::BFloat16>(t, wanted, written);
    default:
      return parameter_of<gdpo::Float16>(t, wanted, written);
  }
}
Parameter parameter(Trial& t, int rank, const std::array<index_t, 3>& wanted, bool written) {
  switch (rank) {
    case 1:
      return parameter<1>(t, {wanted[0]}, written);
    case 2:
      return parameter<2>(t, {wanted[0], wanted[1]}, written);
    default:
      return parameter<3>(t, wanted, written);
  }
}
std::array<index_t, 3> extents(Trial& t) {
  return {t.in.below(6), 1 + t.in.below(5), 1 + t.in.below(4)};
}
/// The views of a list, and of one array of it again where the list is hostile.
std::vector<gdpo::update::ParameterView> views_of(Trial& t, const std::vector<Parameter>& list,
                                                  bool written) {
  std::vector<gdpo::update::ParameterView> views;
  for (const Parameter& p : list) {
    views.push_back(p.view());
    if (written) t.need(p.writes(), "an array that can be written");
  }
  return views;
}

// ---- clip_grad_norm ----

template <class Exec>
void clip_grad_norm(Trial& t) {
  using namespace gdpo::update;
  std::vector<Parameter> list;
  for (int n = t.in.below(4); n > 0; --n)
    list.push_back(parameter(t, 1 + t.in.below(3), extents(t), true));
  std::vector<ParameterView> views = views_of(t, list, true);
  if (!list.empty() && t.in.hostile(24)) {
    views.push_back(views[0]);
    t.need(list[0].begin == nullptr, "each array once");
  }
  const double max_norm =
      t.in.hostile(16) ? odd_number(t.in) : t.in.pick({1.0, 0.25, 4.0, 0.0, infinity, 1e-10});
  ClipSettings s;
  s.norm = t.in.pick({Norm::Two, Norm::Max, Norm::Two});
  s.on_non_finite = t.in.pick({OnNonFinite::Skip, OnNonFinite::Zero, OnNonFinite::Throw});
  s.eps = t.in.hostile(16) ? odd_number(t.in) : t.in.pick({0.0, 1e-6, 0.5});
  t.need(max_norm >= 0, "max_norm");
  t.need(at_least_0(s.eps), "settings.eps");

  real squares = 0, largest = 0;
  index_t nans = 0, infinities = 0, fault = -1;
  for (std::size_t a = 0; a < list.size(); ++a) {
    for (const double g : list[a].before) {
      if (!std::isfinite(g)) {
        ++(std::isnan(g) ? nans : infinities);
        if (fault < 0) fault = static_cast<index_t>(a);
        continue;
      }
      squares += as_real(g) * as_real(g);
      largest = std::fmax(largest, std::fabs(as_real(g)));
    }
  }
  t.need(fault < 0 || s.on_non_finite != OnNonFinite::Throw, "finite gradients");
  ClippedGradient result;
  if (!t.make_call({"gdpo::update::clip_grad_norm"},
                   [&] { result = gdpo::update::clip_grad_norm(Exec{}, views, max_norm, s); }))
    return;
  const real norm = s.norm == Norm::Max ? largest : std::sqrt(squares);
  real scale = 1;
  const bool clipped = fault < 0 && norm + as_real(s.eps) > as_real(max_norm) &&
                       (max_norm < infinity || norm > as_real(std::numeric_limits<double>::max()));
  if (clipped) scale = as_real(max_norm) / (norm + as_real(s.eps));
  if (fault >= 0 && s.on_non_finite == OnNonFinite::Zero) scale = 0;
  const bool beyond = norm > as_real(std::numeric_limits<double>::max());
  t.compare("norm", result.norm,
            nans > 0                   ? as_real(nan)
            : infinities > 0 || beyond ? as_real(infinity)
                                       : norm,
            norm * 1e-12L);
  t.compare("scale", result.scale, scale, 1e-12L * scale + 0x1p-1074L);
  t.compare("clipped", result.clipped, clipped, 0);
  t.compare("take_step", result.take_step, fault < 0 || s.on_non_finite == OnNonFinite::Zero, 0);
  t.compare("nans", static_cast<real>(result.nans), static_cast<real>(nans), 0);
  t.compare("infinities", static_cast<real>(result.infinities), static_cast<real>(infinities), 0);
  t.compare("fault_array", static_cast<real>(result.fault_array), static_cast<real>(fault), 0);
  t.compare("fault_rank", result.fault_rank, fault < 0 ? -1 : 0, 0);
  t.compare("differing_ranks", result.differing_ranks, 0, 0);
  for (const Parameter& p : list) {
    const Numbers now = p.now();
    for (std::size_t i = 0; i < now.size(); ++i) {
      const real x = as_real(p.before[i]), expected = scale == 0 ? 0 : scale == 1 ? x : scale * x;
      const real tolerance =
          scale == 1 ? 0 : (as_real(p.unit) + 1e-12L) * std::fabs(expected) + as_real(p.least);
      t.compare("gradient", now[i], expected, tolerance);
    }
  }
}

// ---- polyak ----

template <class Exec>
void polyak(Trial& t) {
  const int n = t.in.below(4), others = t.in.hostile(12) ? t.in.below(4) : n;
  std::vector<Parameter> reference, policy;
  for (int k = 0; k < std::max(n, others); ++k) {
    const int rank = 1 + t.in.below(3), other_rank = t.in.hostile(12) ? 1 + t.in.below(3) : rank;
    const auto wanted = extents(t);
    if (k < n) reference.push_back(parameter(t, rank, wanted, true));
    if (k < others) policy.push_back(parameter(t, other_rank, wanted, false));
  }
  auto to = views_of(t, reference, true), from = views_of(t, policy, false);
  if (!to.empty() && !from.empty() && t.in.hostile(24)) {
    to.push_back(to[0]), from.push_back(from[0]);
    t.need(reference[0].begin == nullptr, "each array once");
  }
  const double tau = t.in.hostile(16) ? odd_number(t.in) : t.in.pick({0.5, 1.0, 0.0, 0.0625});
  t.need(tau >= 0 && tau <= 1, "tau");
  t.need(n == others, "lists of the same length");
  for (std::size_t a = 0; a < std::min(reference.size(), policy.size()); ++a) {
    const Parameter &r = reference[a], &p = policy[a];
    t.need(p.sound, "policy");
    t.need(r.rank == p.rank && std::equal(r.extent, r.extent + 3, p.extent), "the same extents");
  }
  if (!t.make_call({"gdpo::update::polyak"}, [&] { gdpo::update::polyak(Exec{}, to, from, tau); }))
    return;
  const auto of_type = [](const Parameter& r, double x) {
    const bool beyond = !r.is_double && std::fabs(x) > 3.5e38;
    return beyond ? as_real(std::copysign(infinity, x)) : as_real(x);
  };
  for (std::size_t a = 0; a < reference.size(); ++a) {
    const Parameter &r = reference[a], &p = policy[a];
    const Numbers now = r.now(), unchanged = p.now();
    for (std::size_t i = 0; i < now.size(); ++i) {
      t.compare("policy", unchanged[i], as_real(p.before[i]), 0);
      const real x = as_real(r.before[i]), y = of_type(r, p.before[i]);
      real expected = x;
      if (tau == 1) expected = y;
      if (tau > 0 && tau < 1 && x != y) {
        const real step = y - x;
        const bool overflows = std::fabs(step) > as_real(std::numeric_limits<double>::max());
        expected = overflows ? x + std::copysign(as_real(infinity), step) : x + as_real(tau) * step;
      }
      t.compare("reference", now[i], expected,
                3 * as_real(r.unit) * std::fmax(std::fabs(x), std::fabs(y)) + as_real(r.least));
    }
  }
}

// ---- Step ----

/// Calls add() and finish() for some micro-batches, with at most one mistake.
void step(Trial& t) {
  enum Mistake {
    None,
    BadNumber,
    Twice,
    OtherCounts,
    OtherNormalizer,
    LeftOut,
    AfterFinish,
    FinishTwice,
    BadGiven,
    LateGiven,
    EarlyReport,
    Mistakes
  };
  const int mistake = t.in.hostile(128) ? t.in.below(Mistakes) : static_cast<int>(None);
  index_t n = t.in.below(4);
  if (t.in.hostile(12)) n = t.in.pick({index_t{-1}, std::numeric_limits<index_t>::min()});
  t.need(n >= 0, "micro_batches");
  std::vector<gdpo::Normalizer> counts;
  gdpo::Normalizer sum;
  for (index_t k = 0; k < n; ++k) {
    gdpo::Normalizer c;
    c.rows = t.in.below(4),
    c.non_empty_rows = c.rows > 0 ? t.in.below(static_cast<int>(c.rows)) : 0;
    c.tokens = c.non_empty_rows > 0 ? c.non_empty_rows + t.in.below(8) : 0;
    counts.push_back(c), sum += c;
  }
  const double given = t.in.chance(64) ? 8 : 0;
  const double bad_given = t.in.pick({0.0, -1.0, nan, infinity});
  const index_t odd = odd_extent(t.in, std::max<index_t>(n, 0));
  // Some are none without micro-batches, or without rows in them.
  const bool harmless =
      mistake == None || (mistake == OtherNormalizer && sum.rows == 0) ||
      (mistake == LeftOut && (n <= 0 || counts[0].rows == 0)) ||
      ((mistake == Twice || mistake == OtherCounts || mistake == LateGiven) && n <= 0);
  t.need(harmless, "what Step needs");
  gdpo::LossResult total;
  if (!t.make_call({"gdpo::update::Step", "gdpo::update::Step::add", "gdpo::update::Step::finish",
                    "gdpo::update::Step::set_given", "gdpo::update::Step::report"},
                   [&] {
                     auto step = gdpo::update::Step(
                         n, [&](index_t k) { return counts[static_cast<std::size_t>(k)]; });
                     if (given > 0) step.set_given(given);
                     if (mistake == BadGiven) step.set_given(bad_given);
                     const auto add = [&](index_t k) {
                       gdpo::Normalizer c;
                       if (k >= 0 && k < n) c = counts[static_cast<std::size_t>(k)];
                       gdpo::LossResult r;
                       r.normalizer = step.normalizer();
                       if (mistake == OtherNormalizer) r.normalizer.tokens += 1;
                       r.loss = static_cast<double>(k);
                       r.metrics.rows = static_cast<index_t>(c.rows);
                       r.metrics.empty_rows = static_cast<index_t>(c.rows - c.non_empty_rows);
                       r.metrics.advantage.n = static_cast<index_t>(c.tokens);
                       if (mistake == OtherCounts) ++r.metrics.rows;
                       step.add(k, r);
                     };
                     if (mistake == BadNumber) add(odd);
                     for (index_t k = n; k-- > 0;)
                       if (k > 0 || mistake != LeftOut) add(k);
                     if (mistake == Twice && n > 0) add(n - 1);
                     if (mistake == LateGiven) step.set_given(1);
                     if (mistake == EarlyReport) step.report();
                     total = step.finish();
                     if (mistake == AfterFinish) add(0);
                     if (mistake == FinishTwice) step.finish();
                     step.report();
                   }))
    return;
  t.compare("tokens", total.normalizer.tokens, as_real(sum.tokens), 0);
  t.compare("rows", total.normalizer.rows, as_real(sum.rows), 0);
  t.compare("given", total.normalizer.given, as_real(mistake == LateGiven ? 1 : given), 0);
  t.compare("rows seen", static_cast<real>(total.metrics.rows), as_real(sum.rows), 0);
  t.compare("tokens seen", static_cast<real>(total.metrics.advantage.n), as_real(sum.tokens), 0);
}

}  // namespace

const std::vector<Case>& update_cases() {
  using gdpo::Seq, gdpo::Simd;
  static const std::vector<Case> cases{
      {"shape_rewards", shape_rewards<float, shaping::Clip, shaping::SoftOverlong>},
      {"shape_rewards", shape_rewards<double, shaping::LengthLimit, shaping::Affine>},
      {"shape_rewards",
       shape_rewards<gdpo::BFloat16, shaping::LengthTarget, shaping::LengthAtMost>},
      {"clip_grad_norm", clip_grad_norm<Simd>},
      {"clip_grad_norm", clip_grad_norm<Seq>},
      {"polyak", polyak<Simd>},
      {"polyak", polyak<Seq>},
      {"Step", step}};
  return cases;
}

}  // namespace fuzz
