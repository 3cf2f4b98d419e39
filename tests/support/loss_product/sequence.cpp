// Level Sequence: every surrogate and KL term.
#include "support/loss_product.hpp"

loss_product::Outcome loss_product::run_sequence(const Settings& s, const Data& data,
                                                 const gdpo::Normalizer* normalizer) {
  return detail::run_level<2, gdpo::level::Sequence<>>(s, data, normalizer);
}
