// Level Token with clamped log ratios: every surrogate and KL term of the product, compared with
// the formulas. This file compiles the level.
#include "support/catch.hpp"
#include "support/loss_product.hpp"

loss_product::Outcome loss_product::run_clamped(const Settings& s, const Data& data,
                                                const gdpo::Normaliser* normaliser) {
  return detail::run_level<1, gdpo::level::Token<gdpo::map::Clamp>>(s, data, normaliser);
}

TEST_CASE(
    "level Token with clamped log ratios: loss, gradient and metrics are those of the formulas",
    "[loss][product]") {
  loss_product::check_level(1);
}
