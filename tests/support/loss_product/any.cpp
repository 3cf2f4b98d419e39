// The loss types of names: every surrogate, detached factor and KL term in one type for each level.
#include "support/loss_product.hpp"

namespace loss_product {
namespace {

/// Chooses the surrogate of these settings.
template <class Any, class... S>
void choose_surrogate(Any& any, const Settings& s, const std::tuple<S...>*) {
  const auto try_type = [&](auto surrogate) {
    if (known_as<naive_loss::Surrogate, decltype(surrogate)>().index() != s.surrogate.index())
      return;
    set_surrogate(surrogate, s);
    any = surrogate;
  };
  (try_type(S{}), ...);
}
/// The same for the factor.
template <class Any, class... F>
void choose_factor(Any& any, const Settings& s, const std::tuple<F...>*) {
  const auto try_type = [&](auto factors) {
    if (known_as<naive_loss::Factor, decltype(factors.first)>().index() != s.detached.index())
      return;
    set_factor(factors, s);
    any = factors;
  };
  (try_type(gdpo::Factors<F>{}), ...);
}
template <class Level>
Outcome run_at(const Settings& s, const Data& data, const gdpo::Normalizer* normalizer) {
  gdpo::runtime::AnyLossAt<Level> loss;
  set_level(loss.level, s);
  choose_surrogate(loss.surrogate, s, static_cast<Surrogates*>(nullptr));
  choose_factor(loss.factor, s, static_cast<DetachedFactors*>(nullptr));
  loss.kl.beta = 0;
  if (!s.kl.empty()) set_term(loss.kl, s, 0);
  loss.aggregate = aggregate_of(s);
  set_entropy(loss.entropy, s);
  return call<double>(loss, data, normalizer);
}

}  // namespace

Outcome run_any(const Settings& s, const Data& data, const gdpo::Normalizer* normalizer) {
  switch (level_index(s)) {
    case 0:
      return run_at<gdpo::level::Token<>>(s, data, normalizer);
    case 1:
      return run_at<gdpo::level::Token<gdpo::map::Clamp>>(s, data, normalizer);
    case 2:
      return run_at<gdpo::level::Sequence<>>(s, data, normalizer);
    default:
      return run_at<gdpo::level::SequenceToken<>>(s, data, normalizer);
  }
}

}  // namespace loss_product
