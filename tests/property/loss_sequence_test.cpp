// Level Sequence: every surrogate and KL term of the product, compared with the formulas. This file
// compiles the level.
#include "support/catch.hpp"
#include "support/loss_product.hpp"

loss_product::Outcome loss_product::run_sequence(const Settings& s, const Data& data,
                                                 const gdpo::Normaliser* normaliser) {
  return detail::run_level<2, gdpo::level::Sequence<>>(s, data, normaliser);
}

TEST_CASE("level Sequence: loss, gradient and metrics are those of the formulas",
          "[loss][product]") {
  loss_product::check_level(2);
}
