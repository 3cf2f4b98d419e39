#pragma once
// AnyKl: a KL term whose formula is chosen when the program runs.
#include <gdpo/loss/kl.hpp>

namespace gdpo {
/// The estimators of namespace kl, by number.
enum class KlEstimator {
  K1,        ///< kl::K1
  Abs,       ///< kl::Abs
  K2,        ///< kl::K2
  K3,        ///< kl::K3
  ForwardK1  ///< kl::ForwardK1
};
/// The gradient rules of namespace kl, by number.
enum class KlGradient {
  Direct,                    ///< kl::Direct
  StraightThroughK2,         ///< kl::StraightThroughK2
  ScoreFunction,             ///< kl::ScoreFunction
  ImportanceWeighted,        ///< kl::ImportanceWeighted
  ImportanceWeightedK2,      ///< kl::ImportanceWeightedK2
  ClippedImportanceWeighted  ///< kl::ClippedImportanceWeighted
};
/// The factor of a KL term itself, by number.
enum class KlFactor {
  None,        ///< No factor.
  TeacherGate  ///< factor::TeacherGate
};
/// The enumerators of KlEstimator with their words.
GDPO_DATA_INLINE constexpr auto enumerators(KlEstimator) {
  using E = Enumerator<KlEstimator>;
  return std::array{E{"k1", KlEstimator::K1}, E{"abs", KlEstimator::Abs}, E{"k2", KlEstimator::K2},
                    E{"k3", KlEstimator::K3}, E{"forward_k1", KlEstimator::ForwardK1}};
}
/// The enumerators of KlGradient with their words.
GDPO_DATA_INLINE constexpr auto enumerators(KlGradient) {
  using E = Enumerator<KlGradient>;
  return std::array{E{"direct", KlGradient::Direct},
                    E{"straight_through_k2", KlGradient::StraightThroughK2},
                    E{"score_function", KlGradient::ScoreFunction},
                    E{"importance_weighted", KlGradient::ImportanceWeighted},
                    E{"importance_weighted_k2", KlGradient::ImportanceWeightedK2},
                    E{"clipped_importance_weighted", KlGradient::ClippedImportanceWeighted}};
}
/// The enumerators of KlFactor with their words.
GDPO_DATA_INLINE constexpr auto enumerators(KlFactor) {
  using E = Enumerator<KlFactor>;
  return std::array{E{"none", KlFactor::None}, E{"teacher_gate", KlFactor::TeacherGate}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// A KL term whose estimator, gradient rule and factor are chosen at run time.
///
/// Formulas and members are those of Kl; the estimator, the gradient rule and the factor are
/// members as well. It has no aggregate of its own: the settings of one would stand beside those of
/// the loss in every loss by name. Use the type for a term that has one (with_aggregate).
struct AnyKl {
  double beta = 0.04;                        ///< Coefficient, at least 0; 0: the term is off.
  Against against = Against::Ref;            ///< The other policy.
  Bounds input{};                            ///< Bounds of other - logp, in nats.
  Bounds output{};                           ///< Bounds of the value, in nats.
  KlEstimator estimator = KlEstimator::K3;   ///< The estimate of the divergence.
  KlGradient gradient = KlGradient::Direct;  ///< The rule for its gradient.
  /// Of kl::ImportanceWeightedK2 and kl::ClippedImportanceWeighted; other rules do not read it.
  double max_weight = 10;
  KlFactor factor = KlFactor::None;  ///< The detached factor of the term.
  double gate_beta = 5;              ///< Of factor::TeacherGate; not read without it.

  /// It may have a factor.
  static constexpr bool has_own_factors = true;
  /// Whether it has one.
  GDPO_INLINE bool is_weighed() const { return factor != KlFactor::None; }
  /// Calls f with the list of factors.
  GDPO_CALLS_ANY
  template <class F>
  GDPO_INLINE decltype(auto) with_factors(const F& f) const {
    if (factor == KlFactor::TeacherGate) return f(Factors<factor::TeacherGate>{{gate_beta}, {}});
    return f(Factors<>{});
  }
  // Neither call is inlined: each contains all formulas, for every V.
  template <class V>
  GDPO_DEVICE GDPO_NOINLINE Term<V> operator()(const Token<V>& t) const {
    return chosen([&](const auto& kl) { return kl(t); });
  }
  /// The same for a level whose ratio is the token's own: both derivatives are in d_logp.
  template <class V>
  GDPO_DEVICE GDPO_NOINLINE Term<V> own_ratio(const Token<V>& t) const {
    return chosen([&](const auto& kl) { return kl.own_ratio(t); });
  }
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("estimator", s.estimator, "the estimate of the divergence");
    field("gradient", s.gradient, "the rule for its gradient");
    field("beta", s.beta, at_least(0).with_note("0: off"), "coefficient of the KL term");
    field("against", s.against, "the other policy");
    field("input", s.input, "bounds of other - logp, in nats");
    field("output", s.output, "bounds of the value, in nats");
    kl::ImportanceWeightedK2::fields(s, field);
    field("factor", s.factor, "the detached factor of the term");
    factor::TeacherGate::fields(s, field);
  }

 private:
  template <class Estimator, class Gradient>
  GDPO_DEVICE Kl<Estimator, Gradient> as(const Gradient& rule = {}) const {
    return {beta, against, input, output, rule};
  }
  template <class Estimator, class F>
  GDPO_DEVICE auto with_gradient(const F& f) const {
    switch (gradient) {
      case KlGradient::StraightThroughK2:
        return f(as<Estimator, kl::StraightThroughK2>());
      case KlGradient::ScoreFunction:
        return f(as<Estimator, kl::ScoreFunction>());
      case KlGradient::ImportanceWeighted:
        return f(as<Estimator, kl::ImportanceWeighted>());
      case KlGradient::ImportanceWeightedK2:
        return f(as<Estimator, kl::ImportanceWeightedK2>({max_weight}));
      case KlGradient::ClippedImportanceWeighted:
        return f(as<Estimator, kl::ClippedImportanceWeighted>({max_weight}));
      case KlGradient::Direct:
        break;
    }
    return f(as<Estimator, kl::Direct>());
  }
  template <class F>
  GDPO_DEVICE auto chosen(const F& f) const {
    switch (estimator) {
      case KlEstimator::K1:
        return with_gradient<kl::K1>(f);
      case KlEstimator::Abs:
        return with_gradient<kl::Abs>(f);
      case KlEstimator::K2:
        return with_gradient<kl::K2>(f);
      case KlEstimator::ForwardK1:
        return with_gradient<kl::ForwardK1>(f);
      case KlEstimator::K3:
        break;
    }
    return with_gradient<kl::K3>(f);
  }
};

GDPO_END_NAMESPACE
