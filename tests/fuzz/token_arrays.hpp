// What calls with a batch of tokens share: arrays of tokens, the rows that they have, and outputs.
#pragma once
#include <algorithm>
#include <gdpo/tokens/token_batch.hpp>

#include "fuzz/trial.hpp"

namespace fuzz {

/// An array of tokens of rank 1, 2 or 3, or none.
template <class View>
struct Tokens {
  View view;
  std::shared_ptr<void> memory;
  bool given = false;   ///< Whether the pointer is not null.
  bool shaped = false;  ///< Whether it has a shape: it is given, or has no elements.
  int rank = 0;
  std::array<index_t, 3> extent{};
  bool sound = true, large = false;  ///< Of its extents.
  std::vector<double> numbers;       ///< Row after row.

  template <class T, int Rank>
  void take(const std::shared_ptr<Array<T, Rank>>& array) {
    view = array->view();
    memory = array;
    given = !array->absent();
    shaped = given || array->shape.without_elements();
    rank = Rank;
    for (std::size_t r = 0; r < Rank; ++r) extent[r] = array->extent(r);
    sound = array->shape.sound(), large = array->large();
    numbers = array->numbers();
  }
  template <class Other>
  bool has_shape_of(const Other& o) const {
    return rank == o.rank && extent == o.extent;
  }
};
template <class S>
using Numbers = Tokens<gdpo::TokenView<S>>;
using Marks = Tokens<gdpo::TokenView<unsigned char>>;

/// An array of tokens to be written, or none. A null pointer has no shape.
template <class S>
struct Written : Numbers<S> {
  std::function<gdpo::TokenOut<S>()> make = [] { return gdpo::TokenOut<S>(); };
  std::function<std::vector<double>()> now;  ///< The numbers after the call.

  template <class Array>
  void take_output(const std::shared_ptr<Array>& array) {
    this->take(array);
    this->shaped = this->given;
    make = [array] { return gdpo::TokenOut<S>(array->view()); };
    now = [array] { return array->numbers(); };
  }
};

/// What a null pointer to an array without elements may have.
enum class EmptyArrays { OfAnyShape, OfTheShape };

/// The rows of a batch of tokens, with its mask and its offsets.
struct TokenRows {
  Trial& t;
  int rank;  // of the arrays, as far as they are not hostile
  index_t prompts, completions, width;
  std::vector<index_t> bounds{0};  // offsets of packed rows
  Marks mask;
  AnyColumn<index_t> offsets;
  // What the shapes say.
  bool large = false;
  int shape_rank = 0;
  std::array<index_t, 3> extent{};
  index_t rows = 0, tokens = 0;

  explicit TokenRows(Trial& trial) : t(trial) {
    rank = t.in.pick({2, 1, 3, 2, 1});
    prompts = 1 + t.in.below(3), completions = 1 + t.in.below(3), width = t.in.below(6);
    if (t.in.chance(12)) prompts = 0;
    if (rank == 1) {
      for (index_t i = 0; i < prompts * completions; ++i)
        bounds.push_back(bounds.back() + t.in.below(5));
    }
    rows = prompts * completions;
  }

  /// Calls visit(extents) with those of an array of tokens. Hostile: of another rank.
  template <class Visit>
  void with_extents(const Visit& visit) {
    const int of = t.in.hostile(6) ? 1 + t.in.below(3) : rank;
    if (of == 1) visit(std::array<index_t, 1>{bounds.back()});
    if (of == 2) visit(std::array<index_t, 2>{prompts * completions, width});
    if (of == 3) visit(std::array<index_t, 3>{prompts, completions, width});
  }
  /// Gives the batch an array of T with numbers from `value`.
  template <class T, class To, class Value>
  void give(To& to, const Value& value) {
    with_extents([&](const auto& extents) {
      auto array = t.filled<T>(extents, value);
      to.take(std::make_shared<decltype(array)>(std::move(array)));
    });
  }
  template <class S>
  void give_output(Written<S>& to) {
    with_extents([&](const auto& extents) { to.take_output(t.output<S>(extents)); });
  }
  void give_marks() {
    if (t.in.chance(96)) {
      give<unsigned char>(mask, [&] { return t.in.below(4) < 3; });
    } else if (t.in.chance(64)) {
      give<int>(mask, [&] { return t.in.below(4) - 1; });
    }
  }
  void give_offsets() {
    if (rank != 1 ? !t.in.hostile(12) : t.in.hostile(12)) return;
    std::vector<index_t> at = bounds;
    if (t.in.hostile(48)) {
      const auto k = static_cast<std::size_t>(t.in.below(static_cast<int>(at.size())));
      at[k] = odd_extent(t.in, at[k]);
    }
    std::size_t next = 0;
    const auto value = [&] { return at[std::min(next++, at.size() - 1)]; };
    const std::array<index_t, 1> entries{static_cast<index_t>(at.size())};
    switch (t.in.below(3)) {
      case 0:
        offsets = column_of<index_t, std::int32_t>(t, entries, value);
        break;
      case 1:
        offsets = column_of<index_t, std::int64_t>(t, entries, value);
        break;
      default:
        offsets = column_of<index_t, std::uint64_t>(t, entries, value);
    }
  }
  template <class Value>
  AnyColumn<double> row_column(const Value& value) {
    return numbers_column(t, prompts, completions, value);
  }

  /// The batch has the shape of this array, unless an earlier one gave it.
  template <class Any>
  void shape_from(const Any& array) {
    if (shape_rank > 0 || !array.shaped) return;
    shape_rank = array.rank, extent = array.extent, sound_ = array.sound;
  }
  /// Says what every call with the arrays needs, and finds out rows and tokens. each_array(visit)
  /// calls visit(array) in the order in which one of them gives the shape.
  template <class EachArray>
  void need_one_shape(const EachArray& each_array, EmptyArrays empty) {
    // Arrays without elements are asked last.
    each_array([&](const auto& a) {
      if (a.given) shape_from(a);
    });
    each_array([&](const auto& a) {
      shape_from(a);
      large = large || (a.shaped && a.large);
    });
    t.need(shape_rank > 0 || offsets.present, "an array of tokens, or offsets");
    t.need(sound_, "extents of tokens");
    each_array([&](const auto& a) {
      if (a.given || (a.shaped && empty == EmptyArrays::OfTheShape))
        t.need(a.rank == shape_rank && a.extent == extent, "arrays of one shape");
    });
    t.need(offsets.constructible, "offsets");
    large = large || (offsets.present && offsets.large);
    // A call walks over all offsets, even where it refuses something else later.
    t.leave_out_if(offsets.present && offsets.large &&
                   offsets.size <= static_cast<real>(most_elements));
    if (shape_rank > 1) {
      t.need(!offsets.present, "no offsets with padded tokens");
      rows = 1, tokens = 1;
      for (int r = 0; r < shape_rank; ++r) {
        const index_t e = extent[static_cast<std::size_t>(r)];
        if (sound_ && r < shape_rank - 1) rows *= e;
        if (sound_) tokens *= e;
      }
      width = extent[static_cast<std::size_t>(shape_rank) - 1];
      return;
    }
    const real entries = offsets.size;
    t.need(offsets.present && entries >= 1 && entries <= static_cast<real>(most_elements),
           "offsets for packed tokens");
    if (!t.well_formed() || offsets.large) return;
    rows = static_cast<index_t>(entries) - 1;
    const std::vector<real>& at = offsets.integers;
    bool ordered = at[0] == 0;
    for (std::size_t i = 1; i < at.size(); ++i) ordered = ordered && at[i] >= at[i - 1];
    t.need(ordered, "offsets that begin at 0 and never decrease");
    t.need(shape_rank == 0 ? at.back() <= static_cast<real>(most_elements)
                           : at.back() == static_cast<real>(extent[0]),
           "offsets that end at the number of tokens");
    if (!t.well_formed()) return;
    tokens = static_cast<index_t>(at.back());
    bounds.clear();
    for (const real x : at) bounds.push_back(static_cast<index_t>(x));
  }
  void need_column(const AnyColumn<double>& c) {
    if (shape_rank < 2 && (!t.well_formed() || offsets.large)) return;  // no rows are known
    t.need(c.fits(rows), "a column");
    if (!c.present || c.rank != 2 || shape_rank != 3) return;
    t.need(c.extent[0] == extent[0] && c.extent[1] == extent[1], "prompts and completions");
  }
  /// The number of rows and tokens that a call would walk over is too large.
  bool too_long() const { return large || rows > most_work || tokens > most_work; }

  /// Where token j of row i stands among the numbers of an array, and how long the row is.
  std::size_t at(index_t i, index_t j) const {
    return static_cast<std::size_t>(
        (shape_rank > 1 ? i * width : bounds[static_cast<std::size_t>(i)]) + j);
  }
  index_t length(index_t i) const {
    const auto k = static_cast<std::size_t>(i);
    return shape_rank > 1 ? width : bounds[k + 1] - bounds[k];
  }
  bool valid(std::size_t k) const { return !mask.given || mask.numbers[k] != 0; }

  void compare_counts(const gdpo::Normalizer& n) const {
    real all = 0, non_empty = 0;
    for (index_t i = 0; i < rows; ++i) {
      real own = 0;
      if (!mask.given) own = static_cast<real>(length(i));
      for (index_t j = 0; mask.given && j < length(i); ++j) own += valid(at(i, j));
      all += own, non_empty += own > 0;
    }
    t.compare("tokens", n.tokens, all, 0);
    t.compare("rows", n.rows, static_cast<real>(rows), 0);
    t.compare("non_empty_rows", n.non_empty_rows, non_empty, 0);
  }

 private:
  bool sound_ = true;  // of the extents
};

}  // namespace fuzz
