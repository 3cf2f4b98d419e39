// labels: lanes
// The pre-passes that need a whole row or the whole batch, compared with their formulas in long
// double over random batches: rows of any length with holes, padded and packed, float and double,
// with NaN and infinities among the tokens, and nonsense where the mask is 0. And proximal_logp.
#include <cstdint>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/skyrl.hpp>
#include <gdpo/presets/verl.hpp>
#include <limits>
#include <numeric>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace batch_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::Reach;
using prepass::Covariance, prepass::CovarianceKeep, prepass::CovariancePick, prepass::FutureKl,
    prepass::SecondMoment, prepass::TeacherPrefix, prepass::TeacherRatio;
using real = long double;
using Numbers = std::vector<double>;

constexpr double nan_ = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();
constexpr real unit = 0x1p-53L;

// ---- batches ----

/// A random batch of rows x width tokens. Row i is valid nowhere from lengths[i] on.
struct Data {
  int rows = 0, width = 0;
  Numbers logp, old, rollout, token_advantages;  // per token; old and rollout may be empty
  Numbers teacher;                               // per token
  Numbers advantages;                            // per row, where token_advantages is empty
  std::vector<int> mask, lengths;

  std::size_t at(int i, int t) const { return static_cast<std::size_t>(i * width + t); }
  real advantage(std::size_t k) const {
    return token_advantages.empty() ? advantages[k / static_cast<std::size_t>(width)]
                                    : token_advantages[k];
  }
  real old_logp(std::size_t k) const { return old.empty() ? logp[k] : old[k]; }
  /// The valid tokens, row by row.
  std::vector<std::size_t> valid() const {
    std::vector<std::size_t> places;
    for (std::size_t k = 0; k < mask.size(); ++k) {
      if (mask[k]) places.push_back(k);
    }
    return places;
  }
};

/// Other numbers at every masked position.
void scramble(Random& random, Data& d) {
  for (Numbers* array : {&d.logp, &d.old, &d.rollout, &d.token_advantages, &d.teacher}) {
    for (std::size_t k = 0; k < array->size(); ++k) {
      if (!d.mask[k]) (*array)[k] = random.pick({nan_, inf, -inf, 1e30, 0.0, -1.0});
    }
  }
}

/// With `single`, numbers are exact in float; `coarse` ones have many ties; `wild` is the share
/// of tokens at which a number is NaN or infinite.
Data random_data(Random& random, bool single, bool coarse, double wild) {
  Data d;
  d.rows = random.pick({1, 2, 4, 6}), d.width = random.pick({1, 4, 9, 17});
  const auto stored = [&](double x) {
    if (coarse) x = std::round(8 * x) / 8;
    return single ? static_cast<double>(static_cast<float>(x)) : x;
  };
  const double spread = random.pick({0.1, 1.0});
  const bool old = random.chance(0.85), per_token = random.chance(0.5);
  const auto odd = [&](double x) {
    return random.chance(wild) ? random.pick({nan_, -inf, inf}) : x;
  };
  const auto advantage = [&] { return odd(stored(4 * random.uniform() - 2)); };
  for (int i = 0; i < d.rows; ++i) {
    d.lengths.push_back(random.chance(0.5) ? d.width : random.below(d.width + 1));
    const double p = random.pick({0.0, 0.6, 0.8, 1.0, 1.0});
    for (int t = 0; t < d.width; ++t) {
      d.mask.push_back(t < d.lengths.back() && random.chance(p));
      const double x = stored(2 * std::log(random.uniform() + 0.01));
      const double before = old ? stored(x + spread * (2 * random.uniform() - 1)) : x;
      d.logp.push_back(odd(x));
      if (old) d.old.push_back(odd(before));
      d.rollout.push_back(odd(stored(before + spread * (2 * random.uniform() - 1))));
      d.teacher.push_back(odd(stored(before + spread * (2 * random.uniform() - 1))));
      if (per_token) d.token_advantages.push_back(advantage());
    }
    if (!per_token) d.advantages.push_back(advantage());
  }
  scramble(random, d);
  return d;
}

/// The weights and the mask that prepare() gives, at the places of the padded batch; 1 where the
/// batch has no such array.
struct Prepared {
  Numbers weights, kl_weights, mask;
};

template <class S, class Pass>
Prepared prepare(const Data& d, const Pass& pass, bool packed) {
  std::vector<int> offsets{0};
  for (const int length : d.lengths)
    offsets.push_back(offsets.back() + (packed ? length : d.width));
  const auto length = [&](int i) {
    return offsets[static_cast<std::size_t>(i) + 1] - offsets[static_cast<std::size_t>(i)];
  };
  const auto stored = [&](const auto& from, auto zero) {
    std::vector<decltype(zero)> to;
    for (int i = 0; i < d.rows && !from.empty(); ++i) {
      for (int t = 0; t < length(i); ++t)
        to.push_back(static_cast<decltype(zero)>(from[d.at(i, t)]));
    }
    return to;
  };
  const std::vector<S> logp = stored(d.logp, S()), old = stored(d.old, S()),
                       rollout = stored(d.rollout, S()), teacher = stored(d.teacher, S()),
                       advantages = stored(d.token_advantages, S());
  const std::vector<unsigned char> mask = stored(d.mask, static_cast<unsigned char>(0));
  const auto view = [&](const auto& v) {
    using View = gdpo::TokenView<std::decay_t<decltype(v[0])>>;
    return packed ? View(gdpo::view(v.data(), static_cast<gdpo::index_t>(v.size())))
                  : View(gdpo::view(v.data(), d.rows, d.width));
  };
  gdpo::TokenBatch<S> batch;
  batch.logp = view(logp), batch.teacher_logp = view(teacher), batch.mask = view(mask);
  if (!d.rollout.empty()) batch.rollout_logp = view(rollout);
  if (!d.old.empty()) batch.old_logp = view(old);
  if (!d.token_advantages.empty())
    batch.token_advantages = view(advantages);
  else
    batch.advantages = gdpo::view(d.advantages);
  if (packed) batch.offsets = gdpo::view(offsets);
  gdpo::PrepassMemory<S> memory;
  const gdpo::TokenBatch<S> after = gdpo::prepare(batch, memory, pass);
  const auto read = [&](const auto& v) {
    Numbers numbers(d.mask.size(), 1.0);
    for (int i = 0; i < d.rows && v; ++i) {
      for (int t = 0; t < length(i); ++t)
        numbers[d.at(i, t)] = static_cast<double>(v.at(i, offsets[static_cast<std::size_t>(i)], t));
    }
    return numbers;
  };
  return {read(after.weights), read(after.kl_weights), read(after.mask)};
}

// ---- the formulas ----

/// What a pre-pass decides. `error` is the relative error that is allowed; `unsure` says that some
/// number is too close to a bound to tell on which side it is.
struct Decision {
  std::vector<real> weight;
  real error = 0;
  bool unsure = false;
};

Decision decide(const SecondMoment& pass, const Data& d) {
  Decision decision{std::vector<real>(d.mask.size(), 0)};
  std::vector<std::pair<real, std::size_t>> sorted;
  for (const std::size_t k : d.valid()) {
    const bool none =
        std::isnan(d.rollout[k]) && pass.missing == prepass::MissingRollout::NoDifference;
    const real x = none ? 0 : d.rollout[k] - d.old_logp(k);
    if (!std::isnan(x)) sorted.emplace_back(x * x, k);
  }
  std::sort(sorted.begin(), sorted.end());
  // From all of them, the largest leaves first; of equals the last.
  std::size_t stay = sorted.size();
  const auto mean = [&] {
    real sum = 0;
    for (std::size_t n = 0; n < stay; ++n) sum += sorted[n].first;
    return sum / static_cast<real>(stay);
  };
  for (; stay > 1; --stay) {
    const real m = mean();
    // Each square has two roundings and the sum of n of them n - 1: far below 256 2^-53.
    if (pass.threshold == inf) break;
    decision.unsure =
        decision.unsure || std::fabs(m - pass.threshold) <= 256 * unit * pass.threshold;
    if (m < pass.threshold) break;
  }
  for (std::size_t n = 0; n < stay; ++n) decision.weight[sorted[n].second] = 1;
  // Squares that differ in long double and perhaps not in double.
  if (stay < sorted.size() && stay > 0) {
    const real a = sorted[stay - 1].first, b = sorted[stay].first;
    decision.unsure = decision.unsure || (a != b && std::isfinite(b) && b - a <= 8 * unit * b);
  }
  return decision;
}

/// The numbers of splitmix64 from a seed, one after the other.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

Decision decide(const Covariance& pass, const Data& d) {
  const bool rest = pass.keep == CovarianceKeep::Rest;
  Decision decision{std::vector<real>(d.mask.size(), rest ? 1 : 0)};
  std::vector<std::size_t> tokens;
  SplitMix numbers(static_cast<std::uint64_t>(pass.seed));
  std::vector<std::uint64_t> number(d.mask.size());
  real mean_a = 0, mean_logp = 0, size_a = 0, size_logp = 0;
  for (const std::size_t k : d.valid()) {
    number[k] = numbers.next() >> 11;  // also of a token that does not count
    if (!std::isfinite(d.advantage(k)) || !std::isfinite(d.logp[k])) continue;
    tokens.push_back(k);
    mean_a += d.advantage(k), mean_logp += d.logp[k];
    size_a += std::fabs(d.advantage(k)), size_logp += std::fabs(d.logp[k]);
  }
  const auto n = static_cast<real>(tokens.size());
  mean_a /= n, mean_logp /= n;
  const auto share = static_cast<std::size_t>(pass.share * static_cast<double>(tokens.size()));
  const std::size_t count = std::max<std::size_t>(share, 1);
  const auto c = [&](std::size_t k) { return (d.advantage(k) - mean_a) * (d.logp[k] - mean_logp); };
  // A mean of up to 102 tokens has that many roundings, each relative to the sum of their sizes.
  const real near = 1024 * unit * (1 + size_a) * (1 + size_logp);
  std::vector<std::size_t> candidates;
  for (const std::size_t k : tokens) {
    const real x = d.logp[k] - d.old_logp(k), r = std::exp(x), a = d.advantage(k);
    const bool clipped = (a > 0 && r > 1 + static_cast<real>(pass.high)) ||
                         (a < 0 && r < 1 - static_cast<real>(pass.low));
    if (pass.pick == CovariancePick::Top) {
      candidates.push_back(k);
      continue;
    }
    if (c(k) > pass.min && c(k) < pass.max && !clipped) candidates.push_back(k);
    for (const real bound : {static_cast<real>(pass.min), static_cast<real>(pass.max)})
      decision.unsure = decision.unsure || std::fabs(c(k) - bound) <= near;
    for (const real bound : {1 + static_cast<real>(pass.high), 1 - static_cast<real>(pass.low)})
      decision.unsure = decision.unsure || (a != 0 && std::fabs(r - bound) <= 64 * unit);
  }
  const auto before = [&](std::size_t a, std::size_t b) {
    if (pass.pick == CovariancePick::Between) return number[a] < number[b];
    return c(a) > c(b);
  };
  std::stable_sort(candidates.begin(), candidates.end(), before);
  if (pass.pick == CovariancePick::Top && count < candidates.size()) {
    for (const std::size_t k : candidates) {  // those that may be on either side of the last pick
      const std::size_t last = candidates[count - 1];
      const bool same = d.advantage(k) == d.advantage(last) && d.logp[k] == d.logp[last];
      decision.unsure = decision.unsure || (!same && std::fabs(c(k) - c(last)) <= near);
    }
  }
  for (std::size_t j = 0; j < std::min(count, candidates.size()); ++j)
    decision.weight[candidates[j]] = rest ? 0 : 1;
  return decision;
}

Decision decide(const FutureKl& pass, const Data& d) {
  Decision decision{std::vector<real>(d.mask.size(), 1)};
  for (int i = 0; i < d.rows; ++i) {
    for (int t = 0; t < d.width; ++t) {
      const std::size_t k = d.at(i, t);
      if (!d.mask[k]) continue;
      real sum = 0, size = 0;
      for (int later = t; later < d.width; ++later) {
        const std::size_t s = d.at(i, later);
        if (!d.mask[s]) continue;
        const real x = d.old.empty() ? 0 : d.logp[s] - d.old_logp(s);
        decision.unsure = decision.unsure ||
                          (std::isfinite(x) &&
                           std::fabs(std::exp(x) - pass.drop_above) <= 64 * unit * std::exp(x));
        if (!std::isfinite(x) || std::exp(x) > pass.drop_above) continue;
        const real term = std::pow(static_cast<real>(pass.gamma), later - t) * x;
        sum += term, size += std::fabs(term);
      }
      const real x = d.old.empty() ? 0 : d.logp[k] - d.old_logp(k), r = std::exp(x);
      real w = std::min(std::max(std::exp(sum), static_cast<real>(pass.clip.lo)),
                        static_cast<real>(pass.clip.hi));
      if (d.advantage(k) < 0 && r > pass.safety)
        w = std::min(std::max(w, static_cast<real>(0.8)), static_cast<real>(1));
      decision.unsure =
          decision.unsure || (std::isfinite(r) && std::fabs(r - pass.safety) <= 64 * unit * r);
      decision.weight[k] = w;
      // An error of the sum is a relative error of its exponential: two roundings for each of at
      // most 17 places, and some in exp.
      decision.error = std::max(decision.error, unit * (8 + 64 * size));
    }
  }
  return decision;
}

Decision decide(const TeacherRatio& pass, const Data& d) {
  Decision decision{std::vector<real>(d.mask.size(), 1)};
  const real mix = pass.mix;
  for (const std::size_t k : d.valid()) {
    const real x = static_cast<real>(d.teacher[k]) - d.old_logp(k), a = d.advantage(k);
    if (std::isnan(x) || (pass.negative_only && !(a < 0))) continue;
    const real sign = a > 0 ? 1 : a < 0 ? -1 : 0;
    const real r = sign == 0 ? 1 : std::exp(sign * x);
    const real clipped =
        std::min(std::max(r, static_cast<real>(pass.clip.lo)), static_cast<real>(pass.clip.hi));
    decision.weight[k] = mix == 0 ? 1 : 1 - mix + mix * clipped;
    // exp to two units in the last place, and the roundings of x, 1 - mix and the sum.
    decision.error = 64 * unit;
    decision.unsure = decision.unsure || std::isinf(clipped);
  }
  return decision;
}

Decision decide(const TeacherPrefix& pass, const Data& d) {
  Decision decision{std::vector<real>(d.mask.size(), 1)};
  const auto size = [&](std::size_t k) -> real {
    const real x = static_cast<real>(d.teacher[k]) -
                   (d.rollout.empty() ? d.old_logp(k) : static_cast<real>(d.rollout[k]));
    return d.mask[k] && std::isfinite(x) ? std::fabs(x) : 0;
  };
  for (int i = 0; i < d.rows; ++i) {
    real total = 0, before = 0;
    for (int t = 0; t < d.width; ++t) total += size(d.at(i, t));
    for (int t = 0; t < d.width; ++t) {
      const std::size_t k = d.at(i, t);
      const real share = before / std::max(total, static_cast<real>(pass.eps));
      if (d.mask[k]) decision.weight[k] = 1 + static_cast<real>(pass.gain) * (1 - share);
      before += size(k);
    }
  }
  // Sums of at most 17 sizes, each rounded twice, relative to sums that are at least as large.
  decision.error = 64 * unit * (1 + static_cast<real>(pass.gain));
  return decision;
}

// ---- the comparison ----

int cases = 0, unsure = 0;

/// "" if the library decides as the formula, with the same bits for padded and packed tokens and
/// whatever stands at masked places.
template <class S, class Pass>
std::string wrong(Random& random, const Data& d, Pass pass) {
  const bool mask = pass.reach == Reach::Mask;
  const Prepared got = prepare<S>(d, pass, false), packed = prepare<S>(d, pass, true);
  Data other = d;
  scramble(random, other);
  const Prepared scrambled = prepare<S>(other, pass, false);
  const Decision want = decide(pass, d);
  ++cases, unsure += want.unsure;
  for (std::size_t k = 0; k < d.mask.size(); ++k) {
    const auto at = [&](const char* what, real a, real b) {
      char text[160];
      std::snprintf(text, sizeof text, "%s at %zu: %.17Lg, expected %.17Lg", what, k, a, b);
      return std::string(text);
    };
    if (!d.mask[k]) {
      if (mask && got.mask[k] != 0) return at("mask of a masked token", got.mask[k], 0);
      continue;
    }
    const double u = mask ? got.mask[k] : got.weights[k];
    const double of_packed = mask ? packed.mask[k] : packed.weights[k];
    const double of_scrambled = mask ? scrambled.mask[k] : scrambled.weights[k];
    if (u != of_packed) return at("packed", of_packed, u);
    if (u != of_scrambled) return at("other masked numbers", of_scrambled, u);
    if (want.unsure) continue;
    const real b = want.weight[k];
    const real allowed = want.error + (sizeof(S) == 4 ? 0x1p-24L : 2 * unit);
    if (!(std::fabs(u - b) <= allowed * std::fabs(b))) return at("weight", u, b);
  }
  return "";
}

template <class Body>
void for_each_case(std::uint64_t first_seed, int rounds, const Body& body) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(round);
    Random random(seed);
    const bool single = round % 2 == 0, coarse = random.chance(0.3);
    const Data d = random_data(random, single, coarse, random.chance(0.3) ? 0.1 : 0.0);
    INFO("seed " << seed);
    const std::string text = single ? body(random, d, float{}) : body(random, d, double{});
    CHECK(text == "");
  }
}

SecondMoment random_moment(Random& random) {
  SecondMoment pass;
  pass.threshold = random.pick({1e-9, 0.003, 0.01, 0.1, 0.3, 1.0, inf});
  pass.missing =
      random.pick({prepass::MissingRollout::Drop, prepass::MissingRollout::NoDifference});
  pass.reach = random.pick({Reach::Mask, Reach::Surrogate});
  return pass;
}
Covariance random_covariance(Random& random) {
  Covariance pass;
  pass.pick = random.pick({CovariancePick::Between, CovariancePick::Top});
  pass.keep = random.pick({CovarianceKeep::Rest, CovarianceKeep::Picked});
  pass.share = random.pick({0.0, 2e-4, 0.1, 0.25, 0.5, 1.0, random.uniform()});
  pass.min = random.pick({-inf, -0.37, 0.0107, 0.3});
  pass.max = random.pick({inf, 5.0, 0.91});
  pass.low = random.pick({0.2, 0.05, 1.0, inf}), pass.high = random.pick({0.21, 0.03, inf});
  pass.seed = static_cast<gdpo::index_t>(random.bits() >> random.pick({1, 40, 63}));
  pass.reach = random.pick({Reach::Mask, Reach::Surrogate});
  return pass;
}
FutureKl random_future(Random& random) {
  FutureKl pass;
  pass.gamma = random.pick({0.0, 1.0, 0.5, pass.gamma, random.uniform()});
  pass.clip = random.pick({gdpo::Bounds{1, 1.2}, gdpo::Bounds{0.5, 1.5}, gdpo::Bounds{}});
  pass.drop_above = random.pick({inf, 1.3, 2.1});
  pass.safety = random.pick({inf, 4.0, 1.07, 0.71});
  return pass;
}

TeacherRatio random_teacher_ratio(Random& random) {
  TeacherRatio pass;
  pass.mix = random.pick({0.0, 0.5, 1.0, random.uniform()});
  pass.clip = random.pick({gdpo::Bounds{0.8, 1.2}, gdpo::Bounds{0.3, 3}, gdpo::Bounds{0, inf}});
  pass.negative_only = random.chance(0.3);
  return pass;
}
TeacherPrefix random_teacher_prefix(Random& random) {
  return {random.pick({0.0, 0.5, 3.0, random.uniform()}), random.pick({1e-8, 1e-3, 5.0})};
}

}  // namespace

TEST_CASE("SecondMoment: the largest set of small squares whose mean is below the threshold",
          "[prepass]") {
  for_each_case(1, 1500, [](Random& random, const Data& d, auto s) {
    return wrong<decltype(s)>(random, d, random_moment(random));
  });
}

TEST_CASE("Covariance: both picks, either side kept", "[prepass]") {
  for_each_case(10001, 2500, [](Random& random, const Data& d, auto s) {
    return wrong<decltype(s)>(random, d, random_covariance(random));
  });
}

TEST_CASE("FutureKl: the decayed sum from each token to the end of its row", "[prepass]") {
  for_each_case(20001, 1500, [](Random& random, const Data& d, auto s) {
    return wrong<decltype(s)>(random, d, random_future(random));
  });
}

TEST_CASE("TeacherRatio: the teacher's ratio towards the sign of the advantage", "[prepass]") {
  for_each_case(70001, 1500, [](Random& random, const Data& d, auto s) {
    return wrong<decltype(s)>(random, d, random_teacher_ratio(random));
  });
}

TEST_CASE("TeacherPrefix: the share of the distance before each token", "[prepass]") {
  for_each_case(80001, 1500, [](Random& random, Data d, auto s) {
    if (random.chance(0.3)) d.rollout.clear();
    return wrong<decltype(s)>(random, d, random_teacher_prefix(random));
  });
}

TEST_CASE("TeacherRatio: no advantage changes its sign, and mix 0 changes nothing", "[prepass]") {
  for_each_case(90001, 300, [](Random& random, const Data& d, auto s) -> std::string {
    using S = decltype(s);
    TeacherRatio pass = random_teacher_ratio(random);
    for (const std::size_t k : d.valid())
      if (!(prepare<S>(d, pass, false).weights[k] >= 0)) return "a negative weight";
    pass.mix = 0, pass.clip = {0, inf};
    const Prepared off = prepare<S>(d, pass, false);
    for (const std::size_t k : d.valid())
      if (off.weights[k] != 1) return "mix 0 weighs";
    return "";
  });
}

TEST_CASE("TeacherPrefix: weights fall along a row, from 1 + gain", "[prepass]") {
  for_each_case(100001, 300, [](Random& random, const Data& d, auto s) -> std::string {
    using S = decltype(s);
    const TeacherPrefix pass = random_teacher_prefix(random);
    const Prepared got = prepare<S>(d, pass, true);
    for (int i = 0; i < d.rows; ++i) {
      double last = static_cast<double>(static_cast<S>(1 + pass.gain));
      bool first = true;
      for (int t = 0; t < d.width; ++t) {
        const std::size_t k = d.at(i, t);
        if (!d.mask[k]) continue;
        if (first && got.weights[k] != last) return "the first token has another weight";
        if (!(got.weights[k] <= last)) return "a weight rises";
        if (!(got.weights[k] >= 1 - 64 * static_cast<double>(unit))) return "a weight below 1";
        last = got.weights[k], first = false;
      }
    }
    return "";
  });
}

TEST_CASE("SecondMoment: what stays grows with the threshold, and infinity drops NaN alone",
          "[prepass]") {
  for_each_case(30001, 300, [](Random&, const Data& d, auto s) -> std::string {
    using S = decltype(s);
    Numbers before(d.mask.size(), 0.0);
    for (const double threshold : {1e-9, 1e-3, 0.01, 0.1, 1.0, inf}) {
      SecondMoment pass;
      pass.threshold = threshold;
      const Prepared now = prepare<S>(d, pass, false);
      double tokens = 0, valid = 0;
      for (const std::size_t k : d.valid()) {
        if (now.mask[k] < before[k]) return "a token left as the threshold grew";
        const bool nan = std::isnan(d.rollout[k] - d.old_logp(k));
        if (nan && now.mask[k] != 0) return "a token stays whose square is NaN";
        if (!nan && now.mask[k] == 0 && threshold == inf) return "a token left with no threshold";
        tokens += now.mask[k], valid += !nan;
      }
      if (valid > 0 && tokens == 0) return "no token stayed";
      before = now.mask;
    }
    return "";
  });
}

TEST_CASE("Covariance: Rest and Picked are complements, and the number of picks is right",
          "[prepass]") {
  for_each_case(40001, 500, [](Random& random, const Data& d, auto s) -> std::string {
    using S = decltype(s);
    Covariance pass = random_covariance(random);
    pass.reach = Reach::Surrogate;
    pass.keep = CovarianceKeep::Picked;
    const Prepared picked = prepare<S>(d, pass, false);
    pass.keep = CovarianceKeep::Rest;
    const Prepared rest = prepare<S>(d, pass, false);
    double picks = 0, finite = 0;
    for (const std::size_t k : d.valid()) {
      if (picked.weights[k] + rest.weights[k] != 1) return "no complements";
      picks += picked.weights[k];
      finite += std::isfinite(d.advantage(k)) && std::isfinite(d.logp[k]);
    }
    const double most = std::max(std::floor(pass.share * finite), 1.0);
    if (pass.pick == CovariancePick::Top && picks != std::min(most, finite)) return "other picks";
    return picks > most ? "too many picks" : "";
  });
}

TEST_CASE("Covariance: random picks are even, differ by seed and repeat", "[prepass]") {
  // 20 candidates of 20, 5 picks: over 4000 seeds each is picked 1000 times on average, with a
  // standard deviation of at most 28. 150 is more than five of them.
  Data d;
  d.rows = 2, d.width = 10;
  d.lengths = {10, 10}, d.mask.assign(20, 1), d.advantages = {1, -1};
  for (int k = 0; k < 20; ++k) d.logp.push_back(-0.1 * k);
  d.rollout = d.logp;
  Covariance pass;
  pass.min = -inf, pass.max = inf, pass.share = 0.25, pass.keep = CovarianceKeep::Picked;
  Numbers times(20, 0.0);
  int same_as_before = 0;
  Numbers before;
  for (int seed = 0; seed < 4000; ++seed) {
    pass.seed = seed;
    const Numbers now = prepare<double>(d, pass, false).weights;
    CHECK(std::accumulate(now.begin(), now.end(), 0.0) == 5);
    same_as_before += now == before;
    before = now;
    for (std::size_t k = 0; k < 20; ++k) times[k] += now[k];
  }
  for (const double n : times) CHECK(std::fabs(n - 1000) < 150);
  CHECK(same_as_before < 5);  // by chance 4000 / 15504
  CHECK(prepare<double>(d, pass, true).weights == before);
}

TEST_CASE("a permutation of the rows permutes what the pre-passes of a batch decide", "[prepass]") {
  for_each_case(50001, 600, [](Random& random, const Data& d, auto s) -> std::string {
    using S = decltype(s);
    std::vector<int> order(static_cast<std::size_t>(d.rows));
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order);
    Data moved = d;
    for (int i = 0; i < d.rows; ++i) {
      const int from = order[static_cast<std::size_t>(i)];
      moved.lengths[static_cast<std::size_t>(i)] = d.lengths[static_cast<std::size_t>(from)];
      if (!d.advantages.empty())
        moved.advantages[static_cast<std::size_t>(i)] =
            d.advantages[static_cast<std::size_t>(from)];
      for (int t = 0; t < d.width; ++t) {
        moved.mask[d.at(i, t)] = d.mask[d.at(from, t)];
        for (const auto array :
             {&Data::logp, &Data::old, &Data::rollout, &Data::token_advantages, &Data::teacher})
          if (!(d.*array).empty()) (moved.*array)[d.at(i, t)] = (d.*array)[d.at(from, t)];
      }
    }
    const auto differ = [&](const auto& pass) {
      const Prepared a = prepare<S>(d, pass, false), b = prepare<S>(moved, pass, false);
      for (int i = 0; i < d.rows; ++i) {
        for (int t = 0; t < d.width; ++t) {
          const std::size_t to = d.at(i, t), from = d.at(order[static_cast<std::size_t>(i)], t);
          if (moved.mask[to] && (a.weights[from] != b.weights[to] || a.mask[from] != b.mask[to]))
            return true;
        }
      }
      return false;
    };
    if (differ(random_future(random))) return "FutureKl";
    if (differ(random_teacher_ratio(random))) return "TeacherRatio";
    if (differ(random_teacher_prefix(random))) return "TeacherPrefix";
    // Of equal numbers the first in the batch is picked, so only batches without ties are compared.
    const auto ties = [&](const auto& key) {
      std::vector<real> keys;
      for (const std::size_t k : d.valid()) keys.push_back(key(k));
      std::sort(keys.begin(), keys.end());
      for (std::size_t j = 1; j < keys.size(); ++j) {
        if (!(keys[j] - keys[j - 1] > 1e-9L)) return true;  // NaN too
      }
      return false;
    };
    if (!ties([&](std::size_t k) {
          const real x = d.rollout[k] - d.old_logp(k);
          return x * x;
        }) &&
        differ(random_moment(random)))
      return "SecondMoment";
    Covariance top = random_covariance(random);
    top.pick = CovariancePick::Top;
    const Decision of = decide(top, d);
    if (!of.unsure && !ties([&](std::size_t k) { return d.logp[k]; }) && differ(top))
      return "Covariance";
    return "";
  });
}

TEST_CASE("Reach::Kl: the weights go to the KL terms alone", "[prepass]") {
  for_each_case(60001, 200, [](Random& random, const Data& d, auto s) -> std::string {
    using S = decltype(s);
    const auto check = [&](auto pass) -> std::string {
      pass.reach = Reach::Surrogate;
      const Prepared of_surrogate = prepare<S>(d, pass, false);
      pass.reach = Reach::Kl;
      const Prepared of_kl = prepare<S>(d, pass, false);
      pass.reach = Reach::SurrogateAndKl;
      const Prepared of_both = prepare<S>(d, pass, false);
      for (const std::size_t k : d.valid()) {
        if (of_kl.weights[k] != 1 || of_kl.mask[k] != 1) return "Kl reaches too far";
        if (of_surrogate.kl_weights[k] != 1) return "Surrogate reaches too far";
        if (of_kl.kl_weights[k] != of_surrogate.weights[k]) return "Kl has other weights";
        if (of_both.weights[k] != of_both.kl_weights[k] ||
            of_both.weights[k] != of_surrogate.weights[k])
          return "SurrogateAndKl has other weights";
      }
      return "";
    };
    std::string text = check(random_covariance(random));
    if (text.empty()) text = check(random_future(random));
    if (text.empty()) text = check(random_teacher_ratio(random));
    if (text.empty()) text = check(random_teacher_prefix(random));
    return text.empty() ? check(random_moment(random)) : text;
  });
}

TEST_CASE("Reach::Kl multiplies what the caller had set, and leaves the other weights there",
          "[prepass]") {
  const Numbers logp{-1, -2, -0.5, -3}, old{-1, -1, -1, -1}, advantages{1, -1},
      weights{0.5, 2, 1, 3}, kl_weights{2, 0, 4, 5};
  gdpo::TokenBatch<double> batch;
  batch.logp = gdpo::view(logp.data(), 2, 2), batch.old_logp = gdpo::view(old.data(), 2, 2);
  batch.advantages = gdpo::view(advantages);
  batch.weights = gdpo::view(weights.data(), 2, 2);
  batch.kl_weights = gdpo::view(kl_weights.data(), 2, 2);
  // c = (A - 0) (logp + 1.625) = 0.625, -0.375, -1.125, 1.375
  Covariance pass = gdpo::skyrl::kl_cov;
  pass.share = 0.5;
  gdpo::PrepassMemory<double> memory;
  const auto prepared = gdpo::prepare(batch, memory, pass);
  CHECK(memory.kl_weights == Numbers{2, 0, 0, 5});
  CHECK(prepared.weights.data() == weights.data());
  // KL-Cov: the sum over tokens of -A r, plus |log r| times these weights.
  const gdpo::LossResult loss = gdpo::skyrl::kl_cov_loss(prepared, gdpo::count(prepared));
  CHECK(std::fabs(loss.kl_loss - (2 * 0.0 + 5 * 2.0)) < 1e-14);
  const double surrogate =
      -0.5 * std::exp(0.0) - 2 * std::exp(-1.0) + std::exp(0.5) + 3 * std::exp(-2.0);
  CHECK(std::fabs(loss.policy_loss - surrogate) < 1e-14);
}

// ---- proximal_logp ----

namespace {

real proximal(real logp, real rollout, real version, real current, gdpo::ProximalMethod method) {
  const real alpha =
      version < 0 || version >= current ? 0 : (current - 1 - version) / (current - version);
  if (method == gdpo::ProximalMethod::Rollout) return rollout;
  if (alpha == 0 && method == gdpo::ProximalMethod::LogLinear) return rollout;
  if (alpha == 0) logp = 0;  // any number
  return method == gdpo::ProximalMethod::LogLinear
             ? rollout + alpha * (logp - rollout)
             : std::log((1 - alpha) * std::exp(rollout) + alpha * std::exp(logp) + 1e-10L);
}

}  // namespace

TEST_CASE("proximal_logp: every method, any strides, one rounding", "[prepass]") {
  using Method = gdpo::ProximalMethod;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int rows = 1 + random.below(4), width = 1 + random.below(6), current = random.below(8);
    const auto n = static_cast<std::size_t>(rows * width);
    std::vector<float> logp, rollout;
    std::vector<int> versions;
    for (std::size_t k = 0; k < 2 * n; ++k) {
      const auto number = [&](double odd) {
        return static_cast<float>(random.chance(odd) ? random.pick({nan_, -inf})
                                                     : 4 * std::log(random.uniform() + 1e-4));
      };
      logp.push_back(number(0.05)), rollout.push_back(number(0.05));
      versions.push_back(random.below(10) - 2);
    }
    for (const Method method : {Method::LogLinear, Method::Linear, Method::Rollout}) {
      // Every second number of the arrays.
      const auto second = [&](const auto& v) {
        return gdpo::View<const std::decay_t<decltype(v[0])>, 2>{
            v.data(), {rows, width}, {2 * width, 2}};
      };
      const std::vector<float> got =
          gdpo::proximal_logp(second(logp), second(rollout), second(versions), current, method);
      REQUIRE(got.size() == n);
      std::vector<double> in_double(n, 7.0);
      gdpo::proximal_logp_into(second(logp), second(rollout), second(versions), current, method,
                               gdpo::view(in_double.data(), rows, width));
      std::vector<float> dense;
      std::vector<int> of;
      for (std::size_t k = 0; k < n; ++k) {
        dense.push_back(logp[2 * k]), of.push_back(versions[2 * k]);
      }
      std::vector<float> in_place;
      for (std::size_t k = 0; k < n; ++k) in_place.push_back(rollout[2 * k]);
      gdpo::proximal_logp_into(gdpo::view(dense), gdpo::view(in_place), gdpo::view(of), current,
                               method, gdpo::view(in_place));
      for (std::size_t k = 0; k < n; ++k) {
        const real want = proximal(logp[2 * k], rollout[2 * k], versions[2 * k], current, method);
        INFO("token " << k << ", method " << static_cast<int>(method));
        CHECK(same_bits(got[k], static_cast<float>(in_double[k])));
        CHECK(same_bits(got[k], in_place[k]));
        if (std::isnan(want) || std::isinf(want)) {
          CHECK(std::isnan(want) == std::isnan(got[k]));
          if (std::isinf(want)) CHECK(got[k] == static_cast<float>(want));
          continue;
        }
        // A few roundings, of numbers of at most 40.
        CHECK(std::fabs(in_double[k] - want) <= 16 * unit * 40);
      }
    }
  }
}

TEST_CASE("proximal_logp: the newest policy is the sampler, an old one nearly the trained one",
          "[prepass]") {
  const Numbers logp{-1, -1, -1, -1, nan_}, rollout{-3, -3, -3, -3, -3};
  const std::vector<std::int64_t> versions{99, 98, 0, -1, 99};
  const auto of = [&](gdpo::ProximalMethod method) {
    return gdpo::proximal_logp(gdpo::view(logp), gdpo::view(rollout), gdpo::view(versions), 100,
                               method);
  };
  const Numbers log_linear = of(gdpo::ProximalMethod::LogLinear);
  CHECK(log_linear == Numbers{-3, -2, -3 + 0.99 * 2, -3, -3});
  CHECK(of(gdpo::ProximalMethod::Rollout) == rollout);
}

TEST_CASE("proximal_logp: what it refuses", "[prepass][errors]") {
  const Numbers six(6, -1.0);
  const std::vector<int> versions(6, 0);
  Numbers out(6, 7.0);
  const auto said = [&](gdpo::View<const double, 2> logp, gdpo::View<const double, 2> rollout,
                        gdpo::View<const int, 2> v, gdpo::View<double, 2> to) {
    return message_of(
        [&] { gdpo::proximal_logp_into(logp, rollout, v, 3, gdpo::ProximalMethod::Linear, to); });
  };
  const auto good = gdpo::view(six.data(), 2, 3), other = gdpo::view(six.data(), 3, 2);
  const auto v = gdpo::view(versions.data(), 2, 3);
  const auto to = gdpo::view(out.data(), 2, 3);
  CHECK(said(good, other, v, to) ==
        "gdpo::proximal_logp: rollout_logp: given (3, 2); needed: (2, 3), the shape of logp");
  CHECK(said(good, good, gdpo::view(versions.data(), 3, 2), to) ==
        "gdpo::proximal_logp: versions: given (3, 2); needed: (2, 3), the shape of logp");
  CHECK(said(good, good, v, gdpo::view(out.data(), 3, 2)) ==
        "gdpo::proximal_logp: out: given (3, 2); needed: (2, 3), the shape of logp");
  CHECK(said(good, {nullptr, {2, 3}, {3, 1}}, v, to).find("gdpo::proximal_logp: rollout_logp: ") ==
        0);
  CHECK(said(good, good, v, {out.data(), {2, 3}, {0, 1}}).find("gdpo::proximal_logp: out: ") == 0);
  CHECK(out == Numbers(6, 7.0));
}

TEST_CASE("few of the random cases of a batch are too close to call", "[prepass]") {
  // The cases of all tests above. In batches of one row with one advantage all covariances are 0
  // but for their rounding.
  CHECK(unsure <= cases / 25);
}

}  // namespace batch_test
