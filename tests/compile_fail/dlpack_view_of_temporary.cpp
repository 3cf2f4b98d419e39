// expect: deleted
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

auto dangling(DLManagedTensor* managed) {
  return gdpo::view<float, 1>(gdpo::DlpackTensor(managed));
}
