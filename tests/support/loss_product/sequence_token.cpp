// Level SequenceToken: every surrogate and KL term.
#include "support/loss_product.hpp"

loss_product::Outcome loss_product::run_sequence_token(const Settings& s, const Data& data,
                                                       const gdpo::Normalizer* normalizer) {
  return detail::run_level<3, gdpo::level::SequenceToken<>>(s, data, normalizer);
}
