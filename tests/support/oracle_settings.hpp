// Settings of the library's policies for those of an oracle (reference/), and random ones. Both
// sides have a list of names: the library's is `fields` (core/fields.hpp).
#pragma once
#include <gdpo/core/list.hpp>
#include <gdpo/dist/describe.hpp>
#include <gdpo/math/check_fields.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <support/generators.hpp>
#include <support/member_count.hpp>
#include <type_traits>
#include <vector>

namespace oracle {

template <class T>
constexpr bool is_list_v = false;
template <class T, int Capacity>
constexpr bool is_list_v<gdpo::List<T, Capacity>> = true;
/// Whether a member of a policy is a setting with one value.
template <class Member>
constexpr bool is_value_v = std::is_arithmetic_v<Member> || std::is_enum_v<Member>;

/// Where each setting of a policy, in the order of its list of fields, is in the oracle's list.
/// `known(f)` calls f(name, number) for those that the oracle has, which the file `oracle` defines.
/// Throws where the oracle lacks one, or the list of fields a member, so that none is ignored.
/// Lists, such as weights, have no place.
template <class Policy, class Known>
std::vector<int> places(Policy& policy, const Known& known, const char* oracle) {
  using P = std::remove_const_t<Policy>;
  static_assert(gdpo::detail::has_fields_v<P> || std::is_empty_v<P>,
                "a policy with settings lists them as fields (core/fields.hpp)");
  std::vector<int> all;
  if constexpr (gdpo::detail::has_fields_v<P>) {
    const std::string type = gdpo::detail::type_name<P>();
    std::size_t fields = 0;
    P::fields(policy, [&fields](const auto&...) { ++fields; });
    if (fields != test::member_count<P>())
      throw std::logic_error(type + " has a member that is not among its fields");
    gdpo::detail::walk_fields(policy, {}, [&](const auto& path, auto& member, const auto&) {
      using Member = std::decay_t<decltype(member)>;
      if constexpr (is_value_v<Member>) {
        const std::string full = path.text();
        int place = -1, next = 0;
        known([&](const char* name, auto&) {
          if (full == name) place = next;
          ++next;
        });
        if (place < 0)
          throw std::logic_error(std::string("the oracle (reference/") + oracle +
                                 ") does not know the setting '" + full + "' of " + type);
        all.push_back(place);
      } else {
        static_assert(
            gdpo::detail::has_fields_v<Member> || std::is_empty_v<Member> || is_list_v<Member>,
            "a struct of settings lists them as fields (core/fields.hpp)");
      }
    });
  }
  return all;
}
/// Calls copy(member, number of the oracle) for each setting of a policy, by its place.
template <class Policy, class Known, class Copy>
void copy_settings(Policy& policy, const Known& known, const std::vector<int>& places,
                   const Copy& copy) {
  if constexpr (gdpo::detail::has_fields_v<std::remove_const_t<Policy>>) {
    std::size_t at = 0;
    gdpo::detail::walk_fields(policy, {}, [&](const auto&, auto& member, const auto&) {
      if constexpr (is_value_v<std::decay_t<decltype(member)>>) {
        int next = 0;
        known([&](const char*, auto& of_oracle) {
          if (next++ == places[at]) copy(member, of_oracle);
        });
        ++at;
      }
    });
  }
}
/// To the library, and to the oracle; enumerators by their numbers.
inline constexpr auto to_library = [](auto& member, const auto& of_oracle) {
  member = static_cast<std::decay_t<decltype(member)>>(of_oracle);
};
inline constexpr auto to_oracle = [](const auto& member, auto& of_oracle) {
  of_oracle = static_cast<std::decay_t<decltype(of_oracle)>>(member);
};

/// Random numbers for the settings of a policy, by their ranges and by what they decide together.
/// number(range, present) draws one that fits. What chooses the kind of a setting, `of` and `over`,
/// stays.
template <class Policy, class Number>
void random_policy(Random& random, Policy& policy, const Number& number) {
  if constexpr (gdpo::detail::has_fields_v<Policy>) {
    const Policy given = policy;
    while (true) {
      policy = given;
      gdpo::detail::walk_fields(policy, {}, [&](const auto& path, auto& member, const auto& info) {
        using Member = std::decay_t<decltype(member)>;
        const std::string_view name = path.name;
        if (name == "of" || name == "over") return;
        if constexpr (std::is_same_v<Member, bool>) {
          member = random.chance(0.5);
        } else if constexpr (std::is_enum_v<Member>) {
          const auto all = enumerators(member);
          member = all[static_cast<std::size_t>(random.below(static_cast<int>(all.size())))].value;
        } else if constexpr (std::is_arithmetic_v<Member>) {
          member = static_cast<Member>(number(info.range, static_cast<double>(member)));
        }
      });
      try {
        gdpo::detail::check_fields("random_policy", "", policy);
        return;
      } catch (const gdpo::invalid_input&) {  // two settings that do not go together
      }
    }
  }
}

}  // namespace oracle
