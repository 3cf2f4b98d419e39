// expect: no dtype has elements of this type
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

auto wide(const DLTensor& tensor) { return gdpo::view<long double, 1>(tensor); }
