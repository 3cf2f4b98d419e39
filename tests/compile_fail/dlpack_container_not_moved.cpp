// expect: write std::move(container)
#include "../support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

auto* managed(std::vector<float>& values) {
  return gdpo::to_dlpack_managed<DLManagedTensor>(values, gdpo::view(values));
}
