// The type of a variant with one more alternative.
#pragma once

#include <variant>

namespace conformance {

namespace detail {
template <class Variant, class More>
struct With;
template <class... Known, class More>
struct With<std::variant<Known...>, More> {
  using type = std::variant<Known..., More>;
};
}  // namespace detail

}  // namespace conformance
