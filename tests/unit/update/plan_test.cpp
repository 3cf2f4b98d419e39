// labels: sanitizers
// update::plan: the laws of every plan, the numbers of trainers, and what does not fit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/update/plan.hpp>
#include <map>
#include <random>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/indices.hpp"
#include "support/message.hpp"

namespace plan_test {

namespace {

using gdpo::index_t;
using gdpo::update::Plan;
using gdpo::update::plan;
using gdpo::update::PlanSettings;
using gdpo::update::Remainder;
using gdpo::update::Shuffle;
using gdpo::update::Whole;
using Indices = std::vector<index_t>;

void append(Indices& to, const Indices& more) { to.insert(to.end(), more.begin(), more.end()); }

/// All rows of an epoch in the order of its steps, then the dropped ones.
Indices epoch_of(const Plan& p, index_t epoch) {
  Indices all;
  for (index_t i = 0; i < p.mini_batches(); ++i)
    append(all, list(p.rows(epoch * p.mini_batches() + i)));
  append(all, list(p.dropped(epoch)));
  return all;
}
/// All rows of all steps and epochs, and where they are cut.
std::vector<Indices> everything(const Plan& p) {
  std::vector<Indices> all;
  for (index_t step = 0; step < p.steps(); ++step) {
    for (index_t r = 0; r < p.ranks(); ++r) {
      for (index_t k = 0; k < p.accumulation(); ++k) all.push_back(list(p.rows(step, r, k)));
    }
  }
  for (index_t e = 0; e < p.epochs(); ++e) all.push_back(list(p.dropped(e)));
  return all;
}
/// The numbers of rows of the mini-batches of an epoch.
Indices sizes(const Plan& p) {
  Indices out;
  for (index_t i = 0; i < p.mini_batches(); ++i) out.push_back(p.rows(i).extent[0]);
  return out;
}
/// The numbers of rows of the micro-batches of a step, rank after rank.
Indices cells(const Plan& p, index_t step) {
  Indices out;
  for (index_t r = 0; r < p.ranks(); ++r) {
    for (index_t k = 0; k < p.accumulation(); ++k) out.push_back(p.rows(step, r, k).extent[0]);
  }
  return out;
}
/// What the first epoch leaves out.
Indices dropped(const Plan& p) { return list(p.dropped(0)); }
Indices first_integers(index_t n) {
  Indices out;
  for (index_t i = 0; i < n; ++i) out.push_back(i);
  return out;
}
/// The difference between the largest and the smallest number.
index_t spread(const Indices& v) {
  return v.empty() ? 0
                   : *std::max_element(v.begin(), v.end()) - *std::min_element(v.begin(), v.end());
}

/// A batch with groups and settings for it.
struct Case {
  Indices id;  // the group of each row
  PlanSettings settings;
};

/// Settings of any kind for up to 120 rows. Some do not fit them.
Case random_case(Random& random) {
  Case c;
  const bool one_length = random.chance(0.7);
  const int groups = random.chance(0.5) ? 1 + random.below(12) : random.pick({12, 24}),
            length = 1 + random.below(5);
  for (int g = 0; g < groups; ++g) {
    const int rows = one_length ? length : 1 + random.below(length);
    c.id.insert(c.id.end(), static_cast<std::size_t>(rows), g);
  }
  if (random.chance(0.5)) random.shuffle(c.id);
  PlanSettings& s = c.settings;
  s.epochs = 1 + random.below(3);
  s.mini_batches = random.below(5);
  s.accumulation = random.chance(0.4) ? 0 : 1 + random.below(3);
  s.micro_batch = random.chance(0.4) ? 0 : 1 + random.below(8);
  s.ranks = 1 + random.below(4);
  s.remainder =
      random.pick({Remainder::Refuse, Remainder::Drop, Remainder::Keep, Remainder::Spread});
  s.whole = random.pick({Whole::Rows, Whole::InStep, Whole::InMicroBatch});
  s.shuffle = random.pick({Shuffle::Never, Shuffle::Once, Shuffle::EveryEpoch});
  s.seed = random.bits();
  return c;
}

/// How many different groups there are in these rows, each wholly in them; -1: one is cut.
index_t whole_groups(const Case& c, const Indices& rows) {
  std::map<index_t, index_t> members;
  for (const index_t i : rows) ++members[c.id[static_cast<std::size_t>(i)]];
  for (const auto& [id, count] : members) {
    if (std::count(c.id.begin(), c.id.end(), id) != count) return -1;
  }
  return static_cast<index_t>(members.size());
}

void check_laws(const Case& c, const Plan& p) {
  const PlanSettings& s = c.settings;
  const auto rows = static_cast<index_t>(c.id.size());
  const bool even = s.remainder == Remainder::Refuse || s.remainder == Remainder::Drop;
  // Numbers that are given are those of the plan.
  CHECK(p.epochs() == s.epochs);
  CHECK(p.ranks() == s.ranks);
  CHECK(p.steps() == p.epochs() * p.mini_batches());
  if (s.mini_batches > 0) CHECK(p.mini_batches() == s.mini_batches);
  if (s.accumulation > 0) CHECK(p.accumulation() == s.accumulation);
  if (s.micro_batch > 0) CHECK(p.largest_micro_batch() <= s.micro_batch);
  CHECK(p.mini_batches() >= 1);
  CHECK(p.accumulation() >= 1);

  // Each epoch uses every row once.
  for (index_t e = 0; e < p.epochs(); ++e) {
    Indices all = epoch_of(p, e);
    if (s.whole == Whole::Rows && s.shuffle == Shuffle::Never) CHECK(all == first_integers(rows));
    if (e > 0 && s.shuffle != Shuffle::EveryEpoch) CHECK(all == epoch_of(p, 0));
    std::sort(all.begin(), all.end());
    CHECK(all == first_integers(rows));
    if (s.remainder != Remainder::Drop) CHECK(p.dropped(e).extent[0] == 0);
  }
  index_t largest = 0;
  Indices all_micro_batches;  // of all steps: their numbers of rows, or of groups where whole
  std::vector<Indices> mini_batches(static_cast<std::size_t>(p.epochs()));  // the same for steps
  for (index_t step = 0; step < p.steps(); ++step) {
    Indices joined, micro_batches;
    for (index_t r = 0; r < p.ranks(); ++r) {
      for (index_t k = 0; k < p.accumulation(); ++k) {
        const Indices part = list(p.rows(step, r, k));
        largest = (std::max)(largest, static_cast<index_t>(part.size()));
        const index_t size = s.whole == Whole::InMicroBatch ? whole_groups(c, part)
                                                            : static_cast<index_t>(part.size());
        if (size < 0) FAIL_CHECK("a group is cut");
        micro_batches.push_back(size);
        append(joined, part);
      }
    }
    CHECK(joined == list(p.rows(step)));
    CHECK_FALSE(joined.empty());
    CHECK(spread(micro_batches) <= 1);
    append(all_micro_batches, micro_batches);
    const index_t size =
        s.whole == Whole::Rows ? static_cast<index_t>(joined.size()) : whole_groups(c, joined);
    if (size < 0) FAIL_CHECK("a group is cut");
    mini_batches[static_cast<std::size_t>(step / p.mini_batches())].push_back(size);
  }
  CHECK(p.largest_micro_batch() == largest);
  if (s.remainder == Remainder::Refuse) CHECK(spread(all_micro_batches) == 0);
  if (s.whole != Whole::InStep) {
    if (even) CHECK(spread(all_micro_batches) == 0);
    if (s.remainder == Remainder::Spread) CHECK(spread(all_micro_batches) <= 1);
  }
  for (Indices of_epoch : mini_batches) {
    CHECK(of_epoch == mini_batches[0]);
    if (even) CHECK(spread(of_epoch) == 0);
    if (s.remainder == Remainder::Spread) CHECK(spread(of_epoch) <= 1);
    if (s.remainder == Remainder::Keep) {
      CHECK(of_epoch.back() <= of_epoch.front());
      of_epoch.pop_back();
      CHECK(spread(of_epoch) == 0);
    }
  }
}

/// Whether there is a plan, from what the settings mean.
bool can_be_done(const Case& c) {
  const PlanSettings& s = c.settings;
  const bool refuse = s.remainder == Remainder::Refuse, drop = s.remainder == Remainder::Drop,
             both = s.accumulation > 0 && s.micro_batch > 0;
  const index_t m = s.mini_batches, parts = s.ranks * (std::max)(s.accumulation, index_t{1});
  if (m == 0 && !both) return false;
  std::map<index_t, index_t> members;
  for (std::size_t i = 0; i < c.id.size(); ++i)
    ++members[s.whole == Whole::Rows ? static_cast<index_t>(i) : c.id[i]];
  const auto units = static_cast<index_t>(members.size());
  index_t longest = 0;
  for (const auto& unit : members) longest = (std::max)(longest, unit.second);
  for (const auto& unit : members) {
    if (refuse && unit.second != longest) return false;
  }
  index_t each = 1;  // units that fill a mini-batch, or that it has a multiple of
  if (s.whole == Whole::InStep) {
    const index_t filled = parts * (std::max)(s.micro_batch, index_t{1});
    if (both) each = filled / longest;
    if (both && refuse && filled % longest != 0) return false;
    while (!both && refuse && each * longest % filled != 0) ++each;
  } else {
    const index_t in_micro_batch = s.micro_batch / longest;
    if (s.micro_batch > 0 && in_micro_batch == 0) return false;
    if (both || refuse || drop) each = parts * (std::max)(in_micro_batch, index_t{1});
  }
  if (each == 0) return false;
  if (m == 0) return refuse ? units % each == 0 : drop ? units >= each : true;
  if (both) {
    return refuse                           ? units == m * each
           : drop                           ? units / each == m
           : s.remainder == Remainder::Keep ? (m - 1) * each < units && units <= m * each
                                            : m <= units && units <= m * each;
  }
  if (refuse) return units % (m * each) == 0;
  if (drop) return units >= m * each;
  return s.remainder == Remainder::Keep ? (m - 1) * ((units + m - 1) / m) < units : m <= units;
}

}  // namespace

TEST_CASE("update::plan: the laws of every plan", "[update]") {
  int made[4] = {}, refused = 0, dropping = 0, uneven = 0;
  for (std::uint64_t seed = 0; seed < (few_rounds ? 800 : 2500); ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Case c = random_case(random);
    const PlanSettings& s = c.settings;
    const auto rows = static_cast<index_t>(c.id.size());
    const auto groups = gdpo::by_id(c.id);
    std::string message;
    try {
      const Plan p = plan(rows, groups, s);
      check_laws(c, p);
      ++made[static_cast<int>(s.remainder)];
      dropping += p.dropped(0).extent[0] > 0;
      uneven += spread(sizes(p)) > 0;
      if (everything(plan(rows, groups, s)) != everything(p)) FAIL_CHECK("another plan");
      if (s.whole == Whole::Rows && everything(plan(rows, s)) != everything(p))
        FAIL_CHECK("groups matter under Whole::Rows");
      // A shorter plan is the beginning of a longer one.
      PlanSettings longer = s;
      ++longer.epochs;
      const Plan more = plan(rows, groups, longer);
      for (index_t e = 0; e < p.epochs(); ++e) CHECK(epoch_of(more, e) == epoch_of(p, e));
    } catch (const gdpo::invalid_input& e) {
      message = e.what();
      ++refused;
      CHECK(message.find("gdpo::update::plan: ") == 0);
      CHECK(message.find("; needed: ") != std::string::npos);
    }
    const bool fits = can_be_done(c);
    if (fits != message.empty()) FAIL_CHECK(rows << " rows: " << message);
  }
  // Each kind of plan was there.
  for (const int count : made) CHECK(count > (few_rounds ? 20 : 100));
  CHECK(refused > 100);
  CHECK(dropping > 20);
  CHECK(uneven > 20);
}

TEST_CASE("update::plan: ms-swift's example", "[update]") {
  PlanSettings s;
  s.mini_batches = 0, s.accumulation = 8, s.micro_batch = 4, s.ranks = 8;
  // 512 completions of 64 a prompt, in mini-batches of 8 x 4 x 8 = 256.
  for (const Whole whole : {Whole::Rows, Whole::InStep}) {
    s.whole = whole;
    const Plan p = plan(512, gdpo::groups_of(64), s);
    CHECK(p.steps() == 2);
    CHECK(p.mini_batches() == 2);
    CHECK(sizes(p) == Indices{256, 256});
    CHECK(p.largest_micro_batch() == 4);
    CHECK(list(p.rows(0, 0, 0)) == Indices{0, 1, 2, 3});
    CHECK(list(p.rows(0, 1, 0)) == Indices{32, 33, 34, 35});
    CHECK(list(p.rows(1, 7, 7)) == Indices{508, 509, 510, 511});
  }
  // The groups of 64 do not fit a micro-batch of 4.
  s.whole = Whole::InMicroBatch;
  CHECK(message_of([&] { plan(512, gdpo::groups_of(64), s); }) ==
        "gdpo::update::plan: micro_batch: given 4; needed: at least 64, the rows of the longest "
        "group, or Whole::InStep");
  // Of the three numbers any one follows.
  s.whole = Whole::Rows;
  s.mini_batches = 2, s.accumulation = 0;
  CHECK(plan(512, s).accumulation() == 8);
  s.accumulation = 8, s.micro_batch = 0;
  CHECK(plan(512, s).largest_micro_batch() == 4);
  s.micro_batch = 4;
  CHECK(plan(512, s).steps() == 2);
  s.accumulation = s.micro_batch = 0;  // one micro-batch
  CHECK(plan(512, s).accumulation() == 1);
  CHECK(plan(512, s).largest_micro_batch() == 32);
}

TEST_CASE("update::plan: four mini-batches and several epochs", "[update]") {
  PlanSettings s;
  s.mini_batches = 4, s.epochs = 3;
  const Plan p = plan(64, gdpo::groups_of(8), s);
  CHECK(p.steps() == 12);
  CHECK(p.epochs() == 3);
  CHECK(list(p.rows(5)) == list(p.rows(1)));
  CHECK(p.rows(11)(15) == 63);
}

TEST_CASE("update::plan: open-instruct's accumulation", "[update]") {
  // Written as the trainer has it: a group of micro-batches steps when it is full.
  for (int n = 1; n <= 40; ++n) {
    for (int m = 1; m <= 8; ++m) {
      INFO(n << " packed sequences, num_mini_batches " << m);
      PlanSettings s;
      s.mini_batches = 0, s.micro_batch = 1, s.remainder = Remainder::Drop;
      s.accumulation = static_cast<index_t>((std::max)(std::ceil(n / double(m) - 0.5), 1.0));
      const Plan p = plan(n, s);
      index_t steps = 0;
      for (index_t i = 1; i <= n; ++i) steps += i % s.accumulation == 0;
      CHECK(p.steps() == steps);
      CHECK(p.dropped(0).extent[0] == n % s.accumulation);
    }
  }
}

TEST_CASE("update::plan: remainders by hand", "[update]") {
  PlanSettings s;
  s.mini_batches = 3;
  s.remainder = Remainder::Spread;
  CHECK(sizes(plan(10, s)) == Indices{4, 3, 3});
  s.remainder = Remainder::Keep;
  CHECK(sizes(plan(10, s)) == Indices{4, 4, 2});
  s.remainder = Remainder::Drop;
  CHECK(sizes(plan(10, s)) == Indices{3, 3, 3});
  CHECK(dropped(plan(10, s)) == Indices{9});

  s.ranks = 2, s.accumulation = 2;  // 12 micro-batches
  s.remainder = Remainder::Spread;
  const Plan p = plan(34, s);
  CHECK(sizes(p) == Indices{12, 11, 11});
  CHECK(p.largest_micro_batch() == 3);
  CHECK(cells(p, 0) == Indices{3, 3, 3, 3});
  CHECK(cells(p, 1) == Indices{3, 3, 3, 2});
  // Rows go over the ranks first: no rank is idle while another has two rows.
  CHECK(cells(plan(7, s), 0) == Indices{1, 1, 1, 0});
  CHECK(cells(plan(7, s), 1) == Indices{1, 0, 1, 0});
  CHECK(plan(7, s).largest_micro_batch() == 1);

  // Without mini_batches: mini-batches as large as they may be.
  s.mini_batches = 0, s.micro_batch = 2;  // 8 rows
  s.remainder = Remainder::Keep;
  CHECK(sizes(plan(18, s)) == Indices{8, 8, 2});
  CHECK(cells(plan(18, s), 2) == Indices{1, 0, 1, 0});
  CHECK(sizes(plan(3, s)) == Indices{3});
  s.remainder = Remainder::Spread;
  CHECK(sizes(plan(18, s)) == Indices{6, 6, 6});
  CHECK(sizes(plan(3, s)) == Indices{3});
  s.remainder = Remainder::Drop;
  CHECK(sizes(plan(18, s)) == Indices{8, 8});
  CHECK(dropped(plan(18, s)) == Indices{16, 17});

  // accumulation follows: the smallest that keeps micro-batches within 4 rows, the largest that
  // fills them under Drop.
  s.mini_batches = 2, s.accumulation = 0, s.micro_batch = 4, s.ranks = 1;
  CHECK(plan(30, s).accumulation() == 3);
  CHECK(cells(plan(30, s), 0) == Indices{4, 4, 4});
  CHECK(dropped(plan(30, s)).size() == 6);
  s.remainder = Remainder::Spread;
  CHECK(cells(plan(30, s), 0) == Indices{4, 4, 4, 3});
}

TEST_CASE("update::plan: groups by hand", "[update]") {
  const Indices offsets{0, 3, 3, 4, 8, 10};  // 3, 0, 1, 4 and 2 rows
  PlanSettings s;
  s.mini_batches = 2, s.ranks = 2, s.remainder = Remainder::Spread;
  s.whole = Whole::InStep;
  const Plan in_step = plan(10, gdpo::by_offsets(offsets), s);
  CHECK(sizes(in_step) == Indices{4, 6});
  CHECK(cells(in_step, 0) == Indices{2, 2});
  CHECK(cells(in_step, 1) == Indices{3, 3});
  s.whole = Whole::InMicroBatch;
  const Plan in_micro = plan(10, gdpo::by_offsets(offsets), s);
  CHECK(cells(in_micro, 0) == Indices{3, 1});
  CHECK(cells(in_micro, 1) == Indices{4, 2});
  CHECK(in_micro.largest_micro_batch() == 4);
  s.mini_batches = 1, s.micro_batch = 7;  // room for one group of 4 rows
  CHECK(plan(10, gdpo::by_offsets(offsets), s).accumulation() == 2);
  s.micro_batch = 8;
  CHECK(plan(10, gdpo::by_offsets(offsets), s).accumulation() == 1);

  // Members by id come together, groups by ascending id.
  const std::vector<int> ids{7, 3, 7, 3};
  s = {};
  s.mini_batches = 2;
  s.whole = Whole::InStep;
  const Plan by_id = plan(4, gdpo::by_id(ids), s);
  CHECK(list(by_id.rows(0)) == Indices{1, 3});
  CHECK(list(by_id.rows(1)) == Indices{0, 2});

  // Drop leaves out whole groups.
  s.remainder = Remainder::Drop;
  CHECK(dropped(plan(15, gdpo::groups_of(3), s)) == Indices{12, 13, 14});
  // accumulation from the rows of a mini-batch: 6 rows over micro-batches of 4.
  s.micro_batch = 4;
  CHECK(plan(15, gdpo::groups_of(3), s).accumulation() == 2);
  // One group in one step, and mini-batches of the groups that are sure to fit.
  s = {};
  s.whole = Whole::InMicroBatch;
  CHECK(cells(plan(3, gdpo::groups_of(3), s), 0) == Indices{3});
  s.mini_batches = 0, s.accumulation = 2, s.micro_batch = 7;
  CHECK(sizes(plan(24, gdpo::groups_of(3), s)) == Indices{12, 12});
  s.whole = Whole::InStep, s.remainder = Remainder::Keep;
  CHECK(sizes(plan(27, gdpo::groups_of(3), s)) == Indices{12, 12, 3});
}

TEST_CASE("update::plan: shuffled orders", "[update]") {
  const Indices first{10, 2, 8, 11, 0, 1, 5, 3, 7, 6, 4, 9},
      second{2, 1, 6, 7, 3, 10, 8, 11, 5, 9, 4, 0};
  PlanSettings s;
  s.epochs = 2, s.seed = 20260601, s.shuffle = Shuffle::EveryEpoch;
  // From a program in Python that has its own mt19937_64, the draw by rejection, and the shuffle.
  CHECK(epoch_of(plan(12, s), 0) == first);
  CHECK(epoch_of(plan(12, s), 1) == second);
  s.shuffle = Shuffle::Once;
  CHECK(epoch_of(plan(12, s), 0) == first);
  CHECK(epoch_of(plan(12, s), 1) == first);
  s.shuffle = Shuffle::EveryEpoch;
  s.whole = Whole::InStep;  // groups take the places of the rows, their own rows keep their order
  CHECK(epoch_of(plan(24, gdpo::groups_of(2), s), 1) == [&] {
    Indices rows;
    for (const index_t g : second) append(rows, {2 * g, 2 * g + 1});
    return rows;
  }());
  s.whole = Whole::Rows;
  // Each of the 24 orders of 4 rows comes about equally often. Counts of 4800 draws have standard
  // deviation 13.8 around 200; six of these are 83.
  std::map<Indices, int> seen;
  s.epochs = 4800;
  const Plan many = plan(4, s);
  for (index_t e = 0; e < s.epochs; ++e) ++seen[list(many.rows(e))];
  CHECK(seen.size() == 24);
  for (const auto& order : seen) CHECK(std::abs(order.second - 200) < 83);
  // Other seeds, also neighbors and epochs of neighbors, have other orders.
  std::map<Indices, int> orders;
  s.epochs = 5;
  for (s.seed = 0; s.seed < 20; ++s.seed) {
    const Plan p = plan(20, s);
    for (index_t e = 0; e < 5; ++e) ++orders[list(p.rows(e))];
  }
  CHECK(orders.size() == 100);
  // Which rows are dropped is random as well.
  s.mini_batches = 3, s.remainder = Remainder::Drop;
  std::map<index_t, int> left_out;
  const Plan p = [&] {
    s.epochs = 60;
    return plan(4, s);
  }();
  for (index_t e = 0; e < 60; ++e) ++left_out[p.dropped(e)(0)];
  CHECK(left_out.size() == 4);
}

TEST_CASE("update::plan: draws are equally likely", "[update]") {
  // 2^64 numbers are twice the 3 x 2^61 values and 2^62 more. Those are drawn again: one in four.
  constexpr index_t n = index_t{3} << 61;
  std::mt19937_64 random(1), same(1);
  int skipped = 0;
  for (int i = 0; i < 100; ++i) {
    std::uint64_t bits = same();
    for (; bits < std::uint64_t{1} << 62; bits = same()) ++skipped;
    CHECK(gdpo::detail::plan_draw(random, n) ==
          static_cast<index_t>(bits % static_cast<std::uint64_t>(n)));
  }
  CHECK(skipped > 10);
}

TEST_CASE("update::plan: no rows", "[update]") {
  const std::vector<int> none;
  const Indices empty_groups{0, 0, 0};
  for (const Remainder remainder :
       {Remainder::Refuse, Remainder::Drop, Remainder::Keep, Remainder::Spread}) {
    for (const Whole whole : {Whole::Rows, Whole::InStep, Whole::InMicroBatch}) {
      PlanSettings s;
      s.epochs = 3, s.mini_batches = 2, s.accumulation = 2, s.micro_batch = 1;
      s.shuffle = Shuffle::EveryEpoch;
      s.remainder = remainder, s.whole = whole;
      for (const Plan& p : {plan(0, gdpo::groups_of(4), s), plan(0, gdpo::by_id(none), s),
                            plan(0, gdpo::by_offsets(empty_groups), s)}) {
        CHECK(p.steps() == 0);
        CHECK(p.mini_batches() == 0);
        CHECK(p.accumulation() == 2);
        CHECK(p.largest_micro_batch() == 0);
        CHECK(p.dropped(2).extent[0] == 0);
        CHECK(message_of([&] { p.rows(0); }) ==
              "gdpo::update::Plan::rows: step: given 0; needed: at least 0 and below 0, the number "
              "of steps");
      }
    }
  }
  PlanSettings many;  // no memory for epochs without rows
  many.epochs = index_t{1} << 48, many.shuffle = Shuffle::EveryEpoch;
  CHECK(plan(0, many).steps() == 0);
  CHECK(plan(0, {}).steps() == 0);
  CHECK(plan(0, {}).accumulation() == 1);
}

TEST_CASE("update::plan: numbers of any size", "[update]") {
  constexpr index_t huge = PTRDIFF_MAX;
  PlanSettings s;
  s.mini_batches = 0, s.accumulation = huge, s.micro_batch = huge, s.ranks = huge;
  s.remainder = Remainder::Keep;
  for (const Whole whole : {Whole::Rows, Whole::InStep, Whole::InMicroBatch}) {
    s.whole = whole;
    const Plan p = plan(6, gdpo::groups_of(2), s);
    CHECK(p.steps() == 1);
    CHECK(p.rows(0, huge - 1, huge - 1).extent[0] == 0);
    CHECK(p.largest_micro_batch() == (whole == Whole::InMicroBatch ? 2 : 1));
  }
  s.whole = Whole::Rows, s.mini_batches = huge;
  for (const Remainder remainder :
       {Remainder::Refuse, Remainder::Drop, Remainder::Keep, Remainder::Spread}) {
    s.remainder = remainder;
    CHECK(message_of([&] { plan(6, s); }) != "no error");
  }
  s = {};
  s.epochs = huge;
  CHECK(message_of([&] { plan(1 << 20, s); }) ==
        "gdpo::update::plan: epochs: given 9223372036854775807; needed: at most 268435456, so that "
        "at most 2^48 rows are used");
}

TEST_CASE("update::plan: numbers that do not fit the rows", "[update][errors]") {
  const auto message = [](index_t rows, index_t mini_batches, index_t accumulation,
                          index_t micro_batch, index_t ranks, Remainder remainder) {
    PlanSettings s;
    s.mini_batches = mini_batches, s.accumulation = accumulation, s.micro_batch = micro_batch;
    s.ranks = ranks, s.remainder = remainder;
    return message_of([&] { plan(rows, s); });
  };
  const std::string rows = "gdpo::update::plan: rows: ",
                    other = "; or another Remainder than Refuse";
  CHECK(message(250, 0, 2, 4, 8, Remainder::Refuse) ==
        rows +
            "given 250 rows; needed: a multiple of 64 rows, such as 192 or 256, for 8 ranks x 2 "
            "micro-batches x 4 rows" +
            other);
  CHECK(message(6, 1, 0, 0, 4, Remainder::Refuse) ==
        rows +
            "given 6 rows; needed: a multiple of 4 rows, such as 4 or 8, for 1 mini-batch x 4 "
            "ranks" +
            other);
  CHECK(message(1, 4, 1, 0, 1, Remainder::Refuse) ==
        rows +
            "given 1 row; needed: a multiple of 4 rows, such as 4, for 4 mini-batches x 1 rank x "
            "1 micro-batch" +
            other);
  CHECK(message(250, 4, 2, 4, 8, Remainder::Refuse) ==
        rows +
            "given 250 rows; needed: 256 rows, for 4 mini-batches x 8 ranks x 2 micro-batches x "
            "4 rows" +
            other);
  CHECK(message(512, 4, 2, 4, 8, Remainder::Refuse).find("needed: 256 rows, for") !=
        std::string::npos);
  CHECK(message(63, 0, 2, 4, 8, Remainder::Drop) ==
        rows + "given 63 rows; needed: at least 64 rows, for 8 ranks x 2 micro-batches x 4 rows");
  CHECK(message(320, 4, 2, 4, 8, Remainder::Drop) ==
        rows +
            "given 320 rows; needed: 256 to 319 rows, for 4 mini-batches x 8 ranks x 2 "
            "micro-batches x 4 rows");
  CHECK(message(319, 4, 2, 4, 8, Remainder::Drop) == "no error");
  CHECK(message(255, 4, 2, 4, 8, Remainder::Drop) != "no error");
  CHECK(message(192, 4, 2, 4, 8, Remainder::Keep) ==
        rows +
            "given 192 rows; needed: 193 to 256 rows, for 4 mini-batches x 8 ranks x 2 "
            "micro-batches x 4 rows");
  CHECK(message(193, 4, 2, 4, 8, Remainder::Keep) == "no error");
  CHECK(message(257, 4, 2, 4, 8, Remainder::Keep) != "no error");
  CHECK(message(257, 4, 2, 4, 8, Remainder::Spread) ==
        rows +
            "given 257 rows; needed: 4 to 256 rows, for 4 mini-batches x 8 ranks x 2 "
            "micro-batches x 4 rows");
  CHECK(message(4, 4, 2, 4, 8, Remainder::Spread) == "no error");
  CHECK(message(3, 4, 0, 0, 8, Remainder::Spread) ==
        rows + "given 3 rows; needed: at least 4 rows, for 4 mini-batches");
  CHECK(
      message(10, 6, 0, 0, 1, Remainder::Keep) ==
      "gdpo::update::plan: mini_batches: given 6; needed: another number, since mini-batches of 2 "
      "are used up by 5, or Remainder::Spread");

  PlanSettings s;
  s.whole = Whole::InMicroBatch;
  s.mini_batches = 0, s.ranks = 2, s.accumulation = 1, s.micro_batch = 8;
  CHECK(message_of([&] { plan(18, gdpo::groups_of(3), s); }) ==
        "gdpo::update::plan: groups: given 6 groups; needed: a multiple of 4 groups, such as 4 or "
        "8, for 2 ranks x 1 micro-batch x 8 rows and groups of 3 rows" +
            other);
  s.whole = Whole::InStep;
  CHECK(
      message_of([&] { plan(18, gdpo::groups_of(3), s); }) ==
      "gdpo::update::plan: groups: given groups of 3 rows; needed: a divisor of 16 rows, those of "
      "a mini-batch (ranks x accumulation x micro_batch)");
  s.micro_batch = 1;
  CHECK(message_of([&] { plan(18, gdpo::groups_of(3), s); }) ==
        "gdpo::update::plan: groups: given groups of 3 rows; needed: at most 2 rows, those of a "
        "mini-batch (ranks x accumulation x micro_batch)");
  s.mini_batches = 2, s.accumulation = 2, s.micro_batch = 0;  // groups of 3 rows over 4 parts
  CHECK(message_of([&] { plan(30, gdpo::groups_of(3), s); }) ==
        "gdpo::update::plan: groups: given 10 groups; needed: a multiple of 8 groups, such as 8 or "
        "16, for 2 mini-batches x 2 ranks x 2 micro-batches and groups of 3 rows" +
            other);
  const std::vector<int> ids{1, 1, 2};
  CHECK(
      message_of([&] { plan(3, gdpo::by_id(ids), s); }) ==
      "gdpo::update::plan: groups: given groups of 1 and of 2 rows; needed: groups of one length, "
      "or another Remainder than Refuse");
}

TEST_CASE("update::plan: mistakes in settings and indices", "[update][errors]") {
  const std::string plan_ = "gdpo::update::plan: ";
  const auto with = [](auto change) {
    PlanSettings s;
    change(s);
    return message_of([&] { plan(8, s); });
  };
  CHECK(with([](auto& s) { s.epochs = 0; }) == plan_ + "epochs: given 0; needed: at least 1");
  CHECK(with([](auto& s) { s.ranks = 0; }) == plan_ + "ranks: given 0; needed: at least 1");
  const std::string or_0 = "; needed: at least 0 (0: follows from the others)";
  CHECK(with([](auto& s) { s.mini_batches = -1; }) == plan_ + "mini_batches: given -1" + or_0);
  CHECK(with([](auto& s) { s.accumulation = -2; }) == plan_ + "accumulation: given -2" + or_0);
  CHECK(with([](auto& s) { s.micro_batch = -3; }) == plan_ + "micro_batch: given -3" + or_0);
  CHECK(with([](auto& s) { s.mini_batches = 0, s.micro_batch = 4; }) ==
        plan_ +
            "mini_batches: given 0 with accumulation 0 and micro_batch 4; needed: at least 1, or "
            "both others at least 1, from which it follows");
  CHECK(with([](auto& s) { s.mini_batches = 0, s.accumulation = 4; }) != "no error");
  CHECK(
      with([](auto& s) { s.remainder = static_cast<Remainder>(4); }) ==
      plan_ +
          "remainder: given 4, which is no enumerator; needed: one of refuse, drop, keep, spread");
  CHECK(with([](auto& s) { s.whole = static_cast<Whole>(3); }) ==
        plan_ +
            "whole: given 3, which is no enumerator; needed: one of rows, in_step, in_micro_batch");
  CHECK(with([](auto& s) { s.shuffle = static_cast<Shuffle>(-1); }) ==
        plan_ +
            "shuffle: given -1, which is no enumerator; needed: one of never, once, every_epoch");
  CHECK(with([](auto& s) { s.whole = Whole::InStep; }) ==
        plan_ +
            "whole: given groups that stay whole, but no groups; needed: Whole::Rows, or "
            "plan(rows, groups, settings)");
  CHECK(message_of([] { plan(-1, {}); }) ==
        plan_ + "rows: given -1; needed: a count of at least 0");
  CHECK(message_of([] { plan(PTRDIFF_MAX, {}); }).find(plan_ + "rows: ") == 0);
  CHECK(message_of([] { plan(7, gdpo::groups_of(2), {}); }).find(plan_ + "groups: given 7 rows") ==
        0);
  CHECK(message_of([] { plan(-2, gdpo::groups_of(2), {}); }) ==
        plan_ + "rows: given -2; needed: a count of at least 0");

  PlanSettings s;
  s.epochs = 2, s.ranks = 3, s.accumulation = 2;
  const Plan p = plan(12, s);
  const std::string rows = "gdpo::update::Plan::rows: ";
  for (const index_t step : {-1, 2}) {
    const std::string needed = "; needed: at least 0 and below 2, the number of steps";
    CHECK(message_of([&] { p.rows(step); }) ==
          rows + "step: given " + std::to_string(step) + needed);
    CHECK(message_of([&] { p.rows(step, 0, 0); }) ==
          rows + "step: given " + std::to_string(step) + needed);
    CHECK(message_of([&] { p.dropped(step); }) ==
          "gdpo::update::Plan::dropped: epoch: given " + std::to_string(step) +
              "; needed: at least 0 and below 2, the number of epochs");
  }
  for (const index_t rank : {-1, 3}) {
    CHECK(message_of([&] { p.rows(0, rank, 0); }) ==
          rows + "rank: given " + std::to_string(rank) +
              "; needed: at least 0 and below 3, the number of ranks");
  }
  for (const index_t k : {-1, 2}) {
    CHECK(message_of([&] { p.rows(0, 0, k); }) ==
          rows + "micro_batch: given " + std::to_string(k) +
              "; needed: at least 0 and below 2, the number of micro-batches of a rank");
  }
}

}  // namespace plan_test
