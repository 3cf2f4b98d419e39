// What the calls of this folder are made of: choices from bytes, arrays in memory of their own, and
// the trial that makes a call and judges what it did.
#pragma once
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <gdpo/core/errors.hpp>
#include <gdpo/storage/column.hpp>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "fuzz/call.hpp"

namespace fuzz {

using gdpo::index_t;
using real = long double;  // holds every integer of 64 bits

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr index_t most_elements = index_t{1} << 48;  // of an array, as the contract says
constexpr index_t most_work = 4096;                  // of a call that is made

/// The choices of a call, one byte each.
class Input {
 public:
  Input(const unsigned char* bytes, std::size_t size) : bytes_(bytes), size_(size) {}
  unsigned byte() { return at_ < size_ ? bytes_[at_++] : 0; }
  int below(int n) { return static_cast<int>(byte()) % n; }
  bool chance(unsigned of_256) { return byte() >= 256 - of_256; }
  template <class T>
  T pick(std::initializer_list<T> options) {
    return options.begin()[below(static_cast<int>(options.size()))];
  }
  /// Whether to make something wrong, with this chance. Three calls in eight never do.
  bool hostile(unsigned of_256) { return chance(of_256) && hostile_; }
  void choose_mood() { hostile_ = chance(160); }
  /// A multiple of 1/4 from -2 to 2. Behind the end of the bytes the numbers still differ.
  double number() {
    noise_ = noise_ * 1664525 + 1013904223;
    const unsigned from = at_ < size_ ? byte() : noise_ >> 24;
    return 0.25 * (static_cast<int>(from % 17) - 8);
  }

 private:
  const unsigned char* bytes_;
  std::size_t size_, at_ = 0;
  bool hostile_ = false;
  std::uint32_t noise_ = 1;
};

/// An extent, a size or a setting that nobody means.
inline index_t odd_extent(Input& in, index_t wanted) {
  constexpr index_t one = 1;
  return in.pick<index_t>({wanted + 1, wanted - 1, 0, -1, wanted + 1, wanted - 1, one << 31,
                           one << 32, one << 48, (one << 48) + 1, one << 62, -(one << 62),
                           std::numeric_limits<index_t>::max(),
                           std::numeric_limits<index_t>::min()});
}
inline double odd_number(Input& in) { return in.pick({-1.0, nan, infinity, -infinity, 0.0}); }

/// Extents of an array, with the two questions that every contract asks.
template <int Rank>
struct Shape {
  std::array<index_t, Rank> extent{};
  /// Whether no extent is negative, and those other than 0 multiply to at most 2^48.
  bool sound() const {
    real product = 1;
    for (const index_t e : extent) {
      if (e < 0) return false;
      if (e > 0) product *= static_cast<real>(e);
    }
    return product <= static_cast<real>(most_elements);
  }
  bool without_elements() const {
    for (const index_t e : extent) {
      if (e == 0) return true;
    }
    return false;
  }
  /// Whether a loop over its extents would take too long.
  bool large() const {
    for (const index_t e : extent) {
      if (e > most_work) return true;
    }
    return false;
  }
};

/// An array in a heap block that is exactly as large as its extents and strides need, so that the
/// address sanitizer sees an access of one element too many. Where no memory could hold the
/// extents, the strides are 0 and the block is one element, which stands for all of them.
template <class T, int Rank>
struct Array {
  Shape<Rank> shape;
  std::array<index_t, Rank> stride{};
  T* data = nullptr;  // null: the caller passes a null pointer
  std::unique_ptr<T[]> block;
  std::size_t size = 0;  // of the block

  gdpo::View<T, Rank> view() const {
    index_t extents[Rank], strides[Rank];
    for (std::size_t r = 0; r < Rank; ++r) extents[r] = shape.extent[r], strides[r] = stride[r];
    return gdpo::view(data, extents, strides);
  }
  index_t extent(std::size_t axis) const { return shape.extent[axis]; }
  /// Whether an array that must be there is one: its extents are sound, and it has a pointer if it
  /// has elements.
  bool sound() const { return shape.sound() && (data || shape.without_elements()); }
  bool absent() const { return data == nullptr; }
  bool large() const { return shape.large(); }
  /// Whether two elements are the same one.
  bool repeats() const {
    for (std::size_t r = 0; r < Rank; ++r) {
      if (shape.extent[r] > 1 && stride[r] == 0) return !shape.without_elements();
    }
    return false;
  }
  /// Whether the numbers of the array can be looked at one by one.
  bool readable() const { return data && shape.sound() && !shape.large(); }

  /// Calls visit(element, offset in the block) for each element, the last index fastest.
  template <class Visit>
  void each(const Visit& visit) const {
    if (!readable() || shape.without_elements()) return;
    std::array<index_t, Rank> at{};
    for (;;) {
      index_t offset = 0;
      for (std::size_t r = 0; r < Rank; ++r) {
        if (at[r] > 0) offset += at[r] * stride[r];
      }
      visit(data[offset], data + offset - block.get());
      std::size_t r = Rank;
      while (r > 0 && ++at[r - 1] == shape.extent[r - 1]) at[--r] = 0;
      if (r == 0) return;
    }
  }
  /// The numbers, the last index fastest.
  std::vector<double> numbers() const {
    std::vector<double> all;
    each([&](const T& x, index_t) { all.push_back(gdpo::load(x)); });
    return all;
  }
};

/// A number as T; what no integer can hold becomes -1.
template <class T, class Number>
T number_as(Number x) {
  if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Number>) {
    if (!std::isfinite(x)) return static_cast<T>(-1);
  }
  return static_cast<T>(x);
}

/// Whether two arrays have the same extents.
template <class A, class B>
bool same_shape(const A& a, const B& b) {
  return a.shape.extent == b.shape.extent;
}

/// One call and its judgment.
class Trial {
 public:
  explicit Trial(Input& input) : in(input) {}
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  Input& in;
  Outcome outcome;

  /// What a well-formed call needs; `what` says it where the library does not notice.
  void need(bool condition, const char* what) {
    if (!condition && !missing_) missing_ = what;
  }
  bool well_formed() const { return !missing_; }
  /// Leaves the call out: it would take too long whether it is well formed or not.
  void leave_out_if(bool condition) { left_out_ = left_out_ || condition; }

  /// An array of numbers to be read. Its extents are those wanted, unless it is hostile.
  template <class T, std::size_t Rank>
  Array<T, static_cast<int>(Rank)> input(const std::array<index_t, Rank>& wanted) {
    return filled<T>(wanted, [this] { return in.number(); });
  }
  /// An array of what `value` gives, one element after the other.
  template <class T, std::size_t Rank, class Value>
  Array<T, static_cast<int>(Rank)> filled(const std::array<index_t, Rank>& wanted,
                                          const Value& value) {
    auto array = make<T>(wanted);
    if (array.large() && array.size > 0) array.block[0] = number_as<T>(value());
    array.each([&](T& x, index_t) { x = number_as<T>(value()); });
    return array;
  }
  /// An array to be written: full of a pattern, which a refused call leaves as it is, and any call
  /// leaves as it is between the elements. It may have strides of 0, which the call refuses.
  template <class T, std::size_t Rank>
  std::shared_ptr<Array<T, static_cast<int>(Rank)>> output(
      const std::array<index_t, Rank>& wanted) {
    const auto array = watched<T>(wanted, [](T&) {});
    need_apart(*array);
    return array;
  }
  /// An array to be read and written: the same, with the number value() in each element. The caller
  /// says whether strides of 0 are refused.
  template <class T, std::size_t Rank, class Value>
  std::shared_ptr<Array<T, static_cast<int>(Rank)>> in_place(
      const std::array<index_t, Rank>& wanted, const Value& value) {
    return watched<T>(wanted, [&](T& x) { gdpo::store(x, value()); });
  }
  /// Needs that each element of an array that is there stands in its own place.
  template <class T, int Rank>
  void need_apart(const Array<T, Rank>& array) {
    need(array.absent() || !array.repeats(), "elements that do not overlap, in an output");
  }

  /// Makes the call, and returns whether it gave a result that is to be compared. `names`: the
  /// functions that a refusal may come from.
  template <class Call>
  bool make_call(std::initializer_list<const char*> names, const Call& of) {
    if (left_out_) return false;
    std::string message;
    try {
      of();
      outcome.did = Did::Computed;
    } catch (const gdpo::invalid_input& e) {
      outcome.did = Did::Refused;
      message = e.what();
    } catch (const std::exception& e) {
      fail(std::string("another exception: ") + e.what());
      return false;
    }
    const bool refused = outcome.did == Did::Refused;
    if (refused && well_formed()) fail("refused, though well formed: " + message);
    if (!refused && !well_formed()) fail(std::string("not refused: ") + missing_);
    if (refused && !has_the_form(names, message)) fail("a message of another form: " + message);
    for (const auto& is_untouched : untouched_) {
      if (!is_untouched(refused)) fail(refused ? "refused, but written" : "written between");
    }
    return !refused && outcome.failure.empty();
  }
  void fail(const std::string& what) {
    if (outcome.failure.empty()) outcome.failure = what;
  }
  /// Compares a result with that of plain loops; NaN equals NaN.
  void compare(const char* what, real got, real expected, real tolerance) {
    if (std::isnan(got) && std::isnan(expected)) return;
    if (got == expected || std::fabs(got - expected) <= tolerance) return;
    char text[160];
    std::snprintf(text, sizeof text, "%s: %.17Lg, expected %.17Lg within %Lg", what, got, expected,
                  tolerance);
    fail(text);
  }

 private:
  /// "FUNCTION: ARGUMENT: given ...; needed: ...", with nothing empty.
  static bool has_the_form(std::initializer_list<const char*> names, const std::string& message) {
    for (const char* name : names) {
      const std::string start = std::string(name) + ": ";
      if (message.compare(0, start.size(), start) != 0) continue;
      const std::size_t given = message.find(": given ", start.size()),
                        needed = message.find("; needed: ", start.size());
      return given != std::string::npos && needed != std::string::npos && given > start.size() &&
             needed > given + 8 && message.size() > needed + 10;
    }
    return false;
  }
  /// An array full of a pattern and then of what fill(element) writes.
  template <class T, std::size_t Rank, class Fill>
  std::shared_ptr<Array<T, static_cast<int>(Rank)>> watched(const std::array<index_t, Rank>& wanted,
                                                            const Fill& fill) {
    const auto array = std::make_shared<Array<T, static_cast<int>(Rank)>>(make<T>(wanted));
    const std::size_t n = array->size;
    if (n == 0) return array;
    std::memset(static_cast<void*>(array->block.get()), 0x5a, n * sizeof(T));
    array->each([&](T& x, index_t) { fill(x); });
    const std::shared_ptr<T[]> before(new T[n]);
    std::memcpy(before.get(), array->block.get(), n * sizeof(T));
    untouched_.push_back([array, before, n](bool refused) {
      const std::unique_ptr<T[]> now(new T[n]);
      std::memcpy(now.get(), array->block.get(), n * sizeof(T));
      if (!refused) {
        array->each([&](const T&, index_t at) {
          const auto k = static_cast<std::size_t>(at);
          std::memcpy(&now[k], before.get() + k, sizeof(T));
        });
      }
      return std::memcmp(now.get(), before.get(), n * sizeof(T)) == 0;
    });
    return array;
  }

  /// Extents and strides from the input, and the memory that they need.
  template <class T, std::size_t Rank>
  Array<T, static_cast<int>(Rank)> make(const std::array<index_t, Rank>& wanted) {
    Array<T, static_cast<int>(Rank)> array;
    std::array<index_t, Rank>& extent = array.shape.extent;
    extent = wanted;
    if (in.hostile(36)) {
      const auto axis = static_cast<std::size_t>(in.below(static_cast<int>(Rank)));
      extent[axis] = odd_extent(in, wanted[axis]);
      if (in.chance(64)) extent[Rank - 1 - axis] = odd_extent(in, wanted[Rank - 1 - axis]);
    }
    const bool null = in.hostile(24);
    bool fits = array.shape.sound() && !array.large(), none = false;
    for (const index_t e : extent) none = none || e <= 0;
    if (!fits) {
      array.size = none ? 0 : 1;
      array.block.reset(new T[array.size]);
      array.data = null ? nullptr : array.block.get();
      return array;
    }
    // Strides: row by row, column by column, with gaps, backwards along an axis, or repeated.
    const int layout = in.below(8);
    index_t step = layout == 5 ? 2 : 1;
    for (std::size_t k = 0; k < Rank; ++k) {
      const std::size_t r = layout == 4 ? k : Rank - 1 - k;
      array.stride[r] = step;
      step = step * (extent[r] > 0 ? extent[r] : 1) + (layout == 5 ? 1 : 0);
    }
    const auto axis = static_cast<std::size_t>(in.below(static_cast<int>(Rank)));
    if (layout == 6) array.stride[axis] = -array.stride[axis];
    if (layout == 7) array.stride[axis] = 0;
    index_t low = 0, high = 0;
    for (std::size_t r = 0; r < Rank; ++r) {
      if (extent[r] > 1) (array.stride[r] < 0 ? low : high) += (extent[r] - 1) * array.stride[r];
    }
    array.size = none ? 0 : static_cast<std::size_t>(high - low + 1);
    array.block.reset(new T[array.size]());
    array.data = null ? nullptr : array.block.get() - (none ? 0 : low);
    // The stride of an axis with one index is never used. It is no larger than this, because the
    // library may form an address with it that it does not read.
    if (extent[axis] <= 1 && in.chance(32))
      array.stride[axis] =
          in.pick({index_t{0}, index_t{-7}, index_t{1} << 40, -(index_t{1} << 40)});
    return array;
  }

  const char* missing_ = nullptr;
  bool left_out_ = false;
  std::vector<std::function<bool(bool refused)>> untouched_;
};

/// A column of one number a row as a caller may give it: absent, of rank 1 or 2, of several types.
template <class R>
struct AnyColumn {
  std::function<gdpo::ColumnOf<R>()> make = [] { return gdpo::ColumnOf<R>(); };
  bool present = false;       ///< Whether its pointer is not null.
  bool constructible = true;  ///< Whether the view may become a column at all.
  bool large = false;         ///< Whether a loop over it would take too long.
  int rank = 0;
  index_t extent[2] = {};
  real size = 0;
  std::vector<real> integers;   ///< The numbers, for columns of integers.
  std::vector<double> numbers;  ///< The numbers, for all others.

  /// Whether it is no column, or one that has one number for each row.
  bool fits(index_t rows) const {
    return constructible && (!present || size == static_cast<real>(rows));
  }
};

template <class R, class T, std::size_t Rank, class Value>
AnyColumn<R> column_of(Trial& trial, const std::array<index_t, Rank>& wanted, const Value& value) {
  constexpr int rank = static_cast<int>(Rank);
  const auto array = std::make_shared<Array<T, rank>>(trial.filled<T>(wanted, value));
  AnyColumn<R> column;
  column.make = [array] { return gdpo::ColumnOf<R>(array->view()); };
  column.rank = rank;
  column.present = !array->absent();
  column.constructible = Rank == 1 || array->shape.sound();
  column.large = array->large();
  column.size = 1;
  for (std::size_t r = 0; r < Rank; ++r) {
    column.extent[r] = array->extent(r);
    if (column.constructible) column.size *= static_cast<real>(array->extent(r));
  }
  array->each([&](const T& x, index_t) {
    if constexpr (std::is_integral_v<T>) column.integers.push_back(static_cast<real>(x));
    column.numbers.push_back(static_cast<double>(x));
  });
  return column;
}
/// A column of doubles for (prompts, completions) rows, with numbers from `value`.
template <class Value>
AnyColumn<double> numbers_column(Trial& trial, index_t prompts, index_t completions,
                                 const Value& value) {
  const std::array<index_t, 1> rows{prompts * completions};
  const std::array<index_t, 2> table{prompts, completions};
  switch (trial.in.below(4)) {
    case 0:
      return column_of<double, double>(trial, rows, value);
    case 1:
      return column_of<double, int>(trial, rows, value);
    case 2:
      return column_of<double, float>(trial, table, value);
    default:
      return column_of<double, int>(trial, table, value);
  }
}

/// What each file of this folder brings: calls, by name.
struct Case {
  const char* function;
  void (*make)(Trial&);
};
const std::vector<Case>& group_cases();
const std::vector<Case>& array_cases();
const std::vector<Case>& token_cases();
const std::vector<Case>& logit_cases();
const std::vector<Case>& row_cases();
const std::vector<Case>& update_cases();
const std::vector<Case>& value_cases();
const std::vector<Case>& rollout_cases();
const std::vector<Case>& outcome_cases();
const std::vector<Case>& state_cases();

}  // namespace fuzz
