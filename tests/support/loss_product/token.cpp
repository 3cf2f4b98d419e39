// Level Token: every surrogate and KL term.
#include "support/loss_product.hpp"

loss_product::Outcome loss_product::run_token(const Settings& s, const Data& data,
                                              const gdpo::Normalizer* normalizer) {
  return detail::run_level<0, gdpo::level::Token<>>(s, data, normalizer);
}
