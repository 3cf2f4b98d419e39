#pragma once
// Checks of the settings of policies.
#include <gdpo/core/fields.hpp>
#include <gdpo/math/scalar.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Runs the check that a policy makes of its own settings, if it has one. The contract is a member
/// `void check(const char* function) const` that throws invalid_input for a setting out of its
/// range.
template <class P, class = void>
struct Checks {
  static void run(const P&, const char*) {}
};
template <class P>
struct Checks<P, std::void_t<decltype(std::declval<const P&>().check(""))>> {
  static void run(const P& policy, const char* function) { policy.check(function); }
};

/// Whether a number fits.
inline bool fits(const Range& r, double x) {
  if (math::is_nan(x)) return r.nan;
  if (math::is_inf(x)) return r.infinity && (x > 0 ? !r.open_above : r.low == -math::infinity);
  return (r.open ? x > r.low : x >= r.low) && (r.open_above ? x < r.high : x <= r.high);
}
/// The numbers that fit, as a message says them: "0 to 1 (the ratio is clipped to 1 - low), or
/// infinity: off".
GDPO_COLD inline std::string needed(const Range& r, bool integer) {
  const auto text = [integer](double x) {
    return integer ? std::string(contract::text(static_cast<index_t>(x)))
                   : std::string(contract::text(x));
  };
  const std::string kind = integer ? "an integer" : r.infinity ? "a number" : "a finite number";
  const bool from = r.low > -math::infinity, to = r.high < math::infinity;
  std::string words =
      from && to && r.open ? "more than " + text(r.low) +
                                 (r.open_above ? " and below " : " and at most ") + text(r.high)
      : from && to   ? text(r.low) + (r.open_above ? " to below " : " to ") + text(r.high)
      : from         ? (r.open ? "more than " : "at least ") + text(r.low)
      : to           ? (r.open_above ? "below " : "at most ") + text(r.high)
      : r.open_above ? "below infinity"
                     : "";
  if (words.empty()) {
    words = kind;
  } else if (!from || (!to && !r.infinity && !integer)) {
    words = kind + (r.open || !from ? " " + std::string(from ? "that is " : "") : " of ") + words;
  }
  if (*r.note) words += std::string(" (") + r.note + ")";
  if (r.infinity && from) {
    const std::string off = std::string("infinity: ") + r.at_infinity;
    words += *r.note ? ", or " + off : " (" + off + ")";
  }
  return words;
}

/// Throws unless every setting of a struct is in its range. `visit` of walk_fields.
struct CheckField {
  const char* function;

  template <class T>
  void operator()(const FieldPath& path, const T& member, const FieldInfo& info) const {
    if constexpr (std::is_enum_v<T>) {
      static_assert(has_enumerators_v<T>, "an enumeration of settings needs enumerators(E)");
      if (word_of(member)) return;
      contract::fail(function, path.text(),
                     contract::text(static_cast<index_t>(member)) + ", which is no enumerator",
                     "one of " + words_of<T>(", "));
    } else if constexpr (std::is_floating_point_v<T> ||
                         (std::is_integral_v<T> && !std::is_same_v<T, bool>)) {
      if (fits(info.range, static_cast<double>(member))) return;
      if constexpr (std::is_integral_v<T>) {
        contract::fail(function, path.text(), contract::text(static_cast<index_t>(member)),
                       needed(info.range, true));
      } else {
        contract::fail(function, path.text(), contract::text(static_cast<double>(member)),
                       needed(info.range, false));
      }
    } else {
      together(path, member, 0);
    }
  }

 private:
  /// What the fields of a struct decide together, or what a policy without fields checks itself.
  template <class T>
  auto together(const FieldPath& path, const T& x, int) const
      -> decltype(x.check_together(function, path)) {
    x.check_together(function, path);
  }
  template <class T>
  void together(const FieldPath&, const T& x, long) const {
    if constexpr (!has_fields_v<T>) Checks<T>::run(x, function);
  }
};
/// Throws invalid_input unless every setting of `x`, which messages call `name`, is in its range.
template <class T>
void check_fields(const char* function, const char* name, const T& x) {
  const CheckField check{function};
  const FieldPath path{nullptr, name};
  if constexpr (has_fields_v<T>) walk_fields(x, path, check);
  check(path, x, FieldInfo{});
}

/// The name by which messages know a struct of type T; its fields alone where it has none.
template <class T, class = void>
constexpr const char* name_of_v = "";
template <class T>
constexpr const char*
    name_of_v<T, std::enable_if_t<std::is_same_v<decltype(&T::name), const char* const*>>> =
        T::name;
/// The same under the name that the type of `x` has.
template <class T>
void check_fields(const char* function, const T& x) {
  check_fields(function, name_of_v<T>, x);
}

/// ddof is what a standard deviation subtracts from the count: 0 for the population, 1 for a
/// sample.
inline void check_ddof(const char* function, const char* name, int ddof) {
  if (ddof < 0)
    contract::fail(function, name, contract::text(index_t{ddof}), "0 (population) or more");
}

inline void check_eps(const char* function, const char* name, double eps) {
  CheckField{function}(FieldPath{nullptr, name}, eps, FieldInfo{at_least(0), ""});
}

}  // namespace detail
GDPO_END_NAMESPACE
