// The library's losses behind the settings of the oracle (reference/naive_loss.hpp): arrays, calls,
// random inputs, and the comparison with the oracle. support/loss_product.hpp has every composition
// behind one function.
#pragma once
#include <gdpo/dist/describe.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/loss/any_kl.hpp>
#include <gdpo/loss/any_level.hpp>
#include <reference/naive_loss.hpp>
#include <stdexcept>
#include <string>
#include <support/generators.hpp>
#include <support/oracle_settings.hpp>
#include <support/tolerance.hpp>

namespace loss_product {

using naive_loss::Data;
using naive_loss::Settings;

/// Pointers to the arrays of numbers of a Data and of a TokenBatch, in the order of the library's
/// list. The types have names because nvcc puts a bare declarator of one in parentheses, of which
/// g++ warns.
using DataArray = std::vector<double> Data::*;
template <class S>
using BatchArray = gdpo::TokenView<S> gdpo::TokenBatch<S>::*;
#define GDPO_X(in_batch, ...) &Data::in_batch,
inline constexpr DataArray token_arrays[] = {GDPO_TOKEN_ARRAYS(GDPO_X)};
#undef GDPO_X
#define GDPO_X(in_batch, ...) &gdpo::TokenBatch<S>::in_batch,
template <class S>
inline constexpr BatchArray<S> batch_arrays[] = {GDPO_TOKEN_ARRAYS(GDPO_X)};
#undef GDPO_X
inline constexpr std::size_t arrays_of_numbers = std::size(token_arrays);

/// The arrays of a Data as the library takes them: stored as T, computed as S.
template <class S, class T = S>
class Arrays {
 public:
  explicit Arrays(const Data& d) : rows_(d.rows), width_(d.width) {
    for (std::size_t k = 0; k < arrays_of_numbers; ++k) {
      for (const double x : d.*token_arrays[k]) tokens_[k].push_back(static_cast<T>(x));
    }
    for (const double x : d.advantages) advantages_.push_back(static_cast<T>(x));
    row_weights_ = d.row_weights, group_tokens_ = d.group_tokens, truncated_ = d.truncated;
    for (const int x : d.mask) mask_.push_back(static_cast<unsigned char>(x));
    segments_.assign(d.segments.begin(), d.segments.end());
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  /// Tokens of rank 2: (rows, width).
  gdpo::TokenBatch<S> batch() const {
    return batch_of([this](const auto& from) { return gdpo::view(from.data(), rows_, width_); });
  }
  /// Tokens of rank 1.
  gdpo::TokenBatch<S> flat_batch() const {
    return batch_of([](const auto& from) { return gdpo::view(from); });
  }
  /// Tokens of rank 3: (groups, rows / groups, width).
  gdpo::TokenBatch<S> grouped_batch(int groups) const {
    return batch_of([this, groups](const auto& from) {
      return gdpo::view(from.data(), groups, rows_ / groups, width_);
    });
  }

 private:
  template <class ViewOf>
  gdpo::TokenBatch<S> batch_of(const ViewOf& view_of) const {
    gdpo::TokenBatch<S> b;
    const auto set = [&](auto& to, const auto& from) {
      if (!from.empty()) to = view_of(from);
    };
    for (std::size_t k = 0; k < arrays_of_numbers; ++k) set(b.*batch_arrays<S>[k], tokens_[k]);
    set(b.mask, mask_), set(b.segments, segments_);
    if (!advantages_.empty()) b.advantages = gdpo::view(advantages_);
    if (!row_weights_.empty()) b.row_weights = gdpo::view(row_weights_);
    if (!group_tokens_.empty()) b.group_tokens = gdpo::view(group_tokens_);
    if (!truncated_.empty()) b.truncated = gdpo::view(truncated_);
    return b;
  }

  gdpo::index_t rows_, width_;
  std::vector<T> tokens_[arrays_of_numbers], advantages_;
  std::vector<double> row_weights_, group_tokens_, truncated_;
  std::vector<unsigned char> mask_;
  std::vector<std::int64_t> segments_;
};

/// What a call of a loss gives.
struct Outcome {
  gdpo::LossResult result;
  std::vector<double> gradient, entropy_gradient;  ///< By the log-probs, by the entropies.
};

/// Calls a loss on a padded Data, with the tag seq. One tag is enough: property/loss/exec_test.cpp
/// checks that the others give its bits, and each tag is a kernel to compile.
template <class S, class Loss>
Outcome call(const Loss& loss, const Data& data, const gdpo::Normalizer* normalizer = nullptr) {
  const Arrays<S> arrays(data);
  const gdpo::TokenBatch<S> batch = arrays.batch();
  std::vector<S> gradient(data.logp.size(), S(-77)), entropies(data.logp.size(), S(-77));
  gdpo::LossWorkspace<S> workspace;
  Outcome o;
  o.result = loss(gdpo::seq, batch, normalizer ? *normalizer : gdpo::count(batch),
                  {gdpo::view(gradient.data(), data.rows, data.width),
                   gdpo::view(entropies.data(), data.rows, data.width)},
                  workspace);
  o.gradient.assign(gradient.begin(), gradient.end());
  o.entropy_gradient.assign(entropies.begin(), entropies.end());
  return o;
}

/// Rows begin .. end - 1 of a Data.
inline Data rows_of(const Data& d, int begin, int end) {
  Data part;
  part.rows = end - begin, part.width = d.width;
  const auto cut = [&](auto& to, const auto& from, int width) {
    if (!from.empty()) to.assign(from.begin() + begin * width, from.begin() + end * width);
  };
  for (const auto member : token_arrays) cut(part.*member, d.*member, d.width);
  cut(part.mask, d.mask, d.width), cut(part.segments, d.segments, d.width);
  for (const auto member :
       {&Data::advantages, &Data::row_weights, &Data::group_tokens, &Data::truncated})
    cut(part.*member, d.*member, 1);
  return part;
}

/// The first lengths[i] tokens of each row, one row after the other: a Data of one row, and
/// offsets.
template <class Offset>
struct Packed {
  Data data;
  std::vector<Offset> offsets{0};
};
template <class Offset>
Packed<Offset> pack(const Data& d, const std::vector<int>& lengths) {
  Packed<Offset> p;
  p.data = Data{};
  for (int i = 0; i < d.rows; ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(d.at(i, 0)),
               end = begin + lengths[static_cast<std::size_t>(i)];
    const auto add = [&](auto& to, const auto& from) {
      if (!from.empty()) to.insert(to.end(), from.begin() + begin, from.begin() + end);
    };
    for (const auto member : token_arrays) add(p.data.*member, d.*member);
    add(p.data.mask, d.mask), add(p.data.segments, d.segments);
    p.offsets.push_back(
        static_cast<Offset>(p.offsets.back() + lengths[static_cast<std::size_t>(i)]));
  }
  p.data.advantages = d.advantages, p.data.row_weights = d.row_weights,
  p.data.group_tokens = d.group_tokens, p.data.truncated = d.truncated;
  p.data.rows = 1, p.data.width = static_cast<int>(p.data.logp.size());
  return p;
}
/// The batch as views of rank 1 with offsets.
template <class S, class Offset>
gdpo::TokenBatch<S> packed_batch(const Arrays<S>& arrays, const std::vector<Offset>& offsets) {
  gdpo::TokenBatch<S> b = arrays.flat_batch();
  b.offsets = gdpo::view(offsets);
  return b;
}
/// Calls a loss on a packed batch.
template <class S, class Offset, class Loss>
Outcome call_packed(const Loss& loss, const Data& padded, const std::vector<int>& lengths,
                    const gdpo::Normalizer* normalizer = nullptr) {
  const Packed<Offset> p = pack<Offset>(padded, lengths);
  const Arrays<S> arrays(p.data);
  const gdpo::TokenBatch<S> batch = packed_batch(arrays, p.offsets);
  std::vector<S> gradient(p.data.logp.size(), S(-77)), entropies(p.data.logp.size(), S(-77));
  gdpo::LossWorkspace<S> workspace;
  Outcome o;
  o.result = loss(gdpo::seq, batch, normalizer ? *normalizer : gdpo::count(batch),
                  {gdpo::view(gradient), gdpo::view(entropies)}, workspace);
  o.gradient.assign(gradient.begin(), gradient.end());
  o.entropy_gradient.assign(entropies.begin(), entropies.end());
  return o;
}

/// Every number of a result, metrics included. Throws where this function misses a member.
inline std::vector<double> numbers(const gdpo::LossResult& result) {
  const gdpo::LossMetrics& m = result.metrics;
  std::vector<double> all{result.loss,
                          result.policy_loss,
                          result.kl_loss,
                          result.entropy_loss,
                          result.normalizer.tokens,
                          result.normalizer.rows,
                          result.normalizer.non_empty_rows,
                          result.normalizer.given};
  const auto metric = [&](const gdpo::Metric& x) {
    all.insert(all.end(), {x.sum, x.count, x.min, x.max, x.row_sum, x.rows, x.row_min, x.row_max});
  };
  const auto counter = [&](const gdpo::NonFinite& x) {
    all.insert(all.end(), {static_cast<double>(x.count), static_cast<double>(x.row),
                           static_cast<double>(x.token)});
  };
  for (const auto& facts : gdpo::detail::metric::list) metric(m.*facts.member);
#define GDPO_X(in_batch, in_row, ...) counter(m.non_finite.in_row);
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  all.push_back(static_cast<double>(result.over));
  const gdpo::Moments& a = m.advantage;
  all.insert(all.end(), {static_cast<double>(a.n), a.weight, a.mean, a.mean_low, a.m2, a.min, a.max,
                         static_cast<double>(m.rows), static_cast<double>(m.empty_rows),
                         static_cast<double>(m.degenerate_rows), m.entropy_threshold,
                         m.one_ratio_a_row ? 1.0 : 0.0});
  // Every member has eight bytes, the one flag with its padding included, so the sizes agree if
  // none is missing. Which batch the normalizer was counted from is no result.
  if (all.size() * sizeof(double) + sizeof(gdpo::CountedBatch) != sizeof(gdpo::LossResult)) {
    throw std::logic_error(
        "a new member of LossResult or LossMetrics, outside of the lists: add it here");
  }
  return all;
}
/// "" where two outcomes have the same bits everywhere; else what differs.
inline std::string difference_of(const Outcome& a, const Outcome& b) {
  const std::string gradient = difference(a.gradient, b.gradient),
                    entropies = difference(a.entropy_gradient, b.entropy_gradient),
                    result = difference(numbers(a.result), numbers(b.result));
  return (entropies.empty() ? "" : "gradient by entropies " + entropies + " ") +
         (gradient.empty() ? "" : "gradient " + gradient) +
         (result.empty() ? "" : " result " + result);
}

// ---- from the oracle's settings to the library's ----

using oracle::to_library, oracle::to_oracle;
/// Calls copy(member, number of the oracle) for each setting of a policy of the library.
/// `known(f)` calls f(name, number) for those that the oracle has.
template <class Policy, class Known, class Copy>
void for_each_setting(Policy& policy, const Known& known, const Copy& copy) {
  oracle::copy_settings(policy, known, oracle::places(policy, known, "naive_loss.hpp"), copy);
}

/// Whether the oracle's surrogate or factor Of is the library's type Policy, by its name.
template <class Policy, class Of>
bool is_of(const Of&) {
  const std::string type = gdpo::detail::type_name<Policy>();
  return type == std::string("surrogate::") + Of::name ||
         type == std::string("factor::") + Of::name;
}
/// The oracle's surrogate or factor of the library's type, in Any, a variant of all of them.
template <class Any, class Policy, std::size_t At = 0>
Any known_as() {
  if constexpr (At == std::variant_size_v<Any>) {
    throw std::logic_error("the oracle (reference/naive_loss.hpp) does not know " +
                           gdpo::detail::type_name<Policy>());
  } else {
    using Of = std::variant_alternative_t<At, Any>;
    return is_of<Policy>(Of{}) ? Any{Of{}} : known_as<Any, Policy, At + 1>();
  }
}
/// Gives a surrogate or factor the settings that the oracle has for it.
template <class Policy, class Any>
void set_policy(Policy& to, const Any& any) {
  std::visit(
      [&to](const auto& of) {
        using Of = std::decay_t<decltype(of)>;
        if (!is_of<Policy>(of))
          throw std::logic_error(std::string("the settings are those of ") + Of::name +
                                 ", the loss has " + gdpo::detail::type_name<Policy>());
        for_each_setting(
            to, [&of](const auto& f) { Of::settings(of, f); }, to_library);
      },
      any);
}
template <class Surrogate>
void set_surrogate(Surrogate& to, const Settings& s) {
  set_policy(to, s.surrogate);
}
inline void set_factor(gdpo::Factors<>&, const Settings& s) {
  if (!std::holds_alternative<naive_loss::NoFactor>(s.detached))
    throw std::logic_error("the settings have a factor, the loss has none");
}
template <class Factor>
void set_factor(gdpo::Factors<Factor>& to, const Settings& s) {
  set_policy(to.first, s.detached);
}
/// Chooses map and statistic of the oracle, where the level leaves them to run time.
template <class Level>
void choose_level(Level& level, const Settings& s) {
  if constexpr (std::is_same_v<std::decay_t<decltype(level.map)>, gdpo::AnyMap>) {
    if (s.map == naive_loss::Map::Clamp) level.map = gdpo::map::Clamp{};
    if (s.map == naive_loss::Map::TrustRegion) level.map = gdpo::map::TrustRegion{};
    if (s.statistic == naive_loss::Statistic::Sum) level.statistic = gdpo::statistic::Sum{};
  }
}
template <class Level>
void set_level(Level& level, const Settings& s) {
  choose_level(level, s);
  for_each_setting(
      level, [&s](const auto& f) { naive_loss::level_settings(s, f); }, to_library);
}
/// The settings of KL term k.
template <class Kl>
void set_term(Kl& to, const Settings& s, std::size_t k) {
  for_each_setting(
      to, [&](const auto& f) { naive_loss::Kl::settings(s.kl[k], f); }, to_library);
}
inline void set_kl(gdpo::Kls<>&, const Settings&, std::size_t) {}
template <class E, class R, class F, class A>
void set_kl(gdpo::Kl<E, R, F, A>& to, const Settings& s, std::size_t k = 0) {
  set_term(to, s, k);
}
template <class First, class... Rest>
void set_kl(gdpo::Kls<First, Rest...>& to, const Settings& s, std::size_t k = 0) {
  set_kl(to.first, s, k);
  set_kl(to.rest, s, k + 1);
}
inline gdpo::Aggregate aggregate_of(const Settings& s) {
  gdpo::Aggregate a;
  for_each_setting(
      a, [&s](const auto& f) { naive_loss::aggregate_settings(s, f); }, to_library);
  return a;
}
inline void set_entropy(gdpo::EntropyBonus& to, const Settings& s) {
  for_each_setting(
      to, [&s](const auto& f) { naive_loss::Entropy::settings(s.entropy, f); }, to_library);
}
/// A loss with the oracle's settings.
template <class Loss>
Loss loss_of(const Settings& s) {
  Loss loss;
  set_level(loss.level, s);
  set_surrogate(loss.surrogate, s);
  set_kl(loss.kl, s, 0);
  loss.aggregate = aggregate_of(s);
  set_factor(loss.factor, s);
  set_entropy(loss.entropy, s);
  return loss;
}
// ---- and back ----

namespace detail {
template <class Any, class Policy>
void read_policy(Any& any, const Policy& policy) {
  any = known_as<Any, Policy>();
  std::visit(
      [&policy](auto& of) {
        using Of = std::decay_t<decltype(of)>;
        for_each_setting(
            policy, [&of](const auto& f) { Of::settings(of, f); }, to_oracle);
      },
      any);
}
inline void read_factors(Settings&, const gdpo::Factors<>&) {}
template <class F>
void read_factors(Settings& s, const gdpo::Factors<F>& factors) {
  read_policy(s.detached, factors.first);
}
template <class... F>
void read_factors(Settings& s, const gdpo::AnyFactors<F...>& any) {
  any.visit([&s](const auto& factors) { read_factors(s, factors); });
}
template <class Surrogate>
void read_surrogate(Settings& s, const Surrogate& surrogate) {
  read_policy(s.surrogate, surrogate);
}
template <class... S>
void read_surrogate(Settings& s, const gdpo::AnySurrogate<S...>& any) {
  any.visit([&s](const auto& surrogate) { read_surrogate(s, surrogate); });
}
inline naive_loss::Map map_of(const gdpo::map::None&) { return naive_loss::Map::None; }
inline naive_loss::Map map_of(const gdpo::map::Clamp&) { return naive_loss::Map::Clamp; }
inline naive_loss::Map map_of(const gdpo::map::TrustRegion&) {
  return naive_loss::Map::TrustRegion;
}
inline naive_loss::Map map_of(const gdpo::AnyMap& any) {
  return any.visit([](const auto& map) { return map_of(map); });
}
inline naive_loss::Statistic statistic_of(const gdpo::statistic::Mean&) {
  return naive_loss::Statistic::Mean;
}
inline naive_loss::Statistic statistic_of(const gdpo::statistic::Sum&) {
  return naive_loss::Statistic::Sum;
}
inline naive_loss::Statistic statistic_of(const gdpo::AnyStatistic& any) {
  return static_cast<naive_loss::Statistic>(any.kind);
}
inline void read_kl(naive_loss::Kl& to, const gdpo::AnyKl& kl) {
  for_each_setting(
      kl, [&to](const auto& f) { naive_loss::Kl::settings(to, f); }, to_oracle);
}
template <class Estimator, class Factor>
void read_kl(naive_loss::Kl& to, const gdpo::Kl<Estimator, gdpo::kl::Direct, Factor>& kl) {
  using E = naive_loss::Estimator;
  to.factor = std::is_same_v<Factor, gdpo::Factors<>> ? naive_loss::KlFactor::None
                                                      : naive_loss::KlFactor::TeacherGate;
  for_each_setting(
      kl, [&to](const auto& f) { naive_loss::Kl::settings(to, f); }, to_oracle);
  to.estimator = std::is_same_v<Estimator, gdpo::kl::K1>          ? E::K1
                 : std::is_same_v<Estimator, gdpo::kl::Abs>       ? E::Abs
                 : std::is_same_v<Estimator, gdpo::kl::K2>        ? E::K2
                 : std::is_same_v<Estimator, gdpo::kl::ForwardK1> ? E::ForwardK1
                                                                  : E::K3;
}
inline void read_kl(naive_loss::Kl& to, const gdpo::Kls<>&) { to.beta = 0; }
}  // namespace detail
/// The settings of a loss of the library, with its KL term, as the oracle has them.
template <class Loss>
Settings settings_of(const Loss& loss) {
  using Level = std::decay_t<decltype(loss.level)>;
  Settings s;
  s.level = !Level::of_segment        ? naive_loss::Level::Token
            : Level::straight_through ? naive_loss::Level::SequenceToken
                                      : naive_loss::Level::Sequence;
  s.map = detail::map_of(loss.level.map);
  if constexpr (Level::of_segment) s.statistic = detail::statistic_of(loss.level.statistic);
  for_each_setting(
      loss.level, [&s](const auto& f) { naive_loss::level_settings(s, f); }, to_oracle);
  detail::read_surrogate(s, loss.surrogate);
  detail::read_factors(s, loss.factor);
  s.kl.resize(1);
  detail::read_kl(s.kl[0], loss.kl);
  for_each_setting(
      loss.aggregate, [&s](const auto& f) { naive_loss::aggregate_settings(s, f); }, to_oracle);
  for_each_setting(
      loss.entropy, [&s](const auto& f) { naive_loss::Entropy::settings(s.entropy, f); },
      to_oracle);
  return s;
}

inline gdpo::Normalizer normalizer_of(const naive_loss::Counts& n) {
  return {n.tokens, n.rows, n.non_empty_rows, n.given};
}

/// The number of a level: 0 .. 3 for Token, Token<Clamp>, Sequence, SequenceToken.
inline int level_index(const Settings& s) {
  return s.level == naive_loss::Level::Token      ? (s.map == naive_loss::Map::Clamp ? 1 : 0)
         : s.level == naive_loss::Level::Sequence ? 2
                                                  : 3;
}

// ---- random inputs ----

/// Random numbers for all settings, those of surrogate, factor and KL terms from the ranges of the
/// library's fields; the types stay as they are.
void random_settings(Random& random, Settings& s);

/// Random tokens: log-probs of order -1, all other log-probs within about 1.5 `spread` of them,
/// rounded to float where `single`. Masks have gaps and empty rows. Each optional array is there in
/// some of the draws.
inline Data random_tokens(Random& random, int rows, int width, double spread, bool single = false) {
  Data d;
  d.rows = rows, d.width = width;
  const auto stored = [single](double x) {
    return single ? static_cast<double>(static_cast<float>(x)) : x;
  };
  const auto around = [&](double x) {
    return stored(x + spread * (random.uniform() + random.uniform() + random.uniform() - 1.5));
  };
  const std::size_t n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  const bool old = random.chance(0.85), per_token = random.chance(0.4);
  for (std::size_t k = 0; k < n; ++k) {
    const double x = stored(3 * std::log(random.uniform() + 0.01));
    d.logp.push_back(x);
    if (old) d.old_logp.push_back(around(x));
    d.ref_logp.push_back(random.chance(0.05) ? x : around(x));
    d.rollout_logp.push_back(around(x));
    d.teacher_logp.push_back(around(x));
  }
  const auto advantage = [&] {
    return stored(random.chance(0.1) ? 0.0 : 3 * random.uniform() - 1.5);
  };
  for (std::size_t k = 0; per_token && k < n; ++k) d.token_advantages.push_back(advantage());
  for (int i = 0; !per_token && i < rows; ++i) d.advantages.push_back(advantage());
  if (random.chance(0.7)) {
    for (int i = 0; i < rows; ++i) {
      const double p = random.pick({0.0, 0.5, 0.8, 1.0});
      for (int t = 0; t < width; ++t) d.mask.push_back(random.chance(p));
    }
  }
  if (random.chance(0.4)) {
    long long id = 5;
    for (std::size_t k = 0; k < n; ++k)
      d.segments.push_back(random.chance(0.25) ? id = random.below(3) - 1 : id);
  }
  const auto factors = [&](std::vector<double>& w, std::size_t count) {
    if (random.chance(0.6)) return;
    for (std::size_t k = 0; k < count; ++k)
      w.push_back(stored(random.pick({0.0, 1.0, 1.0, 0.5, 2 * random.uniform()})));
  };
  factors(d.weights, n), factors(d.kl_weights, n), factors(d.entropy_weights, n),
      factors(d.row_weights, static_cast<std::size_t>(rows));
  for (std::size_t k = 0; k < n; ++k) d.entropies.push_back(stored(random.uniform()));
  for (int i = 0; i < rows; ++i) d.truncated.push_back(random.below(2));
  // Any numbers that are not less than the tokens of the row.
  for (int i = 0; i < rows; ++i) d.group_tokens.push_back(width + 3 * (i / 2) + 1);
  return d;
}

/// Weights of the ratio in some of the draws at levels of segments: of the size of a correction, or
/// large enough for bounds of the level to hold. An upper bound has to be small, so that the ratio
/// stays within what tolerances expect. Masked places hold NaN.
inline void add_level_log_weights(Random& random, const Settings& s, Data& d, bool single = false) {
  if (s.level == naive_loss::Level::Token || !random.chance(0.4)) return;
  const double size = random.pick({0.05, 0.3, s.level_bounds.hi < 2 ? 30.0 : 0.3});
  d.level_log_weights.clear();
  for (int i = 0; i < d.rows; ++i) {
    for (int t = 0; t < d.width; ++t) {
      const double x = random.chance(0.3) ? 0.0 : size * (2 * random.uniform() - 1);
      d.level_log_weights.push_back(!d.valid(i, t) ? std::numeric_limits<double>::quiet_NaN()
                                    : single       ? static_cast<double>(static_cast<float>(x))
                                                   : x);
    }
  }
}

/// The same for a loss of the library, stored as float. `poison` is the share of tokens at which
/// they are NaN or infinite.
template <class Loss>
void add_level_log_weights(Random& random, const Loss& loss, Data& d, double poison) {
  using Level = std::decay_t<decltype(loss.level)>;
  Settings s;
  if constexpr (Level::of_segment) {
    s.level = naive_loss::Level::Sequence;
    s.level_bounds = {loss.level.bounds.lo, loss.level.bounds.hi};
  }
  add_level_log_weights(random, s, d, true);
  constexpr double infinite = std::numeric_limits<double>::infinity();
  for (double& x : d.level_log_weights)
    x = random.chance(poison) ? random.pick({std::nan(""), infinite, -infinite}) : x;
}

/// Leaves what most calls have, for which lanes and kernels have a path of their own
/// (detail::Plain): one advantage per row, and no arrays beside the log-probs and the mask.
inline void simplify(Random& random, Data& d) {
  d.token_advantages.clear(), d.advantages.clear();
  for (int i = 0; i < d.rows; ++i)
    d.advantages.push_back(static_cast<float>(2 * random.uniform() - 1));
  d.weights.clear(), d.kl_weights.clear(), d.entropies.clear(), d.segments.clear();
  d.entropy_weights.clear(), d.level_log_weights.clear();
}

/// Makes the settings fit the batch: a KL term against the old policy needs its log-probs, and
/// becomes one against the reference where there are none; a bonus needs entropies.
inline void fit(Settings& s, const Data& data) {
  if (data.entropies.empty()) s.entropy.coef = 0;
  for (naive_loss::Kl& kl : s.kl) {
    if (data.old_logp.empty() && kl.against == naive_loss::Against::Old)
      kl.against = naive_loss::Against::Ref;
  }
}

/// "" where the library gives what the oracle gives: loss, gradient and metrics; else what differs.
/// `unit` is the rounding of one operation.
std::string mismatch(const Settings& settings, const Data& data, const naive_loss::Result& expected,
                     const Outcome& got, double unit);

/// The settings as text, enough to rebuild a failing case with its seed.
std::string describe(const Settings& s);

}  // namespace loss_product
