// expect: deleted
#include <gdpo/update/plan.hpp>

auto dangling = gdpo::update::plan(4, {}).rows(0);
