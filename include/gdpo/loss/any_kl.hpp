#pragma once
#include <gdpo/loss/kl.hpp>

namespace gdpo {
enum class KlEstimator { K1, Abs, K2, K3 };
enum class KlGradient { Direct, StraightThroughK2, ScoreFunction, ImportanceWeighted };
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// A KL term whose estimator and gradient rule are chosen at run time: the formulas and members of Kl, and two more.
struct AnyKl {
  double beta = 0.04;
  Against against = Against::Ref;
  Bounds input{}, output{};
  KlEstimator estimator = KlEstimator::K3;
  KlGradient gradient = KlGradient::Direct;

  // Not inlined: sixteen formulas, once for each V.
  template <class V>
  GDPO_DEVICE GDPO_NOINLINE Term<V> operator()(const Token<V>& t) const {
    return chosen([&](const auto& kl) { return kl(t); });
  }
  template <class V>
  GDPO_DEVICE GDPO_NOINLINE Term<V> own_ratio(const Token<V>& t) const {
    return chosen([&](const auto& kl) { return kl.own_ratio(t); });
  }
  void check(const char* function) const { as<kl::K3, kl::Direct>().check(function); }

 private:
  template <class Estimator, class Gradient>
  GDPO_DEVICE Kl<Estimator, Gradient> as() const {
    return {beta, against, input, output};
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
      case KlEstimator::K3:
        break;
    }
    return with_gradient<kl::K3>(f);
  }
};

GDPO_END_NAMESPACE
