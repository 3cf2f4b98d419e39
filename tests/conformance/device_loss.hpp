// Losses on the device: what the runner's losses are there.
#pragma once

#include <gdpo/loss.hpp>
#include <gdpo/runtime.hpp>
#include <type_traits>
#include <variant>

namespace conformance {

// Every loss of the runner, its KL term chosen at run time: few kernels to compile.
using gdpo::runtime::LossAt;
using DeviceLoss = std::variant<
    LossAt<gdpo::level::Token<>>, LossAt<gdpo::level::Token<gdpo::map::Clamp>>, LossAt<gdpo::level::Sequence<>>,
    LossAt<gdpo::level::SequenceToken<>>,
    gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce, gdpo::kl::None, gdpo::runtime::Aggregate>>;

template <class Estimator>
constexpr gdpo::KlEstimator estimator_v = std::is_same_v<Estimator, gdpo::kl::K1>    ? gdpo::KlEstimator::K1
                                          : std::is_same_v<Estimator, gdpo::kl::Abs> ? gdpo::KlEstimator::Abs
                                          : std::is_same_v<Estimator, gdpo::kl::K2>  ? gdpo::KlEstimator::K2
                                                                                     : gdpo::KlEstimator::K3;
template <class Gradient>
constexpr gdpo::KlGradient gradient_v =
    std::is_same_v<Gradient, gdpo::kl::StraightThroughK2>    ? gdpo::KlGradient::StraightThroughK2
    : std::is_same_v<Gradient, gdpo::kl::ScoreFunction>      ? gdpo::KlGradient::ScoreFunction
    : std::is_same_v<Gradient, gdpo::kl::ImportanceWeighted> ? gdpo::KlGradient::ImportanceWeighted
                                                             : gdpo::KlGradient::Direct;
template <class Kl>
Kl any_kl(const Kl& kl) {
  return kl;
}
template <class Estimator, class Gradient>
gdpo::AnyKl any_kl(const gdpo::Kl<Estimator, Gradient>& kl) {
  return {kl.beta, kl.against, kl.input, kl.output, estimator_v<Estimator>, gradient_v<Gradient>};
}

template <class Loss>
DeviceLoss device_loss(const Loss& loss) {
  return gdpo::with_kl(loss, any_kl(loss.kl));
}

// The loss, with the gradient at every token of the batch in `gradient`, if that is not null. S is double or float.
template <class S>
gdpo::LossResult on_device(const DeviceLoss& loss, const gdpo::TokenBatch<S>& batch, const gdpo::Normaliser& normaliser,
                           S* gradient);

// The counts of a batch.
template <class S>
gdpo::Normaliser count_on_device(const gdpo::TokenBatch<S>& batch);

}  // namespace conformance
