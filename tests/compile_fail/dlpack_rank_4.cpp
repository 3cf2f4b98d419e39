// expect: a view has rank 1, 2 or 3
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

auto wide(const DLTensor& tensor) { return gdpo::view<float, 4>(tensor); }
