// expect: a DLManagedTensor cannot say that it is for reading only
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

auto* managed(std::shared_ptr<void> owner, gdpo::View<const float, 1> v) {
  return gdpo::to_dlpack_managed<DLManagedTensor>(owner, v);
}
