// Compiles gdpo/with/dlpack.hpp, with the structs of DLPack 1.0, with -fno-exceptions -fno-rtti.
#include "support/dlpack_1.hpp"
// The structs stand before the header that uses them.
#include <gdpo/with/dlpack.hpp>

#include "support/no_exceptions.hpp"

int main() {
  using Managed = DLManagedTensorVersioned;
  const gdpo::DlpackTensor tensor(gdpo::to_dlpack_managed<Managed>(std::vector<float>{1, 2, 3}));
  const auto v = gdpo::view<float, 1>(tensor);
  expect("values", v.extent[0] == 3 && v(2) == 3);
  expect("visit", gdpo::visit_view<1, const double, const float>(
                      tensor, [](auto x) { return x.stride[0] == 1 && x(1) == 2; }));
  const auto lent = gdpo::to_dlpack(v);
  expect("lent", lent.tensor().data == v.data);
  expect_mistake("gdpo::view: rewards: given float32; needed: int64");
  gdpo::view<const std::int64_t, 1>(tensor, "rewards");
  std::puts("a tensor of floats went for one of integers");
  return EXIT_FAILURE;
}
