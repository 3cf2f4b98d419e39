// expect: values are whitened into float or double
#include <gdpo/advantages.hpp>

void use(gdpo::View<const float, 2> values, gdpo::View<const bool, 2> mask) {
  gdpo::whiten_into(values, mask, gdpo::renorm::token_weighted_batch(), values);
}
