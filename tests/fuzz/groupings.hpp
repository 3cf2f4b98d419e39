// What calls with rewards in groups share: groupings (how each is made, and which rows it fits),
// weights and gates.
#pragma once
#include <algorithm>
#include <gdpo/advantage/combine.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/group/groups_of.hpp>
#include <iterator>
#include <map>

#include "fuzz/trial.hpp"

namespace fuzz {

/// groups_of, or the struct that it makes, whose size the caller may set.
struct OfSize {
  index_t size, rows;
  bool by_hand;  // whether the struct is filled in without groups_of

  explicit OfSize(Trial& t) : size(1 + t.in.below(4)), rows(size * t.in.below(4)) {
    if (t.in.hostile(24)) size = odd_extent(t.in, size);
    by_hand = t.in.chance(64);
  }
  gdpo::GroupsOf make() const { return by_hand ? gdpo::GroupsOf{size} : gdpo::groups_of(size); }
  bool fits(index_t n) const { return size >= 1 && n >= 0 && n % size == 0; }
  bool large() const { return false; }
  index_t count(index_t n) const { return n / size; }
  long long group(index_t row) const { return row / size; }
};

/// by_offsets with offsets of Index.
template <class Index>
struct Between {
  index_t rows = 0, expected = 0;
  Array<Index, 1> offsets;
  std::vector<double> at;  // offsets of small batches; of others only whether they fit matters
  bool consistent = true;

  explicit Between(Trial& t) {
    const index_t groups = t.in.below(4);
    const bool equal = t.in.chance(64);
    const int common = t.in.below(4);
    std::vector<index_t> bounds{0};
    for (index_t g = 0; g < groups; ++g)
      bounds.push_back(bounds.back() + (equal ? common : t.in.below(4)));
    rows = bounds.back();
    if (equal) expected = common;
    if (t.in.hostile(24)) expected = odd_extent(t.in, expected);
    if (t.in.hostile(48)) {
      const auto k = static_cast<std::size_t>(t.in.below(static_cast<int>(bounds.size())));
      bounds[k] = odd_extent(t.in, bounds[k]);
    }
    std::size_t next = 0;
    offsets = t.filled<Index, 1>({groups + 1},
                                 [&] { return bounds[std::min(next++, bounds.size() - 1)]; });
    // Compared as long double, which holds every integer of 64 bits: no difference can wrap.
    real last = 0;
    offsets.each([&](const Index& x, index_t) {
      const real value = static_cast<real>(x);
      if (at.empty() ? value != 0 : value < last) consistent = false;
      if (!at.empty() && expected != 0 && value - last != static_cast<real>(expected))
        consistent = false;
      at.push_back(static_cast<double>(x));
      last = value;
    });
    end_ = last;
    if (offsets.large() && offsets.sound()) {  // one element stands for all: all groups are empty
      consistent = offsets.block[0] == 0 && expected == 0;
      end_ = 0;
    }
  }
  gdpo::ByOffsets<Index> make() const { return gdpo::by_offsets(offsets.view(), expected); }
  bool fits(index_t n) const {
    return offsets.sound() && offsets.extent(0) > 0 && expected >= 0 && consistent &&
           end_ == static_cast<real>(n);
  }
  bool large() const { return offsets.large() && offsets.sound() && consistent; }
  index_t count(index_t) const { return offsets.extent(0) - 1; }
  long long group(index_t row) const {
    long long g = 0;
    while (at[static_cast<std::size_t>(g) + 1] <= static_cast<double>(row)) ++g;
    return g;
  }

 private:
  real end_ = 0;
};

/// by_id with ids of Id.
template <class Id>
struct SameId {
  index_t rows, expected = 0;
  Array<Id, 1> ids;
  std::vector<double> all;
  std::map<double, index_t> sizes;

  explicit SameId(Trial& t) : rows(t.in.below(9)) {
    ids = t.filled<Id, 1>({rows}, [&] { return t.in.below(4) * 50 - 100; });
    all = ids.numbers();
    for (const double id : all) ++sizes[id];
    if (t.in.chance(32) && !sizes.empty()) expected = sizes.begin()->second;
    if (t.in.hostile(24)) expected = odd_extent(t.in, expected);
  }
  gdpo::ById make() const { return gdpo::by_id(ids.view(), expected); }
  bool fits(index_t n) const {
    if (!ids.sound() || expected < 0 || ids.extent(0) != n) return false;
    for (const auto& [id, size] : sizes) {
      if (expected != 0 && size != expected) return false;
    }
    return true;
  }
  bool large() const { return ids.large() && ids.sound(); }  // it copies them
  index_t count(index_t) const { return static_cast<index_t>(sizes.size()); }
  long long group(index_t row) const {
    return std::distance(sizes.begin(), sizes.find(all[static_cast<std::size_t>(row)]));
  }
};

/// Sets weights and gates, and says what they need.
template <class Settings>
void choose_weights_and_gates(Trial& t, Settings& e, index_t reward_count) {
  if (t.in.chance(64) && reward_count >= 0 && reward_count < 64) {
    const index_t n = t.in.hostile(32) ? t.in.below(64) : reward_count;
    std::vector<double> weights;
    for (index_t c = 0; c < n; ++c)
      weights.push_back(t.in.hostile(12) ? odd_number(t.in) : t.in.pick({1.0, 0.5, 0.0, -2.0}));
    e.weights = weights;
    t.need(n == 0 || n == reward_count, "weights");
    for (const double w : weights) t.need(std::isfinite(w), "a finite weight");
  }
  if (t.in.chance(32) && reward_count > 0) {
    gdpo::Gate gate{t.in.below(3), t.in.below(3), t.in.number()};
    if (t.in.hostile(64)) gate.given = odd_extent(t.in, gate.given);
    if (t.in.hostile(32)) gate.at_least = nan;
    e.gates = {gate};
    t.need(gate.reward < reward_count && gate.given >= 0 && gate.given < reward_count, "gates");
    t.need(!std::isnan(gate.at_least), "a threshold");
  }
}

}  // namespace fuzz
