#pragma once
#include <cstdio>
#include <cstdlib>
#include <gdpo/core/view.hpp>
#include <stdexcept>
#include <string>

namespace gdpo {  // a trainer catches one type, whatever instruction set threw it

/// A mistake of the caller: shapes that do not fit, a setting out of range. Always checked. Data conditions (NaN, zero
/// variance, empty groups) never throw: they have a documented value and a counter in GroupReport.
/// what(): "<function>: <argument>: given <what was given>; needed: <what is needed>".
struct invalid_input : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Without exceptions (-fno-exceptions) a caller's mistake calls this handler and then aborts. Replace it to log
/// elsewhere.
using failure_handler = void (*)(const char* message);
inline failure_handler on_failure = [](const char* message) {
  std::fprintf(stderr, "%s\n", message);
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace contract {

/// The words of a message, put together only where it is shown: std::string would leave its code in every check. A Text refers
/// to its parts, which live as long as the expression that names them: it is an argument, never a variable; a std::string may
/// be made of it.
class Text {
 public:
  GDPO_HOST_INLINE Text(const char* words) : words_(words) {}
  GDPO_HOST_INLINE Text(const std::string& words) : words_(words.c_str()) {}
  GDPO_HOST_INLINE explicit Text(index_t integer) : kind_(Kind::Integer), integer_(integer) {}
  GDPO_HOST_INLINE explicit Text(double number) : kind_(Kind::Number), number_(number) {}
  GDPO_HOST_INLINE Text(int rank, const index_t* extent)
      : kind_(Kind::Shape), extent_(extent), integer_(rank) {}

  friend GDPO_HOST_INLINE Text operator+(const Text& a, const Text& b) { return {&a, &b}; }
  template <class S, std::enable_if_t<std::is_same_v<S, std::string>, int> =
                         0>  // not what a string would be made of
  friend std::string operator+(const S& a, const Text& b) {
    return a + std::string(b);
  }
  template <class S, std::enable_if_t<std::is_same_v<S, std::string>, int> = 0>
  friend std::string operator+(const Text& a, const S& b) {
    return std::string(a) + b;
  }

  GDPO_COLD operator std::string() const {
    switch (kind_) {
      case Kind::Integer:
        return std::to_string(integer_);
      case Kind::Number: {
        char buffer[32];
        std::snprintf(buffer, sizeof buffer, "%.17g", number_);
        return buffer;
      }
      case Kind::Shape: {
        std::string shape = "(";
        for (index_t r = 0; r < integer_; ++r)
          shape += (r ? ", " : "") + std::to_string(extent_[r]);
        return shape + ")";
      }
      case Kind::Both:
        return std::string(*first_) + std::string(*second_);
      default:
        return words_;
    }
  }

 private:
  enum class Kind : unsigned char { Words, Integer, Number, Shape, Both };
  GDPO_HOST_INLINE Text(const Text* a, const Text* b) : kind_(Kind::Both), first_(a), second_(b) {}

  Kind kind_ = Kind::Words;
  union {
    const char* words_;
    const index_t* extent_;
    const Text* first_;
  };
  union {
    index_t integer_;
    double number_;
    const Text* second_;
  };
};

[[noreturn]] GDPO_COLD inline void fail(const char* function, const Text& argument,
                                        const Text& given, const Text& needed) {
  const std::string message =
      Text(function) + ": " + argument + ": given " + given + "; needed: " + needed;
#if defined(__cpp_exceptions)
  throw invalid_input(message);
#else
  on_failure(message.c_str());
  std::abort();
#endif
}

GDPO_HOST_INLINE Text text(index_t value) { return Text(value); }
GDPO_HOST_INLINE Text text(double value) { return Text(value); }
/// "(2, 3)"
GDPO_HOST_INLINE Text shape(int rank, const index_t* extent) { return {rank, extent}; }

}  // namespace contract
GDPO_END_NAMESPACE
