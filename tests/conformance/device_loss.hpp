// Losses on the device: what the runner's losses are there.
#pragma once

#include <cstddef>
#include <gdpo/loss.hpp>
#include <gdpo/runtime.hpp>
#include <type_traits>
#include <variant>

namespace conformance {

// runtime::Aggregate for kernels, which cannot look into a std::variant.
struct DeviceAggregate {
  std::size_t which = 0;
  gdpo::aggregate::SeqMeanTokenMean seq_mean_token_mean{};
  gdpo::aggregate::TokenMean token_mean{};
  gdpo::aggregate::SeqMeanTokenSum seq_mean_token_sum{};
  gdpo::aggregate::SeqMeanTokenSumNorm seq_mean_token_sum_norm{};
  gdpo::aggregate::TokenSum token_sum{};

  DeviceAggregate() = default;
  DeviceAggregate(const gdpo::runtime::Aggregate& of) : which(of.mode.index()) {
    std::visit([this](const auto& mode) { chosen(mode) = mode; }, of.mode);
  }
  GDPO_DEVICE double operator()(const gdpo::AggregateArgs& a) const {
    switch (which) {
      case 0:
        return seq_mean_token_mean(a);
      case 1:
        return token_mean(a);
      case 2:
        return seq_mean_token_sum(a);
      case 3:
        return seq_mean_token_sum_norm(a);
      default:
        return token_sum(a);
    }
  }
  gdpo::runtime::Aggregate host() const {
    switch (which) {
      case 0:
        return {seq_mean_token_mean};
      case 1:
        return {token_mean};
      case 2:
        return {seq_mean_token_sum};
      case 3:
        return {seq_mean_token_sum_norm};
      default:
        return {token_sum};
    }
  }
  void check(const char* function) const { host().check(function); }
  bool reads_width() const { return host().reads_width(); }
  const char* divides_by_nothing(const gdpo::Normaliser& n) const { return host().divides_by_nothing(n); }

 private:
  gdpo::aggregate::SeqMeanTokenMean& chosen(const gdpo::aggregate::SeqMeanTokenMean&) { return seq_mean_token_mean; }
  gdpo::aggregate::TokenMean& chosen(const gdpo::aggregate::TokenMean&) { return token_mean; }
  gdpo::aggregate::SeqMeanTokenSum& chosen(const gdpo::aggregate::SeqMeanTokenSum&) { return seq_mean_token_sum; }
  gdpo::aggregate::SeqMeanTokenSumNorm& chosen(const gdpo::aggregate::SeqMeanTokenSumNorm&) {
    return seq_mean_token_sum_norm;
  }
  gdpo::aggregate::TokenSum& chosen(const gdpo::aggregate::TokenSum&) { return token_sum; }
};

// Every loss of the runner, its KL term chosen at run time: few kernels to compile.
template <class Level>
using DeviceLossAt = gdpo::PolicyLoss<Level, gdpo::surrogate::Ratio, gdpo::AnyKl, DeviceAggregate>;
using DeviceLoss =
    std::variant<DeviceLossAt<gdpo::level::Token<>>, DeviceLossAt<gdpo::level::Token<gdpo::map::Clamp>>,
                 DeviceLossAt<gdpo::level::Sequence<>>, DeviceLossAt<gdpo::level::SequenceToken<>>,
                 gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce, gdpo::kl::None, DeviceAggregate>>;

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
  return gdpo::with_kl(gdpo::with_aggregate(loss, DeviceAggregate(loss.aggregate)), any_kl(loss.kl));
}

// The loss, with the gradient at every token of the batch in `gradient`, if that is not null. S is double or float.
template <class S>
gdpo::LossResult on_device(const DeviceLoss& loss, const gdpo::TokenBatch<S>& batch, const gdpo::Normaliser& normaliser,
                           S* gradient);

// The counts of a batch.
template <class S>
gdpo::Normaliser count_on_device(const gdpo::TokenBatch<S>& batch);

}  // namespace conformance
