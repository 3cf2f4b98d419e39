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
  if (math::not_finite(x)) {
    if (math::is_nan(x)) return r.nan;
    return r.infinity && (x > 0 ? !r.open_above : r.low == -math::infinity);
  }
  return (r.open ? x > r.low : x >= r.low) && (r.open_above ? x < r.high : x <= r.high);
}
// The functions below append to strings instead of adding them: they are cold, and operator+ would
// compile much code for each.

/// The numbers that fit, in the words of a message: "0 to 1 (the ratio is clipped to 1 - low), or
/// infinity: off".
GDPO_COLD inline std::string needed(const Range& r, bool integer) {
  std::string words;
  const auto add = [&words](const char* text) { words += text; };
  const auto add_number = [&words, integer](const char* prefix, double x) {
    words += prefix;
    words += integer ? std::string(contract::text(static_cast<index_t>(x)))
                     : std::string(contract::text(x));
  };
  const bool has_low = r.low > -math::infinity, has_high = r.high < math::infinity;
  if (!has_low || (!has_high && !r.infinity && !integer)) {
    add(integer ? "an integer" : r.infinity ? "a number" : "a finite number");
    if (has_low)
      add(r.open ? " that is " : " of ");
    else if (has_high || r.open_above)
      add(" ");
  }
  if (has_low) {
    add_number(r.open ? "more than " : has_high ? "" : "at least ", r.low);
    if (has_high && r.open) add_number(r.open_above ? " and below " : " and at most ", r.high);
    if (has_high && !r.open) add_number(r.open_above ? " to below " : " to ", r.high);
  } else if (has_high) {
    add_number(r.open_above ? "below " : "at most ", r.high);
  } else if (r.open_above) {
    add("below infinity");
  }
  if (*r.note) add(" ("), add(r.note), add(")");
  if (r.infinity && has_low) {
    add(*r.note ? ", or infinity: " : " (infinity: "), add(r.at_infinity);
    if (!*r.note) add(")");
  }
  return words;
}

/// Throws unless a number fits.
GDPO_COLD inline void check_number(const char* function, const FieldPath& path, double x,
                                   const Range& range, bool integer) {
  if (fits(range, x)) return;
  contract::fail(function, path.text(),
                 integer ? contract::text(static_cast<index_t>(x)) : contract::text(x),
                 needed(range, integer));
}
/// Throws because a number is that of no enumerator.
[[noreturn]] GDPO_COLD inline void refuse_enumerator(const char* function, const FieldPath& path,
                                                     index_t x, const WordList& words) {
  contract::fail(function, path.text(), contract::text(x) + ", which is no enumerator",
                 contract::Text("one of ") + words.joined(", "));
}

/// Throws unless every setting of a struct is in its range. `visit` of walk_fields.
struct CheckField {
  const char* function;

  template <class T>
  void operator()(const FieldPath& path, const T& member, const FieldInfo& info) const {
    if constexpr (std::is_enum_v<T>) {
      static_assert(has_enumerators_v<T>, "an enumeration of settings needs enumerators(E)");
      if (!is_enumerator(member))
        refuse_enumerator(function, path, static_cast<index_t>(member), words_of<T>());
    } else if constexpr (std::is_arithmetic_v<T>) {
      if constexpr (!std::is_same_v<T, bool>)
        check_number(function, path, static_cast<double>(member), info.range,
                     std::is_integral_v<T>);
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
/// Looks whether every number and enumerator fits, with less work than CheckField, as it needs no
/// names for that. What fields decide together is checked while all before them fit. `visit` of
/// walk_fields.
struct FieldsFit {
  const char* function;
  bool& fit;

  template <class T>
  void operator()(const FieldPath& path, const T& member, const FieldInfo& info) const {
    if constexpr (std::is_enum_v<T>) {
      fit = fit && is_enumerator(member);
    } else if constexpr (std::is_arithmetic_v<T>) {
      fit = fit && (std::is_same_v<T, bool> || fits(info.range, static_cast<double>(member)));
    } else if (fit) {
      CheckField{function}(path, member, info);
    }
  }
};
/// Visits the settings of `x`, then `x` itself; `visit` is a CheckField or FieldsFit.
template <class T, class Visit>
void visit_fields(const char* name, const T& x, const Visit& visit) {
  const FieldPath path{nullptr, name};
  if constexpr (has_fields_v<T>) walk_fields(x, path, visit);
  visit(path, x, FieldInfo{});
}
template <class T>
GDPO_COLD void refuse_fields(const char* function, const char* name, const T& x) {
  visit_fields(name, x, CheckField{function});
}
/// Throws invalid_input unless every setting of `x`, which messages call `name`, is in its range.
template <class T>
void check_fields(const char* function, const char* name, const T& x) {
  bool fit = true;
  visit_fields(name, x, FieldsFit{function, fit});
  if (!fit) refuse_fields(function, name, x);
}

/// The name of a struct of type T in messages; empty: messages name its fields alone.
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
