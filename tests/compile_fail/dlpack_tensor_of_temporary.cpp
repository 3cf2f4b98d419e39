// expect: deleted
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

DLTensor dangling(gdpo::View<float, 1> v) { return gdpo::to_dlpack(v).tensor(); }
