// The loss of any settings, from the file of its level.
#include "support/loss_product.hpp"

namespace loss_product {

Outcome run(const Settings& s, const Data& data, const gdpo::Normaliser* normaliser) {
  switch (level_index(s)) {
    case 0:
      return run_token(s, data, normaliser);
    case 1:
      return run_clamped(s, data, normaliser);
    case 2:
      return run_sequence(s, data, normaliser);
    default:
      return run_sequence_token(s, data, normaliser);
  }
}

}  // namespace loss_product
