#pragma once
// invalid_input, and how every error message is made.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <gdpo/core/view.hpp>
#include <stdexcept>
#include <string>

// These stand outside the inline namespace, so that a trainer catches one type, whichever object
// file threw it.
namespace gdpo {

/// Thrown for a mistake of the caller: shapes that do not fit, a setting out of its range.
///
/// It is always checked for, in every build. Conditions of the data (NaN, zero variance, empty
/// groups) never throw; each has a documented value instead, and a counter in GroupReport,
/// LossMetrics or another report. The message has one form:
///
///     FUNCTION: ARGUMENT: given WHAT WAS GIVEN; needed: WHAT IS NEEDED
struct invalid_input : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A function that reports a caller's mistake where exceptions are disabled (-fno-exceptions).
using failure_handler = void (*)(const char* message);
/// The handler that a build without exceptions calls before it aborts the program.
///
/// It receives the message that invalid_input would carry. The default writes it to stderr; assign
/// another function to log elsewhere.
inline failure_handler on_failure = [](const char* message) {
  std::fprintf(stderr, "%s\n", message);
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
/// Messages about a caller's mistakes.
namespace contract {

/// The words of a message, put together only when it is shown.
///
/// Each check passes a few pointers and numbers; with std::string, every check would contain the
/// code that builds the message. A Text only refers to its parts, which may be temporaries, so use
/// it as an argument within one expression and never keep it in a variable. To keep the words,
/// convert it to std::string.
class Text {
 public:
  /// The given words, which are not copied.
  GDPO_HOST_INLINE Text(const char* words) : words_(words) {}
  /// \copydoc Text(const char*)
  GDPO_HOST_INLINE Text(const std::string& words) : words_(words.c_str()) {}
  /// An integer in decimal digits.
  GDPO_HOST_INLINE explicit Text(index_t integer) : kind_(Kind::Integer), integer_(integer) {}
  /// A number with 17 significant digits, which identify a double exactly.
  GDPO_HOST_INLINE explicit Text(double number) : kind_(Kind::Number), number_(number) {}
  /// A shape of `rank` extents, written as "(2, 3)".
  GDPO_HOST_INLINE Text(int rank, const index_t* extent)
      : kind_(Kind::Shape), extent_(extent), integer_(rank) {}

  /// The words of `a`, then those of `b`.
  friend GDPO_HOST_INLINE Text operator+(const Text& a, const Text& b) { return {&a, &b}; }
  // These two are templates, so that only a std::string calls them and nothing that converts to
  // one.
  /// The words of `a`, then those of `b`, as a string.
  template <class S, std::enable_if_t<std::is_same_v<S, std::string>, int> = 0>
  friend std::string operator+(const S& a, const Text& b) {
    return a + std::string(b);
  }
  /// The words of `a`, then those of `b`, as a string.
  template <class S, std::enable_if_t<std::is_same_v<S, std::string>, int> = 0>
  friend std::string operator+(const Text& a, const S& b) {
    return std::string(a) + b;
  }

  /// Puts the words together.
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

/// Throws invalid_input with the message "function: argument: given ...; needed: ...".
///
/// Where exceptions are disabled it calls gdpo::on_failure with the message and aborts the program.
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

/// An integer as the words of a message.
GDPO_HOST_INLINE Text text(index_t value) { return Text(value); }
/// A number as the words of a message, with 17 significant digits.
GDPO_HOST_INLINE Text text(double value) { return Text(value); }
/// A shape as the words of a message, written as "(2, 3)".
GDPO_HOST_INLINE Text shape(int rank, const index_t* extent) { return {rank, extent}; }

/// Checks the extents of an array and returns its number of elements.
///
/// Throws if one is negative, or if the others than 0 multiply to more than 2^48, which is more
/// than any memory holds. Below that bound no count that is made from extents can overflow.
GDPO_NOINLINE inline index_t check_extents(const char* function, const Text& name, int rank,
                                           const index_t* extent) {
  constexpr index_t most = index_t{1} << 48;
  index_t elements = 1, largest = 1;
  for (int r = 0; r < rank; ++r) {
    if (extent[r] < 0) fail(function, name, shape(rank, extent), "extents of at least 0");
    if (extent[r] > most / largest)
      fail(function, name, shape(rank, extent), "at most 2^48 elements, more than memory holds");
    elements *= extent[r];
    if (extent[r] > 0) largest *= extent[r];
  }
  return elements;
}
/// Throws because an array that has elements is a null pointer.
[[noreturn]] GDPO_COLD inline void fail_null(const char* function, const Text& name, int rank,
                                             const index_t* extent) {
  fail(function, name, "a null pointer", shape(rank, extent) + " elements");
}
/// Throws unless an array or column has one entry for each row.
GDPO_NOINLINE inline void check_entries(const char* function, const Text& name, index_t entries,
                                        index_t rows) {
  if (entries != rows)
    fail(function, name, text(entries) + " entries", "one for each of the " + text(rows) + " rows");
}
/// Checks an array that a call reads or writes: its extents, and that it is there if it has
/// elements. Returns their number.
template <class T, int Rank>
index_t check_array(const char* function, const Text& name, const View<T, Rank>& v) {
  const index_t elements = check_extents(function, name, Rank, v.extent);
  if (elements > 0 && !v.data) fail_null(function, name, Rank, v.extent);
  return elements;
}

/// Whether each index of an array has an element of its own: with the axes in the order of their
/// strides, each one steps over all elements of those before it. That holds for every slice of a
/// dense array, whatever the order and the direction of its axes. `rank` is at most 3.
GDPO_NOINLINE inline bool elements_apart(int rank, const index_t* extent, const index_t* stride) {
  std::uint64_t steps[3] = {}, step[3] = {};  // of the axes with several indices, by their strides
  int axes = 0;
  for (int r = 0; r < rank; ++r) {
    if (extent[r] == 0) return true;
    if (extent[r] == 1) continue;
    const auto forwards = static_cast<std::uint64_t>(stride[r]);
    const std::uint64_t distance = stride[r] < 0 ? 0 - forwards : forwards;
    int k = axes++;
    for (; k > 0 && step[k - 1] > distance; --k) steps[k] = steps[k - 1], step[k] = step[k - 1];
    steps[k] = static_cast<std::uint64_t>(extent[r] - 1), step[k] = distance;
  }
  std::uint64_t last = 0;  // from the first to the last element of the axes so far
  for (int k = 0; k < axes; ++k) {
    if (step[k] <= last) return false;
    const std::uint64_t room = (~std::uint64_t{0} - last) / step[k];
    last = steps[k] > room ? ~std::uint64_t{0} : last + steps[k] * step[k];
  }
  return true;
}
/// Throws unless each index of an array that a call writes has an element of its own.
GDPO_NOINLINE inline void check_apart(const char* function, const Text& name, int rank,
                                      const index_t* extent, const index_t* stride) {
  if (elements_apart(rank, extent, stride)) return;
  fail(function, name,
       "strides " + shape(rank, stride) + " for shape " + shape(rank, extent) +
           ", which repeat elements",
       "an element of its own for each index, because it is written");
}
/// Checks an array that a call writes, as check_array() does, and that no two indices have the same
/// element. Returns the number of elements.
template <class T, int Rank>
index_t check_written(const char* function, const Text& name, const View<T, Rank>& v) {
  const index_t elements = check_array(function, name, v);
  check_apart(function, name, Rank, v.extent, v.stride);
  return elements;
}

}  // namespace contract
GDPO_END_NAMESPACE
