// The loss types of names: every surrogate, detached factor and KL term in one type for each level.
#include <gdpo/runtime.hpp>

#include "support/loss_product.hpp"

namespace loss_product {
namespace {

template <class Level>
Outcome run_at(const Settings& s, const Data& data, const gdpo::Normaliser* normaliser) {
  gdpo::runtime::AnyLossAt<Level> loss;
  set_level(loss.level, s);
  switch (s.surrogate) {
    case naive_loss::Surrogate::Ratio:
      loss.surrogate = gdpo::surrogate::Ratio{s.low, s.high, s.delta, s.dual};
      break;
    case naive_loss::Surrogate::Reinforce:
      loss.surrogate = gdpo::surrogate::Reinforce{};
      break;
  }
  if (s.clipped_ratio)
    loss.factor = gdpo::Factors<gdpo::factor::ClippedRatio>{{s.min_ratio, s.max_ratio}, {}};
  loss.kl.beta = 0;
  if (!s.kl.empty()) {
    const naive_loss::Kl& kl = s.kl[0];
    loss.kl = {kl.beta,
               static_cast<gdpo::Against>(kl.against),
               bounds_of(kl.input),
               bounds_of(kl.output),
               static_cast<gdpo::KlEstimator>(kl.estimator),
               static_cast<gdpo::KlGradient>(kl.rule)};
  }
  loss.aggregate = aggregate_of(s);
  return call<double>(loss, data, normaliser);
}

}  // namespace

Outcome run_any(const Settings& s, const Data& data, const gdpo::Normaliser* normaliser) {
  switch (level_index(s)) {
    case 0:
      return run_at<gdpo::level::Token<>>(s, data, normaliser);
    case 1:
      return run_at<gdpo::level::Token<gdpo::map::Clamp>>(s, data, normaliser);
    case 2:
      return run_at<gdpo::level::Sequence<>>(s, data, normaliser);
    default:
      return run_at<gdpo::level::SequenceToken<>>(s, data, normaliser);
  }
}

}  // namespace loss_product
