// expect: for reading only
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

gdpo::DlpackView lent(gdpo::View<const float, 1> v) { return gdpo::to_dlpack(v); }
