// Sets members of the loss of a case, whatever its type, and its pre-passes.
#pragma once

#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>

#include "as_is.hpp"
#include "loss.hpp"

namespace conformance {

template <class F>
void with_loss(LossSetup& setup, const F& f) {
  std::visit([&](auto& loss) { f(loss); }, setup.loss);
}

inline gdpo::Aggregate& aggregate_of(LossSetup& setup) {
  return std::visit([](auto& loss) -> gdpo::Aggregate& { return loss.aggregate; }, setup.loss);
}

template <class Loss>
constexpr bool clips_ratio = std::is_same_v<decltype(Loss::surrogate), gdpo::surrogate::Ratio>;

inline void set_clip(LossSetup& setup, double low, double high, double delta = gdpo::math::infinity,
                     double dual = gdpo::math::infinity) {
  with_loss(setup, [&](auto& loss) {
    const gdpo::surrogate::Ratio ratio{low, high, delta, dual};
    if constexpr (clips_ratio<std::decay_t<decltype(loss)>>) {
      loss.surrogate = ratio;
    } else {
      if (loss.surrogate.number != gdpo::runtime::AnySurrogate(ratio).number)
        throw std::logic_error("set_clip: this loss has another surrogate");
      loss.surrogate = ratio;
    }
  });
}
// Another surrogate, factor or map of a loss whose type leaves them to run time.
template <class Surrogate>
void set_surrogate(LossSetup& setup, const Surrogate& surrogate) {
  with_loss(setup, [&](auto& loss) {
    if constexpr (clips_ratio<std::decay_t<decltype(loss)>>)
      throw std::logic_error("set_surrogate: this loss clips the ratio");
    else
      loss.surrogate = surrogate;
  });
}
template <class Factor>
void set_factor(LossSetup& setup, const Factor& factor) {
  with_loss(setup, [&](auto& loss) {
    if constexpr (clips_ratio<std::decay_t<decltype(loss)>>)
      throw std::logic_error("set_factor: this loss has no factor");
    else
      loss.factor = gdpo::Factors<Factor>{factor, {}};
  });
}
template <class Map>
void set_map(LossSetup& setup, const Map& map) {
  with_loss(setup, [&](auto& loss) {
    if constexpr (std::is_same_v<decltype(loss.level.map), gdpo::AnyMap>)
      loss.level.map = map;
    else
      throw std::logic_error("set_map: this loss has a map of its own");
  });
}
// The bounds of the detached ratio of CISPO.
inline void set_ratio_bounds(LossSetup& setup, double min, double max) {
  set_factor(setup, gdpo::factor::ClippedRatio{min, max});
}

inline void set_beta(LossSetup& setup, double beta) {
  with_loss(setup, [&](auto& loss) { loss.kl.beta = beta; });
}
inline void set_kl(LossSetup& setup, gdpo::KlEstimator estimator,
                   gdpo::KlGradient gradient = gdpo::KlGradient::Direct) {
  with_loss(setup, [&](auto& loss) { loss.kl.estimator = estimator, loss.kl.gradient = gradient; });
}

inline void no_log_ratio_clamp(Params& params) {
  if (params.has("log_ratio_clamp"))
    throw Unsupported("a log_ratio_clamp is not mapped for this function");
}

// The loss at the level of tokens with a clamp of their log ratios.
inline gdpo::runtime::Loss with_token_clamp(const gdpo::runtime::Loss& loss, gdpo::Bounds clamp) {
  return std::visit(
      [&](const auto& of) -> gdpo::runtime::Loss {
        if constexpr (clips_ratio<std::decay_t<decltype(of)>>) {
          auto to = std::get<gdpo::runtime::LossAt<gdpo::level::Token<gdpo::map::Clamp>>>(
              gdpo::runtime::loss("verl::vanilla"));
          to.surrogate = of.surrogate, to.kl = of.kl, to.aggregate = of.aggregate;
          to.level.map = {clamp.lo, clamp.hi};
          return to;
        } else {
          throw Unsupported("a clamp of the log ratio is not mapped for this loss");
        }
      },
      loss);
}

// The clamp of the log ratio of tokens, which is that of the preset.
inline void check_log_ratio_clamp(Params& params, const LossSetup& setup) {
  std::visit(
      [&](const auto& loss) {
        if constexpr (std::is_same_v<std::decay_t<decltype(loss.level)>,
                                     gdpo::level::Token<gdpo::map::Clamp>>) {
          params.of_preset("log_ratio_clamp", gdpo::Bounds{loss.level.map.lo, loss.level.map.hi});
        }
      },
      setup.loss);
}

namespace detail {
template <class S, class F>
void then(PrepareAs<S>& first, const F& next) {
  if (!first) {
    first = next;
    return;
  }
  // Each keeps its decisions in a memory of its own.
  first = [first, next, memory = std::make_shared<gdpo::PrepassMemory<S>>()](
              const auto& batch, auto& of_first) { return next(first(batch, of_first), *memory); };
}
}  // namespace detail

// Adds a pre-pass, after those that were set before.
template <class F>
void set_prepare(LossSetup& setup, const F& prepare) {
  detail::then(std::get<0>(setup.prepare), prepare);
  detail::then(std::get<1>(setup.prepare), prepare);
}
// Binds the sampler's log-probs as old_logp, where there are some.
inline void old_is_rollout(LossSetup& setup) {
  set_prepare(setup, [](auto batch, auto&) {
    if (batch.rollout_logp) batch.old_logp = batch.rollout_logp;
    return batch;
  });
}

// Notes the settings of a pre-pass if presets of its kind exist.
template <class Pass>
void note_settings(LossSetup& setup, const Pass& pass) {
  if constexpr (std::is_constructible_v<gdpo::runtime::Prepass, Pass>)
    setup.passes.push_back(settings_of(pass));
}
template <class... Pass>
void set_passes(LossSetup& setup, const Pass&... pass) {
  (note_settings(setup, pass), ...);
  set_prepare(setup, [=](const auto& batch, auto& memory) {
    return gdpo::prepare(batch, memory, pass...);
  });
}

}  // namespace conformance
