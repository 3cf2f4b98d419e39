#pragma once
// Every loss that has a name at run time, for tests of steps.
#include <gdpo/runtime.hpp>

namespace loss_product {

/// Calls f(name, loss) for each loss by name. Each of them gets a length to divide by, because
/// packed tokens have no padded width.
template <class F>
void for_each_named_loss(const F& f) {
  for (const std::string& name : gdpo::runtime::loss_names()) {
    std::visit(
        [&](auto loss) {
          loss.aggregate.constant = 7;
          f(name, loss);
        },
        gdpo::runtime::loss(name));
  }
}

}  // namespace loss_product
