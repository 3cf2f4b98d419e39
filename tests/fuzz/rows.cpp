// Calls that say which rows of a batch go where: pack, shard, plan and select_groups.
#include <gdpo/update/pack.hpp>
#include <gdpo/update/plan.hpp>
#include <gdpo/update/select_groups.hpp>
#include <gdpo/update/shard.hpp>
#include <numeric>
#include <optional>

#include "fuzz/groupings.hpp"

namespace fuzz {
namespace {

using Indices = std::vector<index_t>;
using IndexView = gdpo::View<const index_t, 1>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
index_t length_of(const Indices& x) { return static_cast<index_t>(x.size()); }

void compare_all(Trial& t, const char* what, const IndexView& got, const Indices& expected) {
  t.compare(what, static_cast<real>(got.extent[0]), static_cast<real>(expected.size()), 0);
  for (index_t i = 0; i < std::min(got.extent[0], length_of(expected)); ++i)
    t.compare(what, static_cast<real>(got(i)), static_cast<real>(expected[at(i)]), 0);
}
/// Appends the entries of a view.
void append(Indices& to, const IndexView& from) {
  for (index_t i = 0; i < from.extent[0]; ++i) to.push_back(from(i));
}
/// Where the entries of a list begin that stand one after the other.
Indices sums_of(const Indices& lengths) {
  Indices sums{0};
  for (const index_t n : lengths) sums.push_back(sums.back() + n);
  return sums;
}
/// An enumerator of E, or a number that is none.
template <class E>
E enumerator(Trial& t, int count, const char* what) {
  const int value = t.in.hostile(8) ? t.in.pick({-1, count}) : t.in.below(count);
  t.need(value >= 0 && value < count, what);
  return static_cast<E>(value);
}
/// Numbers 0 to n - 1 with the largest of `keys` first, equal ones in their order.
template <class Key>
Indices largest_first(const std::vector<Key>& keys) {
  Indices order(keys.size());
  std::iota(order.begin(), order.end(), index_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](index_t a, index_t b) { return keys[at(a)] > keys[at(b)]; });
  return order;
}
/// Asks for part `k` of `count`, which may be no part, by a call that may be refused.
template <class Call>
void ask_for_part(Trial& t, index_t count, const char* name, const Call& call) {
  if (!t.outcome.failure.empty() || !t.in.hostile(48)) return;
  const index_t k = odd_extent(t.in, count);
  t.need(k >= 0 && k < count, "a part that is there");
  t.make_call({name}, [&] { call(k); });
}

/// Lengths of rows in tokens.
template <class T>
struct Lengths {
  Array<T, 1> array;
  Indices of_row;  // where they are well formed

  Lengths(Trial& t, index_t rows)
      : array(t.filled<T, 1>({rows}, [&t] {
          return t.in.hostile(8) ? odd_extent(t.in, index_t{1} << 53) : index_t{t.in.below(9)};
        })) {
    t.need(array.sound(), "lengths");
    t.leave_out_if(array.sound() && array.large());
    real total = 0;
    bool fit = true;
    array.each([&](const T& x, index_t) {
      fit = fit && !(static_cast<real>(x) < 0);
      total += static_cast<real>(x);
    });
    fit = fit && total <= 0x1p53L;
    t.need(fit, "lengths of at least 0, at most 2^53 together");
    if (fit) array.each([&](const T& x, index_t) { of_row.push_back(static_cast<index_t>(x)); });
  }
  index_t rows() const { return array.extent(0); }
};

// ---- pack ----

template <class T>
void pack(Trial& t) {
  const Lengths<T> lengths(t, t.in.below(9));
  gdpo::update::PackSettings settings;
  settings.oversize = enumerator<gdpo::update::Oversize>(t, 2, "settings.oversize");
  const bool alone = settings.oversize == gdpo::update::Oversize::Alone;
  const index_t budget = t.in.hostile(24) ? odd_extent(t.in, 8) : (alone ? 1 : 8) + t.in.below(9);
  t.need(budget >= 1, "budget");
  for (const index_t n : lengths.of_row) t.need(alone || n <= budget, "rows within the budget");
  std::optional<gdpo::update::Packing> packing;
  if (!t.make_call({"gdpo::update::pack"}, [&] {
        packing.emplace(gdpo::update::pack(lengths.array.view(), budget, settings));
      }))
    return;

  std::vector<Indices> packs;
  Indices tokens;
  for (const index_t row : largest_first(lengths.of_row)) {
    const index_t n = lengths.of_row[at(row)];
    std::size_t p = 0;
    while (p < packs.size() && (tokens[p] > budget || n > budget - tokens[p])) ++p;
    if (p == packs.size()) packs.emplace_back(), tokens.push_back(0);
    packs[p].push_back(row), tokens[p] += n;
  }
  Indices order, begins, packed_lengths, inverse(lengths.of_row.size());
  real room = 0, used = 0;
  t.compare("packs", static_cast<real>(packing->packs()), static_cast<real>(packs.size()), 0);
  if (!t.outcome.failure.empty()) return;
  for (std::size_t p = 0; p < packs.size(); ++p) {
    const auto k = static_cast<index_t>(p);
    std::sort(packs[p].begin(), packs[p].end());
    Indices of_pack;
    begins.push_back(length_of(packs[p]));
    for (const index_t row : packs[p]) {
      inverse[at(row)] = length_of(order);
      order.push_back(row), of_pack.push_back(lengths.of_row[at(row)]);
    }
    packed_lengths.insert(packed_lengths.end(), of_pack.begin(), of_pack.end());
    compare_all(t, "rows of a pack", packing->rows(k), packs[p]);
    compare_all(t, "offsets of a pack", packing->offsets(k), sums_of(of_pack));
    t.compare("tokens", static_cast<real>(packing->tokens(k)), static_cast<real>(tokens[p]), 0);
    used += static_cast<real>(tokens[p]);
    room += static_cast<real>(std::max(tokens[p], budget));
  }
  compare_all(t, "order", packing->order(), order);
  compare_all(t, "inverse", packing->inverse(), inverse);
  compare_all(t, "row_offsets", packing->row_offsets(), sums_of(begins));
  compare_all(t, "offsets", packing->offsets(), sums_of(packed_lengths));
  t.compare("waste", packing->waste(), packs.empty() ? 0 : (room - used) / room, 1e-15L);
  ask_for_part(t, packing->packs(), "gdpo::update::Packing::offsets",
               [&](index_t k) { packing->offsets(k); });
}

// ---- shard ----

/// What a sharding of rows in groups must be; `call` makes it from ranks, a cost and the counts.
template <class T, class Call>
void shard_rows(Trial& t, const Lengths<T>& lengths, const std::vector<Indices>& groups,
                const Call& call) {
  index_t ranks = 1 + t.in.below(4);
  if (t.in.hostile(24)) ranks = t.in.pick({odd_extent(t.in, ranks), (index_t{1} << 20) + 1});
  gdpo::update::cost::Attention cost{t.in.pick({24576.0, 1.0, 0.0}), t.in.pick({0.0, 1.0})};
  if (t.in.hostile(12)) cost.linear = t.in.pick({odd_number(t.in), 1e308});
  if (t.in.hostile(12)) cost.quadratic = t.in.pick({odd_number(t.in), 1e308});
  const auto counts = enumerator<gdpo::update::ShardSizes>(t, 2, "counts");
  t.need(ranks >= 1 && ranks <= index_t{1} << 20, "ranks");
  for (const double setting : {cost.linear, cost.quadratic})
    t.need(setting >= 0 && std::isfinite(setting), "a setting of the cost");
  std::vector<double> costs;
  double total = 0;
  if (t.well_formed()) {
    for (const Indices& group : groups) {
      costs.push_back(0);
      for (const index_t row : group) {
        const auto n = static_cast<double>(lengths.of_row[at(row)]);
        const double of_row = std::fma(cost.quadratic * n, n, cost.linear * n);
        t.need(of_row >= 0 && std::isfinite(of_row), "a cost");
        costs.back() += of_row;
      }
      total += costs.back();
    }
    t.need(total < 0x1p1023, "costs whose sum is no infinity");
  }
  std::optional<gdpo::update::Sharding> sharding;
  if (!t.make_call({"gdpo::update::shard", "gdpo::by_id", "gdpo::groups_of"},
                   [&] { sharding.emplace(call(ranks, cost, counts)); }))
    return;

  const auto dealt = static_cast<index_t>(groups.size());
  index_t longer = dealt % ranks;  // ranks that get one group more
  std::vector<double> load(at(ranks), 0);
  Indices given(at(ranks), 0);
  std::vector<Indices> rows(at(ranks));
  for (const index_t g : largest_first(costs)) {
    std::size_t to = load.size();
    for (std::size_t r = 0; r < load.size(); ++r) {
      const bool open = counts == gdpo::update::ShardSizes::Free || given[r] < dealt / ranks ||
                        (given[r] == dealt / ranks && longer > 0);
      if (open && (to == load.size() || load[r] < load[to])) to = r;
    }
    if (given[to] == dealt / ranks) --longer;
    ++given[to], load[to] += costs[at(g)];
    rows[to].insert(rows[to].end(), groups[at(g)].begin(), groups[at(g)].end());
  }
  t.compare("ranks", static_cast<real>(sharding->ranks()), static_cast<real>(ranks), 0);
  for (index_t r = 0; r < ranks; ++r) {
    std::sort(rows[at(r)].begin(), rows[at(r)].end());
    compare_all(t, "rows of a rank", sharding->rows(r), rows[at(r)]);
    for (const index_t row : rows[at(r)])
      t.compare("rank_of", static_cast<real>(sharding->rank_of(row)), static_cast<real>(r), 0);
    t.compare("cost", sharding->cost(r), load[at(r)], 0);
  }
  const real most = static_cast<real>(*std::max_element(load.begin(), load.end()));
  t.compare("imbalance", sharding->imbalance(),
            total > 0 ? most * static_cast<real>(ranks) / static_cast<real>(total) : 1, 1e-12L);
  ask_for_part(t, ranks, "gdpo::update::Sharding::rows", [&](index_t r) { sharding->rows(r); });
}
template <class T>
void shard(Trial& t) {
  const Lengths<T> lengths(t, t.in.below(9));
  std::vector<Indices> each;
  for (index_t i = 0; i < length_of(lengths.of_row); ++i) each.push_back({i});
  shard_rows(t, lengths, each,
             [&](index_t ranks, const auto& cost, gdpo::update::ShardSizes counts) {
               return gdpo::update::shard(lengths.array.view(), ranks, cost, counts);
             });
}

/// The rows of each group, empty groups included, where the groups fit the rows.
template <class Grouping>
std::vector<Indices> groups_of(const Grouping& groups, index_t rows) {
  std::vector<Indices> all(at(groups.count(rows)));
  for (index_t i = 0; i < rows; ++i) all[static_cast<std::size_t>(groups.group(i))].push_back(i);
  return all;
}
template <class T, class Grouping>
void shard_groups(Trial& t) {
  const Grouping groups(t);
  const Lengths<T> lengths(t, groups.rows);
  t.need(groups.fits(lengths.rows()), "groups");
  t.leave_out_if(groups.large());
  std::vector<Indices> members;
  if (t.well_formed() && !lengths.array.large() && !groups.large())
    members = groups_of(groups, lengths.rows());
  shard_rows(t, lengths, members,
             [&](index_t ranks, const auto& cost, gdpo::update::ShardSizes counts) {
               return gdpo::update::shard(lengths.array.view(), groups.make(), ranks, cost, counts);
             });
}

// ---- plan ----

/// a b, or 2^60 where it is more: such a number fits no rows.
index_t product(index_t a, index_t b) {
  const real ab = static_cast<real>(a) * static_cast<real>(b);
  return ab < 0x1p60L ? static_cast<index_t>(ab) : index_t{1} << 60;
}
/// a / b, rounded up.
index_t quotient_up(index_t a, index_t b) { return a / b + (a % b > 0); }

gdpo::update::PlanSettings plan_settings(Trial& t, bool has_groups) {
  using namespace gdpo::update;
  const auto number = [&](std::initializer_list<index_t> usual, index_t least, const char* what) {
    const index_t n = t.in.hostile(10) ? odd_extent(t.in, 2) : t.in.pick(usual);
    t.need(n >= least, what);
    return n;
  };
  PlanSettings s;
  s.epochs = number({1, 2, 3}, 1, "epochs");
  s.mini_batches = number({1, 2, 0, 3, 1}, 0, "mini_batches");
  s.accumulation = number({0, 1, 2, 1}, 0, "accumulation");
  s.micro_batch = number({0, 1, 2, 4, 3}, 0, "micro_batch");
  s.ranks = number({1, 2, 1, 3}, 1, "ranks");
  s.remainder = enumerator<Remainder>(t, 4, "remainder");
  if (has_groups || t.in.hostile(24)) s.whole = enumerator<Whole>(t, 3, "whole");
  s.shuffle = enumerator<Shuffle>(t, 3, "shuffle");
  s.seed = t.in.byte();
  t.need(s.mini_batches > 0 || (s.accumulation > 0 && s.micro_batch > 0), "what follows");
  return s;
}
/// Says whether units of these lengths, none empty, fit settings that are within their ranges.
void need_units_that_fit(Trial& t, const gdpo::update::PlanSettings& s, const Indices& lengths) {
  using namespace gdpo::update;
  if (lengths.empty()) return;
  const index_t units = length_of(lengths), given = s.mini_batches,
                longest = *std::max_element(lengths.begin(), lengths.end()),
                shortest = *std::min_element(lengths.begin(), lengths.end());
  const bool refuse = s.remainder == Remainder::Refuse, drop = s.remainder == Remainder::Drop,
             in_step = s.whole == Whole::InStep, both = s.accumulation > 0 && s.micro_batch > 0;
  if (refuse) t.need(longest == shortest, "groups of one length");
  const index_t piece = s.whole == Whole::InMicroBatch ? longest : 1;
  t.need(s.micro_batch == 0 || s.micro_batch >= piece, "a micro-batch that holds a group");
  // The pieces, rows or groups, of a step: those of each rank and micro-batch.
  const index_t cells = product(s.ranks, std::max<index_t>(s.accumulation, 1)),
                pieces = product(cells, std::max<index_t>(s.micro_batch / piece, 1));
  const index_t in_unit = in_step ? longest : 1;
  if (both) {
    const index_t full = pieces / in_unit;  // units of a step that is filled up
    t.need(full > 0, "a step that holds a group");
    if (full == 0) return;
    if (given == 0) {
      if (refuse) t.need(pieces % in_unit == 0 && units % full == 0, "full steps");
      if (drop) t.need(units >= full, "one full step");
    } else {
      const real all = static_cast<real>(full) * static_cast<real>(given),
                 rest = all - static_cast<real>(units);
      if (refuse) t.need(pieces % in_unit == 0 && rest == 0, "as many rows as the numbers say");
      if (drop) t.need(rest <= 0 && -rest < static_cast<real>(full), "as many rows, and a rest");
      if (s.remainder == Remainder::Keep)
        t.need(rest >= 0 && rest < static_cast<real>(full), "rows for the last step");
      if (s.remainder == Remainder::Spread) t.need(rest >= 0 && units >= given, "rows in steps");
    }
    return;
  }
  if (refuse) {
    t.need(units % given == 0 && product(units / given, in_unit) % pieces == 0, "even steps");
  } else if (drop) {
    t.need(units >= (in_step ? given : product(pieces, given)), "a full step each");
  } else {
    t.need(units >= given, "rows for each step");
    if (s.remainder == Remainder::Keep && units >= given) {
      t.need((given - 1) < quotient_up(units, quotient_up(units, given)), "rows for the last step");
    }
  }
}

/// What any plan of these rows keeps.
void check_plan(Trial& t, const gdpo::update::Plan& plan, const gdpo::update::PlanSettings& s,
                index_t rows, const std::vector<Indices>& units) {
  using namespace gdpo::update;
  const auto law = [&](bool holds, const char* what) {
    if (!holds) t.fail(what);
  };
  law(plan.epochs() == s.epochs && plan.ranks() == s.ranks, "epochs and ranks");
  law(plan.steps() == plan.epochs() * plan.mini_batches(), "steps");
  law((rows == 0) == (plan.mini_batches() == 0), "steps with rows, and none without");
  if (rows == 0) return;
  law(s.mini_batches == 0 || plan.mini_batches() == s.mini_batches, "mini_batches");
  law(s.accumulation == 0 || plan.accumulation() == s.accumulation, "accumulation");
  law(plan.accumulation() >= 1, "accumulation of at least 1");
  law(s.micro_batch == 0 || plan.largest_micro_batch() <= s.micro_batch, "micro_batch");
  constexpr index_t most = 64;  // more than there are rows
  index_t largest = 0;
  const index_t epochs = std::min<index_t>(s.epochs, 4);
  for (index_t epoch = 0; epoch < epochs; ++epoch) {
    Indices step_of(at(rows), -1), cell_of(at(rows), -1), all;
    index_t cells = 0, least_units = rows, most_units = 0;
    for (index_t i = 0; i < plan.mini_batches(); ++i) {
      const index_t step = epoch * plan.mini_batches() + i;
      Indices of_step, of_cells;
      append(of_step, plan.rows(step));
      law(!of_step.empty(), "a step without rows");
      for (index_t rank = 0; rank < std::min(plan.ranks(), most); ++rank) {
        for (index_t k = 0; k < std::min(plan.accumulation(), most); ++k, ++cells) {
          const IndexView cell = plan.rows(step, rank, k);
          law(s.remainder != Remainder::Refuse || cell.extent[0] == plan.largest_micro_batch(),
              "micro-batches of one size");
          largest = std::max(largest, cell.extent[0]);
          append(of_cells, cell);
          for (index_t j = 0; j < cell.extent[0]; ++j) cell_of[at(cell(j))] = cells;
        }
      }
      law(of_cells == of_step, "the micro-batches of a step are its rows");
      for (const index_t row : of_step) step_of[at(row)] = step;
      append(all, gdpo::view(of_step));
      index_t in_step = 0;
      for (const Indices& unit : units) in_step += step_of[at(unit[0])] == step;
      least_units = std::min(least_units, in_step), most_units = std::max(most_units, in_step);
    }
    if (s.remainder == Remainder::Spread) law(most_units - least_units <= 1, "an even spread");
    append(all, plan.dropped(epoch));
    law(s.remainder == Remainder::Drop || plan.dropped(epoch).extent[0] == 0, "rows are dropped");
    if (s.shuffle == Shuffle::Never && s.whole == Whole::Rows)
      law(std::is_sorted(all.begin(), all.end()), "rows in their own order");
    std::sort(all.begin(), all.end());
    bool once = length_of(all) == rows;
    for (index_t i = 0; once && i < rows; ++i) once = all[at(i)] == i;
    law(once, "each row once");
    for (const Indices& unit : units) {
      for (const index_t row : unit) {
        law(step_of[at(row)] == step_of[at(unit[0])], "a group within a step");
        if (s.whole == Whole::InMicroBatch)
          law(cell_of[at(row)] == cell_of[at(unit[0])], "a group within a micro-batch");
      }
    }
  }
  law(epochs < s.epochs || largest == plan.largest_micro_batch(), "largest_micro_batch");
}

/// A plan of rows that are units by themselves, or of groups; `call` makes it.
template <class Call>
void plan_units(Trial& t, const gdpo::update::PlanSettings& s, index_t rows,
                const std::vector<Indices>& units, const Call& call) {
  const real uses = static_cast<real>(rows) * static_cast<real>(s.epochs);
  t.need(rows >= 0 && rows <= most_elements, "rows");
  t.need(uses <= static_cast<real>(most_elements) && s.epochs <= most_elements, "epochs");
  t.leave_out_if(rows > most_work && rows <= most_elements);  // they would be listed
  t.leave_out_if(s.shuffle == gdpo::update::Shuffle::EveryEpoch && uses > most_work &&
                 uses <= static_cast<real>(most_elements));
  if (t.well_formed()) {
    Indices lengths;
    for (const Indices& unit : units) lengths.push_back(length_of(unit));
    need_units_that_fit(t, s, lengths);
  }
  std::optional<gdpo::update::Plan> plan;
  if (!t.make_call({"gdpo::update::plan", "gdpo::by_id", "gdpo::groups_of"},
                   [&] { plan.emplace(call()); }))
    return;
  check_plan(t, *plan, s, rows, units);
  ask_for_part(t, plan->steps(), "gdpo::update::Plan::rows", [&](index_t k) { plan->rows(k); });
}
void plan(Trial& t) {
  const auto s = plan_settings(t, false);
  // Half the batches are full steps.
  index_t rows = t.in.below(25);
  if (t.in.chance(128) && t.well_formed()) {
    const real full = static_cast<real>(std::max<index_t>(s.mini_batches, 1)) *
                      static_cast<real>(std::max<index_t>(s.accumulation, 1)) *
                      static_cast<real>(std::max<index_t>(s.micro_batch, 1)) *
                      static_cast<real>(s.ranks);
    if (full <= 48) rows = static_cast<index_t>(full);
  }
  if (t.in.hostile(24)) rows = odd_extent(t.in, rows);
  t.need(s.whole == gdpo::update::Whole::Rows, "groups that stay whole");
  std::vector<Indices> units;
  for (index_t i = 0; i < std::min(rows, most_work); ++i) units.push_back({i});
  plan_units(t, s, rows, units, [&] { return gdpo::update::plan(rows, s); });
}
template <class Grouping>
void plan_groups(Trial& t) {
  const auto s = plan_settings(t, true);
  const Grouping groups(t);
  const index_t rows = t.in.hostile(16) ? odd_extent(t.in, groups.rows) : groups.rows;
  t.need(groups.fits(rows), "groups");
  t.leave_out_if(groups.large());
  std::vector<Indices> units;
  if (t.well_formed() && !groups.large() && rows <= most_work) {
    if (s.whole == gdpo::update::Whole::Rows) {
      for (index_t i = 0; i < rows; ++i) units.push_back({i});
    } else {
      for (const Indices& group : groups_of(groups, rows))
        if (!group.empty()) units.push_back(group);
    }
  }
  plan_units(t, s, rows, units, [&] { return gdpo::update::plan(rows, groups.make(), s); });
}

// ---- select_groups ----

using gdpo::update::FlatIn, gdpo::update::GiveUp, gdpo::update::Verdict;

/// What the values of a column, or of the weighted sum, say about a group. They are multiples of
/// 1/8, so sums of them and of their squares are exact.
struct Spread {
  bool any = false, unknown = false, flat = true;
  real variance = 0;

  explicit Spread(const std::vector<real>& x = {}) {
    real sum = 0, squares = 0;
    for (const real v : x) {
      any = true, unknown = unknown || !std::isfinite(v), flat = flat && v == x[0];
      sum += v, squares += v * v;
    }
    const real n = static_cast<real>(x.size());
    if (n > 1) variance = (n * squares - sum * sum) / (n * (n - 1));
  }
};
/// The verdicts and spreads of all groups, by plain loops.
struct Selection {
  std::vector<Verdict> verdict;
  std::vector<real> std;
  index_t flat_in_sum_only = 0;

  /// Gives BelowTopP, by the share of the spreads, and then Surplus. Spreads of multiples of 1/8
  /// are the same, or differ by far more than 1e-13 of themselves.
  void rank(const gdpo::update::GroupSelection& s) {
    constexpr real same = 1e-13L;
    std::vector<real> kept;
    Indices of_kept;
    for (std::size_t g = 0; g < verdict.size(); ++g) {
      if (verdict[g] == Verdict::Kept)
        kept.push_back(std[g]), of_kept.push_back(static_cast<index_t>(g));
    }
    std::vector<real> sorted = kept;
    std::sort(sorted.rbegin(), sorted.rend());
    for (real& x : kept)
      x = *std::find_if(sorted.begin(), sorted.end(), [&](real y) { return y <= x * (1 + same); });
    const Indices order = largest_first(kept);
    real total = 0, reached = 0;
    for (const index_t k : order) total += kept[at(k)];
    for (std::size_t k = 0; k < order.size() && s.top_p < 1; ++k) {
      if (k > 0 && reached >= static_cast<real>(s.top_p) * total * (1 - same))
        verdict[at(of_kept[at(order[k])])] = Verdict::BelowTopP;
      reached += kept[at(order[k])];
    }
    index_t passed = 0;
    for (Verdict& v : verdict) {
      if (v == Verdict::Kept && ++passed > s.wanted && s.wanted > 0) v = Verdict::Surplus;
    }
  }
  index_t selected() const { return std::count(verdict.begin(), verdict.end(), Verdict::Kept); }
};

/// The rewards as the settings say, and which rows are used.
struct Rewards {
  const gdpo::update::GroupSelection& s;
  std::vector<double> stored;  // (rows, reward_count)
  index_t reward_count;
  std::vector<double> valid;  // empty: all

  bool used(index_t row) const { return valid.empty() || valid[at(row)] != 0; }
  bool skips() const { return s.missing.entry == gdpo::MissingEntry::Skip; }
  double weight(index_t c) const { return s.weights.empty() ? 1.0 : s.weights[c]; }
  real raw(index_t row, index_t c) const {
    return static_cast<real>(stored[at(row * reward_count + c)]);
  }
  real gated(index_t row, index_t c) const {
    real x = raw(row, c);
    for (const gdpo::Gate& gate : s.gates) {
      if (gate.reward != c) continue;
      if (std::isnan(raw(row, gate.given))) return static_cast<real>(nan);
      if (raw(row, gate.given) < static_cast<real>(gate.at_least)) x = 0;
    }
    return x;
  }
  real operator()(index_t row, index_t c) const {
    const real x = gated(row, c);
    return std::isnan(x) && s.missing.entry == gdpo::MissingEntry::Zero ? 0 : x;
  }
  Spread of_reward(const Indices& group, index_t c) const {
    std::vector<real> x;
    for (const index_t row : group) {
      if (used(row) && !(skips() && std::isnan((*this)(row, c)))) x.push_back((*this)(row, c));
    }
    return Spread(x);
  }
  Spread of_sum(const Indices& group) const {
    std::vector<real> x;
    for (const index_t row : group) {
      if (!used(row)) continue;
      real sum = 0;
      bool any = false;
      for (index_t c = 0; c < reward_count; ++c) {
        if (weight(c) == 0 || (skips() && std::isnan((*this)(row, c)))) continue;
        any = true, sum += static_cast<real>(weight(c)) * (*this)(row, c);
      }
      if (any || !skips() || s.missing.row == gdpo::MissingRow::Keep) x.push_back(sum);
    }
    return Spread(x);
  }
};
Selection judged(const Rewards& rewards, const std::vector<Indices>& groups,
                 const std::vector<double>& given) {
  const gdpo::update::GroupSelection& s = rewards.s;
  Selection all;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Spread by_reward;
    for (index_t c = 0; c < rewards.reward_count; ++c) {
      if (rewards.weight(c) == 0) continue;
      const Spread one_reward = rewards.of_reward(groups[g], c);
      const real w = static_cast<real>(rewards.weight(c));
      by_reward.any = by_reward.any || one_reward.any,
      by_reward.flat = by_reward.flat && one_reward.flat;
      by_reward.unknown = by_reward.unknown || one_reward.unknown;
      by_reward.variance += w * w * one_reward.variance;
    }
    const Spread sum = rewards.of_sum(groups[g]);
    Spread one = s.flat_in == FlatIn::EveryReward ? by_reward
                 : s.flat_in == FlatIn::Reward    ? rewards.of_reward(groups[g], s.reward)
                                                  : sum;
    if (s.flat_in == FlatIn::Given) one.flat = given[g] != 0;
    const bool unknown = by_reward.unknown || one.unknown;
    all.std.push_back(unknown ? static_cast<real>(nan) : std::sqrt(one.variance));
    if (sum.any && !sum.unknown && sum.flat && !(by_reward.flat || by_reward.unknown))
      ++all.flat_in_sum_only;
    all.verdict.push_back(!one.any   ? Verdict::Empty
                          : unknown  ? Verdict::NotFinite
                          : one.flat ? Verdict::Flat
                          : s.min_std > 0 && all.std.back() <= static_cast<real>(s.min_std)
                              ? Verdict::SmallStd
                              : Verdict::Kept);
  }
  return all;
}

template <class T, class Grouping>
void select_groups(Trial& t) {
  const Grouping groups(t);
  const index_t reward_count = t.in.pick<index_t>({2, 1, 3, 1, 2, 0});
  const bool steps = t.in.chance(128);  // few different rewards, so that groups are flat
  const auto rewards = t.filled<T, 2>({groups.rows, reward_count}, [&] {
    if (std::is_floating_point_v<T> && t.in.chance(6)) return t.in.pick({nan, nan, infinity});
    return steps ? 1.0 * (t.in.below(8) == 0) : t.in.number();
  });
  const index_t rows = rewards.extent(0);
  AnyColumn<double> valid;
  if (t.in.chance(64)) valid = numbers_column(t, groups.rows, 1, [&] { return t.in.below(4) < 3; });
  t.need(rewards.sound(), "rewards");
  t.need(groups.fits(rows), "groups");
  t.need(valid.fits(rows), "valid");
  t.leave_out_if(groups.large() || (rewards.large() && rewards.shape.sound()));

  gdpo::update::GroupSelection s;
  s.flat_in = enumerator<FlatIn>(t, 4, "flat_in");
  s.give_up = enumerator<GiveUp>(t, 3, "give_up");
  choose_weights_and_gates(t, s, rewards.extent(1));
  if (t.in.chance(96)) {
    s.missing.entry = t.in.pick({gdpo::MissingEntry::Skip, gdpo::MissingEntry::Zero,
                                 gdpo::MissingEntry::Propagate, gdpo::MissingEntry::Reject});
    s.missing.row = t.in.pick({gdpo::MissingRow::Exclude, gdpo::MissingRow::Keep});
  }
  const auto number = [&](index_t usual) {
    return t.in.hostile(10) ? odd_extent(t.in, usual) : usual;
  };
  s.reward = number(0);
  s.wanted = number(t.in.below(4)), s.max_attempts = number(t.in.below(3));
  const index_t attempt = number((s.max_attempts > 0) + t.in.below(s.max_attempts == 1 ? 1 : 2));
  s.min_std = t.in.hostile(12) ? odd_number(t.in) : t.in.pick({0.0, 0.3, 0.7});
  s.top_p = t.in.hostile(12) ? odd_number(t.in) : t.in.pick({1.0, 0.37, 0.83});
  const bool fit = groups.fits(rows) && !groups.large() && !rewards.large();
  const index_t count = fit ? groups.count(rows) : 3;
  const auto given = t.filled<unsigned char, 1>({count}, [&] { return t.in.below(2); });
  s.given = given.view();
  t.need(s.flat_in != FlatIn::Given || (given.sound() && given.extent(0) == count), "given");
  t.need(s.flat_in != FlatIn::Reward || (s.reward >= 0 && s.reward < rewards.extent(1)), "reward");
  t.need(s.min_std >= 0 && std::isfinite(s.min_std), "min_std");
  t.need(s.top_p > 0 && s.top_p <= 1, "top_p");
  t.need(s.wanted >= 0 && s.max_attempts >= 0, "wanted and max_attempts");
  // Without a last attempt nobody has to count them.
  t.need(s.max_attempts > 0 ? attempt >= 1 && attempt <= s.max_attempts : attempt >= 0, "attempt");

  std::vector<Indices> members;
  Selection expected;
  bool gave_up = false;
  const Rewards read{s, rewards.numbers(), rewards.extent(1), valid.numbers};
  if (t.well_formed() && fit) {
    members = groups_of(groups, rows);
    for (index_t c = 0; c < read.reward_count && s.missing.entry == gdpo::MissingEntry::Reject;
         ++c) {
      const bool is_read = read.weight(c) != 0 || (s.flat_in == FlatIn::Reward && s.reward == c);
      for (index_t i = 0; is_read && i < rows; ++i)
        t.need(!read.used(i) || !std::isnan(read.gated(i, c)), "rewards that are all there");
    }
    expected = judged(read, members, given.numbers());
    Selection ranked = expected;
    ranked.rank(s);
    gave_up = ranked.selected() < s.wanted && attempt > 0 && attempt == s.max_attempts;
    t.need(!gave_up || s.give_up != GiveUp::Refuse, "enough groups");
  }
  gdpo::update::SelectedGroups got;
  if (!t.make_call(
          {"gdpo::update::select_groups", "gdpo::by_id", "gdpo::groups_of", "gdpo::Column"}, [&] {
            gdpo::RewardBatch batch{rewards.view(), groups.make()};
            batch.valid = valid.make();
            got = gdpo::update::select_groups(batch, s, attempt);
          }))
    return;
  t.compare("groups", static_cast<real>(got.group_std.size()), static_cast<real>(count), 0);
  t.compare("verdicts", static_cast<real>(got.verdict.size()), static_cast<real>(count), 0);
  if (!t.outcome.failure.empty()) return;
  for (std::size_t g = 0; g < members.size(); ++g)
    t.compare("std", got.group_std[g], expected.std[g], 1e-13L);
  expected.rank(s);
  Indices selected, selected_rows, offsets{0};
  for (index_t g = 0; g < count; ++g) {
    t.compare("verdict", static_cast<real>(got.verdict[at(g)]),
              static_cast<real>(expected.verdict[at(g)]), 0);
    const bool first = gave_up && s.give_up == GiveUp::KeepFirst;
    if (first ? g >= s.wanted : expected.verdict[at(g)] != Verdict::Kept) continue;
    selected.push_back(g);
    append(selected_rows, gdpo::view(members[at(g)]));
    offsets.push_back(length_of(selected_rows));
  }
  compare_all(t, "selected groups", gdpo::view(got.groups), selected);
  compare_all(t, "selected rows", gdpo::view(got.rows), selected_rows);
  compare_all(t, "offsets", gdpo::view(got.offsets), offsets);
  t.compare("gave_up", got.gave_up, gave_up, 0);
  t.compare("refill", static_cast<real>(got.refill),
            static_cast<real>(std::max<index_t>(0, s.wanted - length_of(selected))), 0);
  t.compare("flat_in_sum_only", static_cast<real>(got.flat_in_sum_only),
            static_cast<real>(expected.flat_in_sum_only), 0);
}

}  // namespace

const std::vector<Case>& row_cases() {
  static const std::vector<Case> cases{
      {"pack", pack<int>},
      {"pack", pack<std::uint64_t>},
      {"shard", shard<std::int64_t>},
      {"shard, groups", shard_groups<short, OfSize>},
      {"shard, groups", shard_groups<int, SameId<int>>},
      {"plan", plan},
      {"plan, groups", plan_groups<OfSize>},
      {"plan, groups", plan_groups<Between<std::int32_t>>},
      {"select_groups", select_groups<float, OfSize>},
      {"select_groups", select_groups<double, Between<std::int64_t>>}};
  return cases;
}

}  // namespace fuzz
