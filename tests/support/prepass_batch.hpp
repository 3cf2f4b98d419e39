// Random batches and pre-passes to compare prepare() of a device with that of the host.
#pragma once
#include <cmath>
#include <gdpo/cuda/prepass/device_prepare.hpp>
#include <gdpo/prepass.hpp>

#include "support/device.hpp"
#include "support/generators.hpp"

namespace prepass_batch {

using gdpo::index_t, gdpo::Reach;
namespace prepass = gdpo::prepass;

/// How the tokens of a batch stand.
enum class Kind { Padded, Grouped, Packed };

/// The numbers of a batch, position by position, with columns. Any of the optional arrays may be
/// empty. Masked places hold nonsense.
struct Numbers {
  Kind kind = Kind::Padded;
  index_t rows = 0, width = 0;
  std::vector<index_t> offsets;
  std::vector<double> logp, old_logp, rollout_logp, teacher_logp, token_advantages, weights,
      kl_weights, level_log_weights, entropies, tags, advantages, truncated, degenerate, groups;
  std::vector<unsigned char> mask;
  std::vector<std::int64_t> segments;

  std::size_t positions() const { return logp.size(); }
};

/// A batch of up to `most_rows` rows of up to `longest` tokens. A share of `wild` of the rollout
/// log-probs and entropies is NaN or infinite; half the batches have few different numbers.
inline Numbers random_numbers(Random& random, int most_rows, int longest, double wild) {
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  Numbers d;
  d.kind = random.pick({Kind::Padded, Kind::Grouped, Kind::Packed});
  d.rows = 1 + random.below(most_rows), d.width = 1 + random.below(longest);
  if (d.kind == Kind::Grouped) d.rows += d.rows % 2;
  d.offsets.push_back(0);
  for (index_t i = 0; i < d.rows; ++i) {
    const bool full = d.kind != Kind::Packed || random.chance(0.3);
    d.offsets.push_back(d.offsets.back() +
                        (full ? d.width : random.below(static_cast<int>(d.width) + 1)));
    d.advantages.push_back(random.chance(0.2) ? 0 : static_cast<float>(random.uniform() - 0.5));
    d.truncated.push_back(random.below(2)), d.degenerate.push_back(random.below(2));
    d.groups.push_back(random.chance(0.05) ? nan : random.below(4));
  }
  const auto n = static_cast<std::size_t>(d.offsets.back());
  const bool coarse = random.chance(0.5);
  const auto number = [&] {
    return coarse ? 0.125 * random.below(9)
                  : static_cast<double>(static_cast<float>(random.uniform()));
  };
  const bool old = random.chance(0.8), tokens = random.chance(0.5), masked = random.chance(0.8),
             weights = random.chance(0.5), kl_weights = random.chance(0.5),
             level_logs = random.chance(0.3), segments = random.chance(0.6);
  for (std::size_t k = 0; k < n; ++k) {
    const double x = -2 * number();
    d.logp.push_back(x);
    if (old) d.old_logp.push_back(x + 0.5 * (number() - 0.5));
    d.rollout_logp.push_back(random.chance(wild) ? random.pick({nan, -inf, inf})
                                                 : x + number() - 0.5);
    d.teacher_logp.push_back(random.chance(wild) ? random.pick({nan, -inf, inf})
                                                 : x + number() - 0.5);
    if (tokens) d.token_advantages.push_back(random.chance(wild) ? nan : number() - 0.5);
    if (weights) d.weights.push_back(random.pick({0.0, 1.0, 0.5}));
    if (kl_weights) d.kl_weights.push_back(random.pick({0.0, 1.0, 0.5}));
    if (level_logs) d.level_log_weights.push_back(random.pick({0.0, -0.5, 0.25, number()}));
    d.entropies.push_back(random.chance(wild) ? random.pick({nan, inf, -inf, -0.0})
                                              : number() - 0.2);
    d.tags.push_back(random.chance(wild) ? nan : number() - 0.6);
    if (segments)
      d.segments.push_back(random.chance(0.1) ? random.below(3) : k == 0 ? 0 : d.segments.back());
    if (!masked) continue;
    d.mask.push_back(random.chance(0.8));
    if (d.mask.back()) continue;
    for (auto* array : {&d.logp, &d.old_logp, &d.rollout_logp, &d.teacher_logp, &d.token_advantages,
                        &d.weights, &d.kl_weights, &d.level_log_weights, &d.entropies, &d.tags}) {
      if (!array->empty()) array->back() = random.pick({nan, inf, -inf, 1e30, 0.0});
    }
  }
  return d;
}

/// The same numbers with other nonsense at masked places.
inline Numbers poisoned(Numbers d) {
  for (std::size_t k = 0; k < d.mask.size(); ++k) {
    if (d.mask[k]) continue;
    for (auto* array : {&d.logp, &d.old_logp, &d.rollout_logp, &d.teacher_logp, &d.token_advantages,
                        &d.weights, &d.kl_weights, &d.level_log_weights, &d.entropies, &d.tags}) {
      if (!array->empty()) (*array)[k] = k % 2 ? 7 : std::nan("");
    }
    if (!d.segments.empty()) d.segments[k] = 99;
  }
  return d;
}

/// A batch of S whose arrays are of Memory: std::vector on the host, OnDevice on a device.
template <class S, template <class...> class Memory>
class Stored {
 public:
  gdpo::TokenBatch<S> batch;
  gdpo::Column truncated, degenerate, groups;

  explicit Stored(const Numbers& d) : d_(d) {
    set(d.logp, logp_, batch.logp), set(d.old_logp, old_, batch.old_logp);
    set(d.rollout_logp, rollout_, batch.rollout_logp);
    set(d.teacher_logp, teacher_, batch.teacher_logp);
    set(d.token_advantages, token_advantages_, batch.token_advantages);
    set(d.weights, weights_, batch.weights), set(d.kl_weights, kl_weights_, batch.kl_weights);
    set(d.entropies, entropies_, batch.entropies), set(d.tags, tags_, batch.tags);
    set(d.level_log_weights, level_logs_, batch.level_log_weights);
    mask_ = Memory<unsigned char>(d.mask), segments_ = Memory<std::int64_t>(d.segments);
    if (!d.mask.empty()) batch.mask = view<unsigned char>(mask_.data());
    if (!d.segments.empty()) batch.segments = view<std::int64_t>(segments_.data());
    offsets_ = Memory<index_t>(d.offsets);
    if (d.kind == Kind::Packed) batch.offsets = gdpo::view(offsets_.data(), d.rows + 1);
    advantages_ = Memory<double>(d.advantages), truncated_ = Memory<double>(d.truncated);
    degenerate_ = Memory<double>(d.degenerate), groups_ = Memory<double>(d.groups);
    if (d.token_advantages.empty()) batch.advantages = gdpo::view(advantages_.data(), d.rows);
    truncated = gdpo::view(truncated_.data(), d.rows);
    degenerate = gdpo::view(degenerate_.data(), d.rows);
    groups = gdpo::view(groups_.data(), d.rows);
  }
  Stored(const Stored&) = delete;

 private:
  template <class T>
  gdpo::TokenView<T> view(T* data) const {
    if (d_.kind == Kind::Packed) return gdpo::view(data, static_cast<index_t>(d_.positions()));
    if (d_.kind == Kind::Padded) return gdpo::view(data, d_.rows, d_.width);
    return gdpo::view(data, d_.rows / 2, 2, d_.width);
  }
  void set(const std::vector<double>& from, Memory<S>& to, gdpo::TokenView<S>& in) {
    std::vector<S> as_stored(from.begin(), from.end());
    to = Memory<S>(as_stored);
    if (!from.empty()) in = view<S>(to.data());
  }
  const Numbers d_;
  Memory<S> logp_, old_, rollout_, teacher_, token_advantages_, weights_, kl_weights_, level_logs_,
      entropies_, tags_;
  Memory<unsigned char> mask_;
  Memory<std::int64_t> segments_;
  Memory<index_t> offsets_;
  Memory<double> advantages_, truncated_, degenerate_, groups_;
};
template <class... T>
using OnHost = std::vector<typename std::tuple_element<0, std::tuple<T...>>::type>;
template <class... T>
using InDevice = OnDevice<typename std::tuple_element<0, std::tuple<T...>>::type>;

/// A pre-pass that is chosen at run time, as the operators for Python have them.
struct AnyPass {
  std::variant<prepass::Importance, prepass::Gate, prepass::MeanOne, prepass::Overlong,
               prepass::DegenerateGroups, prepass::TopEntropy, prepass::SecondMoment,
               prepass::Covariance, prepass::FutureKl, prepass::TeacherRatio,
               prepass::TeacherPrefix, prepass::EntropyClip>
      chosen;
  Reach reach = Reach::None;
  double* threshold = nullptr;  ///< Where TopEntropy leaves its threshold on the host.

  template <class S>
  void operator()(const gdpo::PrepassArgs<S>& args) const {
    std::visit(
        [&](const auto& pass) {
          if constexpr (std::is_same_v<decltype(pass(args)), gdpo::EntropyThreshold>) {
            *threshold = pass(args).value;
          } else {
            pass(args);
          }
        },
        chosen);
  }
  bool is_shared() const {
    return std::visit([](const auto& pass) { return gdpo::detail::is_shared(pass); }, chosen);
  }
  void check(const char* function) const {
    std::visit([function](const auto& pass) { gdpo::detail::check_fields(function, pass); },
               chosen);
  }
};
/// With the columns of a batch.
template <class Stored>
AnyPass bound(AnyPass any, const Stored& to) {
  std::visit(
      [&](auto& pass) {
        using Pass = std::decay_t<decltype(pass)>;
        if constexpr (std::is_same_v<Pass, prepass::Overlong>) pass.truncated = to.truncated;
        if constexpr (std::is_same_v<Pass, prepass::DegenerateGroups>)
          pass.degenerate = to.degenerate;
        if constexpr (std::is_same_v<Pass, prepass::Importance> ||
                      std::is_same_v<Pass, prepass::Gate>)
          pass.groups = to.groups;
      },
      any.chosen);
  return any;
}

template <class E>
E any_of(Random& random) {
  const auto all = enumerators(E{});
  return all[static_cast<std::size_t>(random.below(static_cast<int>(all.size())))].value;
}

/// A random pre-pass of that number (AnyPass::chosen), with any settings and reach.
inline AnyPass random_pass(Random& random, int kind) {
  AnyPass any;
  const auto bounds = [&](double lo, double hi) {
    return random.chance(0.6) ? gdpo::Bounds{} : gdpo::Bounds{lo, hi};
  };
  bool weighs = false;
  if (kind == 0) {
    prepass::Importance p;
    p.statistic = any_of<prepass::Statistic>(random), p.pair = any_of<prepass::Pair>(random);
    p.missing = any_of<prepass::MissingRollout>(random);
    p.clip = bounds(0.5, 1.5), p.clamp = bounds(-0.5, 0.5), p.token_clamp = bounds(-0.3, 0.3);
    p.count_eps = random.pick({0.0, 1e-3});
    any.chosen = p, weighs = true;
  } else if (kind == 1) {
    prepass::Gate p;
    p.estimator = any_of<prepass::Estimator>(random), p.pair = any_of<prepass::Pair>(random);
    p.statistic = any_of<prepass::Statistic>(random), p.when = any_of<prepass::When>(random);
    p.advantage = any_of<prepass::GateAdvantage>(random);
    p.missing = any_of<prepass::MissingRollout>(random);
    p.clamp = bounds(-0.5, 0.5), p.eps = random.pick({0.0, 1e-6});
    if (random.chance(0.7)) p.max = random.pick({0.01, 0.1, 1.1});
    if (random.chance(0.5)) p.min = random.pick({-0.1, 0.005});
    any.chosen = p;
  } else if (kind == 2) {
    any.chosen = prepass::MeanOne{any_of<prepass::MeanOf>(random), Reach::Surrogate,
                                  random.pick({0.0, 1e-8, 0.5})},
    weighs = true;
  } else if (kind == 3) {
    any.chosen = prepass::Overlong{};
  } else if (kind == 4) {
    any.chosen = prepass::DegenerateGroups{};
  } else if (kind == 5) {
    prepass::TopEntropy p;
    p.quantile = random.pick({0.0, 0.25, 0.8, 1.0, random.uniform()});
    if (random.chance(0.2)) p.threshold = 0.5;
    any.chosen = p;
  } else if (kind == 6) {
    prepass::SecondMoment p;
    p.threshold = random.pick({0.04, 0.01, 1e-6, 10.0, std::numeric_limits<double>::infinity()});
    p.missing = any_of<prepass::MissingRollout>(random);
    any.chosen = p;
  } else if (kind == 7) {
    prepass::Covariance p;
    p.pick = any_of<prepass::CovariancePick>(random);
    p.keep = any_of<prepass::CovarianceKeep>(random);
    p.share = random.pick({0.0, 2e-4, 0.1, 0.5, 1.0});
    p.min = random.pick({-1.0, 0.0, 0.01}), p.max = random.pick({0.05, 5.0});
    p.seed = random.below(100);
    any.chosen = p;
  } else if (kind == 8) {
    prepass::FutureKl p;
    p.gamma = random.pick({0.0, 0.9, 1.0}), p.drop_above = random.pick({1.2, 100.0});
    p.safety = random.pick({1.1, std::numeric_limits<double>::infinity()});
    p.clip = bounds(0.9, 1.2);
    any.chosen = p, weighs = true;
  } else if (kind == 9) {
    prepass::TeacherRatio p;
    p.mix = random.pick({0.0, 0.5, 1.0, random.uniform()});
    p.clip = bounds(0.9, 1.2), p.negative_only = random.chance(0.3);
    any.chosen = p, weighs = true;
  } else if (kind == 10) {
    any.chosen = prepass::TeacherPrefix{random.pick({0.0, 0.5, 2.0}), random.pick({1e-8, 0.5})};
    weighs = true;
  } else {
    prepass::EntropyClip p;
    p.mu = random.pick({0.0, 0.5, 1.0, 2.5}), p.center = any_of<gdpo::EntropyCenter>(random);
    p.max_share = random.pick({0.0, 0.05, 0.3, 1.0}), p.zero_advantage = random.chance(0.5);
    p.policy = random.pick({gdpo::Against::Old, gdpo::Against::Rollout});
    any.chosen = p;
  }
  const auto refused = [&] {
    return (weighs && any.reach == Reach::Mask) || (kind > 2 && any.reach == Reach::Level);
  };
  do {
    any.reach = any_of<Reach>(random);
  } while (refused());
  return any;
}
constexpr int kinds = 12;

/// Memory for the prepared batches of a device, of exactly as many bytes as are needed, with NaN.
class DeviceMemory {
 public:
  template <class S>
  explicit DeviceMemory(const gdpo::TokenBatch<S>& batch)
      : scratch_(gdpo::cuda::prepass_bytes(batch)) {
    memory_.data = scratch_().data, memory_.bytes = scratch_().bytes;
  }
  gdpo::cuda::PrepassMemory& operator()() { return memory_; }

 private:
  TestScratch scratch_;
  gdpo::cuda::PrepassMemory memory_;
};

}  // namespace prepass_batch
