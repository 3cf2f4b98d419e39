#pragma once
// Chain: several pre-passes as one value, such as a weight and a mask.
#include <gdpo/prepass/gate.hpp>
#include <gdpo/prepass/importance.hpp>
#include <gdpo/prepass/mean_one.hpp>
#include <tuple>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// Several pre-passes that prepare() takes as one argument, as if they stood there one after the
/// other. It is how a trainer's correction has one name: `trl::token_mask` is a weight and a gate.
///
/// The parts are `first`, `rest.first`, `rest.rest.first`, ... Their settings have the name of the
/// part in front: "importance.clip.hi", "gate.max". No part may occur twice.
template <class... P>
struct Chain;
/// No part.
template <>
struct Chain<> {
  /// It has no settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self&, const Field&) {}
};
/// At least one part.
template <class First, class... Rest>
struct Chain<First, Rest...> {
  static_assert((!std::is_same_v<First, Rest> && ...),
                "a Chain has each part once: the settings of a part are named by its type");
  First first{};                                ///< The part that runs first.
  Chain<Rest...> rest{};                        ///< The others.
  static constexpr const char* name = "chain";  ///< What messages call it.
  /// The settings of all parts (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field(First::name, s.first);
    field("", s.rest);
  }
};

/// A weight, and a mask by a bound of its own.
using MaskedImportance = Chain<Importance, Gate>;

}  // namespace prepass

namespace detail {

template <class P>
constexpr bool is_chain_v = false;
template <class... P>
constexpr bool is_chain_v<prepass::Chain<P...>> = true;

/// The parts of a pre-pass as a tuple: of a chain its own, else the pre-pass alone.
template <class P>
constexpr auto parts_of(const P& pass) {
  return std::tuple<P>(pass);
}
constexpr std::tuple<> parts_of(const prepass::Chain<>&) { return {}; }
template <class First, class... Rest>
constexpr auto parts_of(const prepass::Chain<First, Rest...>& chain) {
  return std::tuple_cat(std::tuple<First>(chain.first), parts_of(chain.rest));
}

}  // namespace detail
GDPO_END_NAMESPACE
