// The loss of any settings, from the file of its level.
#include "support/loss_product.hpp"

namespace loss_product {
namespace {

template <class... S>
naive_loss::Surrogate surrogate_of(int at, const std::tuple<S...>*) {
  const naive_loss::Surrogate all[] = {known_as<naive_loss::Surrogate, S>()...};
  return all[at];
}
template <class... F>
naive_loss::Factor factor_of(int at, const std::tuple<F...>*) {
  const naive_loss::Factor all[] = {naive_loss::NoFactor{}, known_as<naive_loss::Factor, F>()...};
  return all[at];
}

}  // namespace

naive_loss::Surrogate surrogate_at(int at) {
  return surrogate_of(at, static_cast<Surrogates*>(nullptr));
}
naive_loss::Factor factor_at(int at) {
  return factor_of(at, static_cast<DetachedFactors*>(nullptr));
}

Outcome run(const Settings& s, const Data& data, const gdpo::Normalizer* normalizer) {
  const bool plain = s.map == naive_loss::Map::None && s.statistic == naive_loss::Statistic::Mean;
  if (s.level != naive_loss::Level::Token && !plain) return run_any(s, data, normalizer);
  switch (level_index(s)) {
    case 0:
      return run_token(s, data, normalizer);
    case 1:
      return run_clamped(s, data, normalizer);
    case 2:
      return run_sequence(s, data, normalizer);
    default:
      return run_sequence_token(s, data, normalizer);
  }
}

}  // namespace loss_product
