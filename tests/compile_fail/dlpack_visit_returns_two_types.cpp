// expect: must return the same type for every element type
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

auto first(const DLTensor& tensor) {
  return gdpo::visit_view<1, float, double>(tensor, [](auto v) { return v(0); });
}
