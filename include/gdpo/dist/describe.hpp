#pragma once
// Settings in words, so that ranks can compare them and report where they differ.
#include <gdpo/core/fields.hpp>
#include <gdpo/core/list.hpp>
#include <gdpo/math/scalar.hpp>
#include <variant>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The name of T as the compiler writes it, without the name space that names an instruction set:
/// ranks on different processors may have the same settings.
template <class T>
std::string type_name() {
#if defined(_MSC_VER) && !defined(__clang__)
  std::string name = __FUNCSIG__;
#else
  const std::string function = __PRETTY_FUNCTION__;
  const std::size_t begin = function.find("T = ") + 4;
  // g++ may say more about the function after a semicolon.
  std::string name = function.substr(begin, function.find_first_of(";]", begin) - begin);
#endif
#define GDPO_TEXT_(x) #x
#define GDPO_TEXT(x) GDPO_TEXT_(x)
  for (const char* prefix : {GDPO_TEXT(GDPO_ABI) "::", "gdpo::"}) {
    const std::string word = prefix;
    for (auto place = name.find(word); place != std::string::npos; place = name.find(word))
      name.erase(place, word.size());
  }
#undef GDPO_TEXT
#undef GDPO_TEXT_
  return name;
}

/// Writes settings as text: numbers with all their digits, enumerators as their words, strings in
/// quotes, lists in braces, and structs in braces with their fields (core/fields.hpp) as
/// name=value. The outermost struct, and one whose field has no name, begins with its type.
class Description {
 public:
  void add(const std::string& words) {
    text_ += '"';
    for (const char c : words) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += static_cast<unsigned char>(c) < ' ' ? '?' : c;
    }
    text_ += '"';
  }
  void add(const char* words) { add(std::string(words)); }
  template <class T, int Capacity>
  void add(const List<T, Capacity>& list) {
    add_all(list);
  }
  template <class T, class Allocator>
  void add(const std::vector<T, Allocator>& list) {
    add_all(list);
  }
  template <class... T>
  void add(const std::variant<T...>& one) {
    text_ += std::to_string(one.index()) + ": ";
    std::visit([&](const auto& x) { this->add(x); }, one);
  }
  template <class T>
  void add(const T& x) {
    if constexpr (std::is_floating_point_v<T>) {
      // The sign of NaN is unspecified.
      text_ += math::is_nan(x) ? "nan" : std::string(contract::text(static_cast<double>(x)));
    } else if constexpr (std::is_enum_v<T>) {
      add_enumerator(x);
    } else if constexpr (std::is_integral_v<T>) {
      text_ += std::to_string(x);
    } else {
      static_assert(has_fields_v<T> || std::is_empty_v<T>,
                    "settings are numbers, enumerators, strings, lists of them, and structs that "
                    "list their fields (core/fields.hpp)");
      if (depth_ == 0) text_ += type_name<T>();
      add_between_braces([&](const auto& one) {
        if constexpr (has_fields_v<T>) {
          T::fields(x, [&](const char* name, const auto& member, const auto&...) {
            using Member = std::decay_t<decltype(member)>;
            one(member, *name ? std::string(name) + "=" : type_name<Member>());
          });
        }
      });
    }
  }
  const std::string& text() const { return text_; }

 private:
  template <class E>
  void add_enumerator(E x) {
    if constexpr (has_enumerators_v<E>) {
      if (const char* word = word_of(x)) return void(text_ += word);
    }
    text_ += std::to_string(static_cast<std::underlying_type_t<E>>(x));
  }
  template <class Items>
  void add_all(const Items& items) {
    add_between_braces([&](const auto& one) {
      for (const auto& item : items) one(item);
    });
  }
  template <class Walk>
  void add_between_braces(const Walk& walk) {
    const char* separator = "{";
    ++depth_;
    walk([&](const auto& item, const std::string& name = "") {
      text_ += separator + name;
      add(item);
      separator = ", ";
    });
    --depth_;
    text_ += *separator == '{' ? "{}" : "}";
  }

  std::string text_;
  int depth_ = 0;
};

/// The settings `x` in words.
template <class T>
std::string description(const T& x) {
  Description words;
  words.add(x);
  return words.text();
}

}  // namespace detail
GDPO_END_NAMESPACE
