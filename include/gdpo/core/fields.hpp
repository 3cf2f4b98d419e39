#pragma once
// The lists of settings. A policy lists each setting once: its name, its member, its range and its
// meaning. Range checks, settings by name, descriptions, tables and schemas walk these lists.
#include <array>
#include <gdpo/core/errors.hpp>
#include <limits>
#include <utility>
#include <vector>

namespace gdpo {
/// An enumerator and the word for it, in lines of text and in Python.
template <class E>
struct Enumerator {
  const char* word;  ///< Such as "non_empty_rows".
  E value;           ///< The enumerator.
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The numbers that fit a setting: an interval, as in `at_least(0).or_infinity()`.
struct Range {
  double low = -std::numeric_limits<double>::infinity();  ///< The least number that fits.
  double high = std::numeric_limits<double>::infinity();  ///< The largest one.
  bool open = false;                                      ///< `low` itself does not fit.
  bool open_above = false;                                ///< `high` itself does not fit.
  bool infinity = false;            ///< Infinity fits too; -infinity where there is no lower end.
  bool nan = false;                 ///< NaN fits too, and has a meaning of its own.
  const char* note = "";            ///< What a message adds in parentheses, such as "0: off".
  const char* at_infinity = "off";  ///< What infinity means.

  /// The same with an upper end, which fits.
  constexpr Range at_most(double most) const {
    Range r = *this;
    r.high = most;
    return r;
  }
  /// The same with an upper end, which does not fit.
  constexpr Range below(double end) const {
    Range r = at_most(end);
    r.open_above = true;
    return r;
  }
  /// The same with infinity; `meaning` says what it stands for.
  constexpr Range or_infinity(const char* meaning = "off") const {
    Range r = *this;
    r.infinity = true, r.at_infinity = meaning;
    return r;
  }
  /// The same with NaN; `meaning` says what it stands for.
  constexpr Range or_nan(const char* meaning) const {
    Range r = *this;
    r.nan = true, r.note = meaning;
    return r;
  }
  /// The same with a note for messages.
  constexpr Range with_note(const char* words) const {
    Range r = *this;
    r.note = words;
    return r;
  }
};
/// Any number; NaN does not fit.
constexpr Range anything() { return Range{}.or_infinity(); }
/// Any finite number.
constexpr Range finite() { return {}; }
/// `least` and every finite number above it.
constexpr Range at_least(double least) {
  Range r;
  r.low = least;
  return r;
}
/// Every finite number above `least`.
constexpr Range more_than(double least) {
  Range r = at_least(least);
  r.open = true;
  return r;
}

namespace detail {

/// The names that a caller gave to settings: pairs of full and given name, "kl.input" and "input".
using GivenNames = std::vector<std::pair<std::string, std::string>>;

/// Where a field is: its name, behind those of the structs that it is in.
///
/// It refers to the path of its owner, so it is used within the call that gets it.
struct FieldPath {
  const FieldPath* owner = nullptr;   ///< The struct that the field is in; null: the outermost.
  const char* name = "";              ///< The name of the member.
  const GivenNames* given = nullptr;  ///< Of the outermost: what its settings are called.

  /// The names from the outermost to this one, with dots between them: "kl.input.lo"; or the given
  /// name.
  GDPO_COLD std::string text() const {
    std::string names;
    const GivenNames* given_names = nullptr;
    for (const FieldPath* field = this; field; field = field->owner) {
      if (*field->name && !names.empty()) names.insert(0, ".");
      names.insert(0, field->name);
      given_names = field->given;
    }
    for (std::size_t i = 0; given_names && i < given_names->size(); ++i) {
      const std::string& setting = (*given_names)[i].first;
      const bool begins = names.compare(0, setting.size(), setting) == 0;
      if (begins && (names.size() == setting.size() || names[setting.size()] == '.'))
        return std::move(names.replace(0, setting.size(), (*given_names)[i].second));
    }
    return names;
  }
  /// The same for a member of the struct that is here.
  GDPO_COLD std::string text(const char* member) const { return FieldPath{this, member}.text(); }
};

/// What a field is, beside its place: the numbers that fit, and its meaning in a phrase.
struct FieldInfo {
  Range range{};
  const char* meaning = "";
};

// A visitor of the kind that `fields` is written for; for has_fields_v alone.
struct AnyField {
  template <class... X>
  constexpr void operator()(X&&...) const {}
};
/// Whether T lists its settings:
///
///     template <class Self, class Field>
///     static constexpr void fields(Self& self, const Field& field) {
///       field("low", self.low, at_least(0).at_most(1), "the ratio is clipped to 1 - low");
///       field("over", self.over, "the count that divides");  // an enumerator, or a bool
///       field("bounds", self.bounds);                        // a struct with fields of its own
///     }
///
/// What two fields decide together is checked by hand, in `void check_together(const char*
/// function, const FieldPath& path) const`. Where a call takes structs of several types, as
/// prepare() does, messages name a struct by its `static constexpr const char* name`.
template <class T, class = void>
constexpr bool has_fields_v = false;
template <class T>
constexpr bool has_fields_v<
    T, std::void_t<decltype(T::fields(std::declval<T&>(), std::declval<const AnyField&>()))>> =
    true;

/// Calls visit(path, member, info) for each setting of `x`, in the order of the lists, and for a
/// struct without a list once for the struct. A field without a name and a meaning, such as the
/// chosen one of several policies, means what the field means that it is in.
template <class Visit>
class FieldWalk {
 public:
  constexpr FieldWalk(const Visit& visit, const FieldPath& owner, const char* meaning = "")
      : visit_(visit), owner_(owner), meaning_(meaning) {}
  template <class T>
  constexpr void operator()(const char* name, T& member, const Range& range,
                            const char* meaning) const {
    visit_(FieldPath{&owner_, name}, member, FieldInfo{range, meaning});
  }
  template <class T>
  constexpr void operator()(const char* name, T& member, const char* meaning = "") const {
    const FieldPath path{&owner_, name};
    if (!*name && !*meaning) meaning = meaning_;
    if constexpr (has_fields_v<std::remove_const_t<T>>) {
      visit_(path, member, FieldInfo{{}, meaning});
      std::remove_const_t<T>::fields(member, FieldWalk(visit_, path, meaning));
    } else {
      visit_(path, member, FieldInfo{{}, meaning});
    }
  }

 private:
  const Visit& visit_;
  const FieldPath& owner_;
  const char* meaning_;  // of the owner
};
template <class T, class Visit>
constexpr void walk_fields(T& x, const FieldPath& path, const Visit& visit) {
  std::remove_const_t<T>::fields(x, FieldWalk<Visit>(visit, path));
}

/// Whether the enumerators of E are listed: a function `constexpr auto enumerators(E)` in the
/// namespace of E returns a std::array of Enumerator<E>.
template <class E, class = void>
constexpr bool has_enumerators_v = false;
template <class E>
constexpr bool has_enumerators_v<E, std::void_t<decltype(enumerators(E{}))>> = std::is_enum_v<E>;
/// The word for an enumerator; null for a number that is none.
template <class E>
const char* word_of(E x) {
  for (const auto& e : enumerators(x))
    if (e.value == x) return e.word;
  return nullptr;
}
/// Whether a number is that of an enumerator.
template <class E>
bool is_enumerator(E x) {
  constexpr auto listed = enumerators(E{});
  constexpr bool consecutive = [](const auto& list) {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (static_cast<std::size_t>(list[i].value) != i) return false;
    return true;
  }(listed);
  if constexpr (consecutive) {
    return static_cast<std::size_t>(x) < listed.size();
  } else {
    return word_of(x) != nullptr;
  }
}
/// Several words. One function joins them, whatever they are for.
struct WordList {
  const char* const* first;
  std::size_t count;
  /// All of them, with `separator` between two.
  GDPO_COLD std::string joined(const char* separator) const {
    std::string words;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) words += separator;
      words += first[i];
    }
    return words;
  }
};
template <class E, std::size_t n = enumerators(E{}).size()>
constexpr std::array<const char*, n> enumerator_words() {
  std::array<const char*, n> words{};
  for (std::size_t i = 0; i < n; ++i) words[i] = enumerators(E{})[i].word;
  return words;
}
template <class E>
inline constexpr auto enumerator_words_v = enumerator_words<E>();
/// The words for all enumerators of E.
template <class E>
WordList words_of() {
  return {enumerator_words_v<E>.data(), enumerator_words_v<E>.size()};
}

}  // namespace detail
GDPO_END_NAMESPACE
