// expect: keys stand beside groups by id
#include <gdpo/dist.hpp>

void f(gdpo::View<const float, 2> rewards, gdpo::View<const int, 1> keys) {
  gdpo::dist::gather_rows(gdpo::dist::Single{}, gdpo::RewardBatch{rewards, gdpo::groups_of(8)},
                          keys);
}
