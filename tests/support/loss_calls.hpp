// The library's losses behind the settings of the oracle (reference/naive_loss.hpp): arrays, calls,
// random inputs, and the comparison with the oracle. support/loss_product.hpp has every composition
// behind one function.
#pragma once
#include <gdpo/loss.hpp>
#include <reference/naive_loss.hpp>
#include <string>
#include <support/generators.hpp>
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
    row_weights_ = d.row_weights, truncated_ = d.truncated;
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
    if (!truncated_.empty()) b.truncated = gdpo::view(truncated_);
    return b;
  }

  gdpo::index_t rows_, width_;
  std::vector<T> tokens_[arrays_of_numbers], advantages_;
  std::vector<double> row_weights_, truncated_;
  std::vector<unsigned char> mask_;
  std::vector<std::int64_t> segments_;
};

/// What a call of a loss gives.
struct Outcome {
  gdpo::LossResult result;
  std::vector<double> gradient;
};

/// Calls a loss on a padded Data, with the tag seq. One tag is enough: property/loss/exec_test.cpp
/// checks that the others give its bits, and each tag is a kernel to compile.
template <class S, class Loss>
Outcome call(const Loss& loss, const Data& data, const gdpo::Normaliser* normaliser = nullptr) {
  const Arrays<S> arrays(data);
  const gdpo::TokenBatch<S> batch = arrays.batch();
  std::vector<S> gradient(data.logp.size(), S(-77));
  gdpo::LossWorkspace<S> workspace;
  Outcome o;
  o.result = loss(gdpo::seq, batch, normaliser ? *normaliser : gdpo::count(batch),
                  gdpo::view(gradient.data(), data.rows, data.width), workspace);
  o.gradient.assign(gradient.begin(), gradient.end());
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
  for (const auto member : {&Data::advantages, &Data::row_weights, &Data::truncated})
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
  p.data.truncated = d.truncated;
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
                    const gdpo::Normaliser* normaliser = nullptr) {
  const Packed<Offset> p = pack<Offset>(padded, lengths);
  const Arrays<S> arrays(p.data);
  const gdpo::TokenBatch<S> batch = packed_batch(arrays, p.offsets);
  std::vector<S> gradient(p.data.logp.size(), S(-77));
  gdpo::LossWorkspace<S> workspace;
  Outcome o;
  o.result = loss(gdpo::seq, batch, normaliser ? *normaliser : gdpo::count(batch),
                  gdpo::view(gradient), workspace);
  o.gradient.assign(gradient.begin(), gradient.end());
  return o;
}

/// Every number of a result, metrics included. Throws where this function misses a member.
inline std::vector<double> numbers(const gdpo::LossResult& result) {
  const gdpo::LossMetrics& m = result.metrics;
  std::vector<double> all{result.loss,
                          result.policy_loss,
                          result.kl_loss,
                          result.normaliser.tokens,
                          result.normaliser.rows,
                          result.normaliser.non_empty_rows,
                          result.normaliser.given};
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
  // none is missing. Which batch the normaliser was counted from is no result.
  if (all.size() * sizeof(double) + sizeof(gdpo::CountedBatch) != sizeof(gdpo::LossResult)) {
    throw std::logic_error(
        "a new member of LossResult or LossMetrics, outside of the lists: add it here");
  }
  return all;
}
/// "" where two outcomes have the same bits everywhere; else what differs.
inline std::string difference_of(const Outcome& a, const Outcome& b) {
  const std::string gradient = difference(a.gradient, b.gradient),
                    result = difference(numbers(a.result), numbers(b.result));
  return (gradient.empty() ? "" : "gradient " + gradient) +
         (result.empty() ? "" : " result " + result);
}

// ---- from the oracle's settings to the library's ----

inline gdpo::Bounds bounds_of(const naive_loss::Bounds& b) { return {b.lo, b.hi}; }
inline void set_map(gdpo::map::None&, const Settings&) {}
inline void set_map(gdpo::map::Clamp& map, const Settings& s) {
  map = {s.map_bounds.lo, s.map_bounds.hi};
}
inline void set_statistic(gdpo::statistic::Mean& to, const Settings& s) {
  to.count_eps = s.statistic_count_eps;
}
inline void set_statistic(gdpo::statistic::Sum&, const Settings&) {}
template <class Map>
void set_level(gdpo::level::Token<Map>& level, const Settings& s) {
  set_map(level.map, s);
}
template <class Level>
void set_level(Level& level, const Settings& s) {
  set_map(level.map, s);
  set_statistic(level.statistic, s);
  level.bounds = bounds_of(s.level_bounds);
}
template <class Surrogate>
void set_surrogate(Surrogate&, const Settings&) {}  // a surrogate without settings
inline void set_surrogate(gdpo::surrogate::Ratio& to, const Settings& s) {
  to = {s.low, s.high, s.delta, s.dual};
}
inline void set_kl(gdpo::Kls<>&, const Settings&, std::size_t) {}
template <class E, class R>
void set_kl(gdpo::Kl<E, R>& to, const Settings& s, std::size_t k = 0) {
  to.beta = s.kl[k].beta;
  to.against = static_cast<gdpo::Against>(s.kl[k].against);
  to.input = bounds_of(s.kl[k].input), to.output = bounds_of(s.kl[k].output);
}
template <class First, class... Rest>
void set_kl(gdpo::Kls<First, Rest...>& to, const Settings& s, std::size_t k = 0) {
  set_kl(to.first, s, k);
  set_kl(to.rest, s, k + 1);
}
inline gdpo::Aggregate aggregate_of(const Settings& s) {
  using Mode = gdpo::Aggregate::Mode;
  const Mode mode =
      s.aggregate == naive_loss::Aggregate::TokenMean             ? Mode::TokenMean
      : s.aggregate == naive_loss::Aggregate::SeqMeanTokenMean    ? Mode::SeqMeanTokenMean
      : s.aggregate == naive_loss::Aggregate::SeqMeanTokenSum     ? Mode::SeqMeanTokenSum
      : s.aggregate == naive_loss::Aggregate::SeqMeanTokenSumNorm ? Mode::SeqMeanTokenSumNorm
                                                                  : Mode::TokenSum;
  return {mode,
          static_cast<gdpo::Over>(s.over),
          s.count_eps,
          s.scale,
          s.row_count_eps,
          s.padded_width ? 0 : s.constant,
          s.padded_width};
}
/// A loss with the oracle's settings.
template <class Loss>
Loss loss_of(const Settings& s) {
  Loss loss;
  set_level(loss.level, s);
  set_surrogate(loss.surrogate, s);
  set_kl(loss.kl, s, 0);
  loss.aggregate = aggregate_of(s);
  return loss;
}
inline gdpo::Normaliser normaliser_of(const naive_loss::Counts& n) {
  return {n.tokens, n.rows, n.non_empty_rows, n.given};
}

/// The number of a level: 0 .. 3 for Token, Token<Clamp>, Sequence, SequenceToken.
inline int level_index(const Settings& s) {
  return s.level == naive_loss::Level::Token      ? (s.map == naive_loss::Map::Clamp ? 1 : 0)
         : s.level == naive_loss::Level::Sequence ? 2
                                                  : 3;
}

// ---- random inputs ----

/// Random numbers for all settings; the types stay as they are.
inline void random_settings(Random& random, Settings& s) {
  using namespace naive_loss;
  s.map_bounds = {-random.pick({0.05, 0.4, 20.0}), random.pick({0.05, 0.4, 20.0})};
  s.statistic_count_eps = random.pick({0.0, 0.0, 1e-8, 0.5});
  s.level_bounds = random.pick({Bounds{}, Bounds{}, Bounds{-0.1, 0.05}, Bounds{-off, 0.3}});
  s.low = random.pick({0.2, 0.1, 3e-4, 1.0, off});
  s.high = random.pick({0.2, 0.28, 4e-4, 0.0, off});
  s.delta = random.pick({off, off, 1.1, 2.0, 0.9});
  if (s.clipped_ratio) {
    s.min_ratio = random.pick({0.0, 0.5, 0.9, 1.0});
    s.max_ratio = random.pick({off, 5.0, 1.2, 1.0});
  }
  s.dual = random.pick({off, off, 1.25, 3.0});
  for (naive_loss::Kl& kl : s.kl) {
    kl.beta = random.pick({0.04, 1.0, 2.5});
    kl.against = static_cast<Against>(random.below(4));
    kl.input = random.pick({Bounds{}, Bounds{-0.2, 0.1}, Bounds{-20, 20}});
    kl.output = random.pick({Bounds{}, Bounds{-0.1, 0.08}, Bounds{-10, 10}});
  }
  s.aggregate = static_cast<Aggregate>(random.below(5));
  s.over = static_cast<Over>(random.below(4));
  s.count_eps = random.pick({0.0, 0.0, 1e-8, 0.5});
  s.scale = random.pick({1.0, 1.0, 4.0, 0.125});
  s.row_count_eps = random.pick({0.0, 1e-8, 0.5});
  s.constant = random.pick({1.0, 64.0, 8192.0});
  s.padded_width = random.chance(0.3);
}

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
  factors(d.weights, n), factors(d.kl_weights, n),
      factors(d.row_weights, static_cast<std::size_t>(rows));
  for (std::size_t k = 0; k < n; ++k) d.entropies.push_back(stored(random.uniform()));
  for (int i = 0; i < rows; ++i) d.truncated.push_back(random.below(2));
  return d;
}

/// Leaves what most calls have, for which lanes and kernels have a path of their own
/// (detail::Plain): one advantage per row, and no arrays beside the log-probs and the mask.
inline void simplify(Random& random, Data& d) {
  d.token_advantages.clear(), d.advantages.clear();
  for (int i = 0; i < d.rows; ++i)
    d.advantages.push_back(static_cast<float>(2 * random.uniform() - 1));
  d.weights.clear(), d.kl_weights.clear(), d.entropies.clear(), d.segments.clear();
}

/// Makes the settings fit the batch: a KL term against the old policy needs its log-probs, and
/// becomes one against the reference where there are none.
inline void fit(Settings& s, const Data& data) {
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
inline std::string describe(const Settings& s) {
  std::string text = "level " + std::to_string(level_index(s)) + ", surrogate " +
                     std::to_string(static_cast<int>(s.surrogate)) + " {" + std::to_string(s.low) +
                     ", " + std::to_string(s.high) + ", " + std::to_string(s.delta) + ", " +
                     std::to_string(s.dual) + "}";
  for (const naive_loss::Kl& k : s.kl) {
    text += ", kl estimator " + std::to_string(static_cast<int>(k.estimator)) + " rule " +
            std::to_string(static_cast<int>(k.rule)) + " beta " + std::to_string(k.beta) +
            " against " + std::to_string(static_cast<int>(k.against)) + " input [" +
            std::to_string(k.input.lo) + ", " + std::to_string(k.input.hi) + "] output [" +
            std::to_string(k.output.lo) + ", " + std::to_string(k.output.hi) + "]";
  }
  return text + ", aggregate " + std::to_string(static_cast<int>(s.aggregate)) + " over " +
         std::to_string(static_cast<int>(s.over));
}

}  // namespace loss_product
