#pragma once
// AdaptiveEntropy: moves the coefficient of an entropy bonus until the entropy is at its target.
#include <gdpo/math/check_fields.hpp>

namespace gdpo {
/// The state of an AdaptiveEntropy: what a checkpoint has to keep.
struct EntropyState {
  double coef = 0;  ///< The coefficient. In the first step the one to begin with.
  /// The mean entropy of the last step in nats; infinite before the first, which has no bonus.
  double last_entropy = std::numeric_limits<double>::infinity();
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// A controller that moves the coefficient of an entropy bonus until the entropy is at its target.
/// Source: Skywork-OR1 (arXiv 2505.22312), section on adaptive entropy control; TRL's
/// use_adaptive_entropy.
///
///     applied = last_entropy <= target ? coef : 0                     in this step
///     coef'   = entropy <= target ? min(coef + delta, max_coef)
///                                 : max(coef - delta, min_coef)       after it
///
/// So the bonus acts only while the entropy is too low, and the longer it is, the stronger. The
/// state is a value that the caller keeps and saves:
///
///     loss.entropy = {controller.applied(state), gdpo::EntropyMean::Tokens};
///     const gdpo::LossResult r = loss(batch, counts, gradient);  // merged over the ranks
///     controller.update(state, r.metrics.entropy.mean());        // once a step
struct AdaptiveEntropy {
  double target = 0.2;   ///< Entropy to be kept, in nats, at least 0. TRL's entropy_target.
  double delta = 0.005;  ///< Step of the coefficient, at least 0. TRL's entropy_coef_delta.
  double min_coef = 0;   ///< Lower bound of the coefficient, at least 0.
  double max_coef = 1;   ///< Upper bound, at least min_coef.

  /// The coefficient of the bonus in this step.
  double applied(const EntropyState& state) const {
    check("gdpo::AdaptiveEntropy::applied", state);
    return state.last_entropy <= target ? state.coef : 0.0;
  }
  /// Moves the coefficient after a step. `entropy`: the mean over the tokens of the step, on all
  /// ranks, that the bonus is averaged over, in nats; one that is not finite changes nothing. Where
  /// TokenBatch::entropy_weights select tokens, that is not LossMetrics::entropy, which is over
  /// all: it is -entropy_loss of the same loss with the coefficient 1.
  void update(EntropyState& state, double entropy) const {
    check("gdpo::AdaptiveEntropy::update", state);
    if (math::not_finite(entropy)) return;
    state.coef = entropy <= target ? (math::min)(state.coef + delta, max_coef)
                                   : (math::max)(state.coef - delta, min_coef);
    state.last_entropy = entropy;
  }

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("target", s.target, at_least(0), "the entropy to be kept, in nats");
    field("delta", s.delta, at_least(0), "the step of the coefficient");
    field("min_coef", s.min_coef, at_least(0), "lower bound of the coefficient");
    field("max_coef", s.max_coef, at_least(0), "upper bound of the coefficient");
  }
  /// Throws unless min_coef <= max_coef.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (min_coef <= max_coef) return;
    contract::fail(function, path.text("min_coef") + ", " + path.text("max_coef"),
                   contract::text(min_coef) + " and " + contract::text(max_coef),
                   "the lower before the upper");
  }

 private:
  void check(const char* function, const EntropyState& state) const {
    detail::check_fields(function, "", *this);
    if (!(state.coef >= 0) || math::not_finite(state.coef)) {
      contract::fail(function, "state.coef", contract::text(state.coef),
                     "a finite number of at least 0");
    }
    if (math::is_nan(state.last_entropy)) {
      contract::fail(function, "state.last_entropy", "nan",
                     "the entropy of the last step, or infinity before the first");
    }
  }
};

GDPO_END_NAMESPACE
