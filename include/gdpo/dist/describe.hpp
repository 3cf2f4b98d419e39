#pragma once
// Settings in words, so that ranks can compare them and say where they differ.
#include <gdpo/core/fields.hpp>
#include <gdpo/core/list.hpp>
#include <gdpo/math/scalar.hpp>
#include <tuple>
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
  for (const char* left_out : {GDPO_TEXT(GDPO_ABI) "::", "gdpo::"}) {
    const std::string word = left_out;
    for (auto at = name.find(word); at != std::string::npos; at = name.find(word))
      name.erase(at, word.size());
  }
#undef GDPO_TEXT
#undef GDPO_TEXT_
  return name;
}

/// Stands for any member in braces. It has no definition, because nothing is evaluated.
struct AnyMember {
  template <class T>
  operator T() const;
};
template <class T, std::size_t... Number>
constexpr auto takes(std::index_sequence<Number...>)
    -> decltype(T{(void(Number), AnyMember{})...}, true) {
  return true;
}
template <class T>
constexpr bool takes(...) {
  return false;
}
/// The number of members of an aggregate: the most that braces take.
template <class T, std::size_t N = 12>
constexpr std::size_t member_count() {
  if constexpr (N == 0 || takes<T>(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return member_count<T, N - 1>();
  }
}

/// Calls f(member) for each member of an aggregate of at most 12 members, in their order.
template <class T, class F>
void for_each_member(const T& x, const F& f) {
  constexpr std::size_t n = member_count<T>();
  const auto all = [&](const auto&... member) { (f(member), ...); };
  if constexpr (n == 0) {
    (void)x, (void)all;
  } else if constexpr (n == 1) {
    const auto& [a] = x;
    all(a);
  } else if constexpr (n == 2) {
    const auto& [a, b] = x;
    all(a, b);
  } else if constexpr (n == 3) {
    const auto& [a, b, c] = x;
    all(a, b, c);
  } else if constexpr (n == 4) {
    const auto& [a, b, c, d] = x;
    all(a, b, c, d);
  } else if constexpr (n == 5) {
    const auto& [a, b, c, d, e] = x;
    all(a, b, c, d, e);
  } else if constexpr (n == 6) {
    const auto& [a, b, c, d, e, g] = x;
    all(a, b, c, d, e, g);
  } else if constexpr (n == 7) {
    const auto& [a, b, c, d, e, g, h] = x;
    all(a, b, c, d, e, g, h);
  } else if constexpr (n == 8) {
    const auto& [a, b, c, d, e, g, h, i] = x;
    all(a, b, c, d, e, g, h, i);
  } else if constexpr (n == 9) {
    const auto& [a, b, c, d, e, g, h, i, j] = x;
    all(a, b, c, d, e, g, h, i, j);
  } else if constexpr (n == 10) {
    const auto& [a, b, c, d, e, g, h, i, j, k] = x;
    all(a, b, c, d, e, g, h, i, j, k);
  } else if constexpr (n == 11) {
    const auto& [a, b, c, d, e, g, h, i, j, k, l] = x;
    all(a, b, c, d, e, g, h, i, j, k, l);
  } else {
    const auto& [a, b, c, d, e, g, h, i, j, k, l, m] = x;
    all(a, b, c, d, e, g, h, i, j, k, l, m);
  }
}

/// Whether T, a class with constructors, lists its settings: `auto settings() const`, a std::tuple.
/// It comes before fields, of a policy that is chosen at run time with all that can be chosen.
template <class T, class = void>
constexpr bool has_settings_v = false;
template <class T>
constexpr bool has_settings_v<T, std::void_t<decltype(std::declval<const T&>().settings())>> = true;

/// Writes settings as text: numbers with all their digits, enumerators as their words, strings in
/// quotes, and structs in braces after the name of their type. Fields (core/fields.hpp) stand there
/// as name=value; aggregates without fields and lists member by member.
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
      // The sign of NaN is not promised.
      text_ += math::is_nan(x) ? "nan" : std::string(contract::text(static_cast<double>(x)));
    } else if constexpr (std::is_enum_v<T>) {
      add_enumerator(x);
    } else if constexpr (std::is_integral_v<T>) {
      text_ += std::to_string(x);
    } else if constexpr (has_fields_v<T> && !has_settings_v<T>) {
      if (depth_ == 0) text_ += type_name<T>();
      add_between_braces([&](const auto& one) {
        T::fields(x, [&](const char* name, const auto& member, const auto&...) {
          one(member, *name ? std::string(name) + "=" : "");
        });
      });
    } else {
      constexpr bool known = std::is_aggregate_v<T> || has_settings_v<T>;
      static_assert(
          known,
          "settings are numbers, enumerators, strings, lists of them, structs with fields, "
          "aggregates of at most 12 such members, and classes with `auto settings() "
          "const`, a std::tuple");
      if (depth_ == 0) text_ += type_name<T>();
      add_between_braces([&](const auto& one) {
        if constexpr (has_settings_v<T>) {
          std::apply([&](const auto&... setting) { (one(setting), ...); }, x.settings());
        } else if constexpr (known) {
          for_each_member(x, one);
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
    const char* before = "{";
    ++depth_;
    walk([&](const auto& item, const std::string& name = "") {
      text_ += before + name;
      add(item);
      before = ", ";
    });
    --depth_;
    text_ += *before == '{' ? "{}" : "}";
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
