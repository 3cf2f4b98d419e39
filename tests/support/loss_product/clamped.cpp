// Level Token with clamped log ratios: every surrogate and KL term.
#include "support/loss_product.hpp"

loss_product::Outcome loss_product::run_clamped(const Settings& s, const Data& data,
                                                const gdpo::Normalizer* normalizer) {
  return detail::run_level<1, gdpo::level::Token<gdpo::map::Clamp>>(s, data, normalizer);
}
