// labels: sanitizers
// update::pack: the laws of a packing, plain first-fit decreasing as oracle, optimal packings that
// are known, numbers by hand, edges and errors.
#include <gdpo/loss.hpp>
#include <gdpo/update/pack.hpp>
#include <limits>
#include <numeric>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/indices.hpp"
#include "support/message.hpp"

namespace pack_test {

namespace {

using gdpo::index_t;
using gdpo::update::Oversize;
using gdpo::update::pack;
using gdpo::update::Packing;
using Numbers = std::vector<index_t>;

std::vector<Numbers> packs_of(const Packing& packing) {
  std::vector<Numbers> packs;
  for (index_t p = 0; p < packing.packs(); ++p) packs.push_back(list(packing.rows(p)));
  return packs;
}

/// Plain first-fit decreasing: every row looks at every pack. A row above the budget is alone.
std::vector<Numbers> naive_packs(const Numbers& lengths, index_t budget) {
  Numbers order(lengths.size());
  std::iota(order.begin(), order.end(), index_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](index_t a, index_t b) { return lengths[at(a)] > lengths[at(b)]; });
  std::vector<Numbers> packs;
  Numbers tokens;
  for (const index_t row : order) {
    std::size_t p = 0;
    while (p < packs.size() && (tokens[p] > budget || tokens[p] + lengths[at(row)] > budget)) ++p;
    if (p == packs.size()) packs.emplace_back(), tokens.push_back(0);
    packs[p].push_back(row);
    tokens[p] += lengths[at(row)];
  }
  for (Numbers& rows : packs) std::sort(rows.begin(), rows.end());
  return packs;
}

/// All that the members of a packing promise of each other.
void check_laws(const Packing& packing, const Numbers& lengths, index_t budget) {
  const auto rows = static_cast<index_t>(lengths.size());
  const Numbers order = list(packing.order()), inverse = list(packing.inverse()),
                row_offsets = list(packing.row_offsets()), offsets = list(packing.offsets());
  REQUIRE(order.size() == lengths.size());
  REQUIRE(inverse.size() == lengths.size());
  REQUIRE(offsets.size() == lengths.size() + 1);
  REQUIRE(static_cast<index_t>(row_offsets.size()) == packing.packs() + 1);
  CHECK(row_offsets.front() == 0);
  CHECK(row_offsets.back() == rows);
  CHECK(offsets.front() == 0);
  CHECK(offsets.back() == std::accumulate(lengths.begin(), lengths.end(), index_t{0}));
  index_t wrong = 0, filled = 0;
  for (index_t i = 0; i < rows; ++i) {  // so both are permutations
    wrong += order[at(inverse[at(i)])] != i;
    wrong += offsets[at(i) + 1] - offsets[at(i)] != lengths[at(order[at(i)])];
  }
  for (index_t p = 0; p < packing.packs(); ++p) {
    const Numbers in_pack = list(packing.rows(p)), from_0 = list(packing.offsets(p));
    const index_t begin = row_offsets[at(p)], end = row_offsets[at(p) + 1];
    REQUIRE(static_cast<index_t>(in_pack.size()) == end - begin);
    REQUIRE(from_0.size() == in_pack.size() + 1);
    wrong += in_pack.empty() || !std::is_sorted(in_pack.begin(), in_pack.end());
    wrong += from_0.front() != 0 || from_0.back() != packing.tokens(p);
    for (std::size_t k = 0; k < in_pack.size(); ++k) {
      wrong += in_pack[k] != order[at(begin) + k];
      wrong += from_0[k + 1] != offsets[at(begin) + k + 1] - offsets[at(begin)];
    }
    wrong += packing.tokens(p) > budget && in_pack.size() != 1;
    filled += (std::max)(budget, packing.tokens(p));
  }
  CHECK(wrong == 0);
  if (rows == 0) {
    CHECK(packing.waste() == 0);
  } else {  // integers below 2^53: exact but for the quotient
    CHECK(packing.waste() ==
          static_cast<double>(filled - offsets.back()) / static_cast<double>(filled));
  }
}

/// Lengths of one of several kinds: even, many equal ones, mostly short ones, with zeros.
Numbers random_lengths(Random& random, index_t budget) {
  Numbers lengths(at(random.below(300)));
  const int kind = random.below(4), most = static_cast<int>(budget);
  for (index_t& length : lengths) {
    switch (kind) {
      case 0:
        length = 1 + random.below(most);
        break;
      case 1:
        length = most * random.below(5) / 4;
        break;
      case 2:
        length = random.below(1 + most / (1 + random.below(most)));
        break;
      default:
        length = random.below((std::min)(most, 3) + 1);
    }
  }
  return lengths;
}

}  // namespace

TEST_CASE("pack is first-fit decreasing and keeps its laws", "[update]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const index_t budget = random.pick({1, 2, 7, 64, 1000, 16384, 1 << 20});
    Numbers lengths = random_lengths(random, budget);
    const Packing packing = pack(lengths, budget);
    check_laws(packing, lengths, budget);
    CHECK(packs_of(packing) == naive_packs(lengths, budget));
    // With longer rows, up to three times the budget.
    for (index_t& length : lengths) {
      if (random.chance(0.1)) length += budget + random.below(static_cast<int>(budget));
    }
    const Packing longer = pack(lengths, budget, {Oversize::Alone});
    check_laws(longer, lengths, budget);
    CHECK(packs_of(longer) == naive_packs(lengths, budget));
  }
}

TEST_CASE("pack has a place for each pack that its rows can begin", "[update]") {
  // Rows just above a third of the budget, two a pack: ten of 34 make 5 packs of 100, where their
  // tokens alone would fill 4. A place too few is read behind the end, which ASan sees.
  for (const index_t rows : {1, 2, 3, 10, 16, 63, 64, 1000}) {
    INFO(rows << " rows");
    const Numbers lengths(at(rows), index_t{34});
    const Packing packing = pack(lengths, 100);
    CHECK(packing.packs() == (rows + 1) / 2);
    check_laws(packing, lengths, 100);
    CHECK(packs_of(packing) == naive_packs(lengths, 100));
  }
}

TEST_CASE("pack finds room among thousands of packs", "[update]") {
  // So that the search goes down several levels; the naive version takes rows x packs steps.
  Random random(11);
  Numbers lengths(4000);
  for (index_t& length : lengths) length = 400 + random.below(600);
  const Packing packing = pack(lengths, 1000);
  CHECK(packing.packs() > 2048);
  check_laws(packing, lengths, 1000);
  CHECK(packs_of(packing) == naive_packs(lengths, 1000));
}

TEST_CASE("pack needs at most 11/9 of the fewest packs and 6/9", "[update]") {
  // Packs that are cut into rows without a rest: the fewest packs are known.
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int budget = random.pick({10, 60, 1000}), fewest = 1 + random.below(40);
    Numbers lengths;
    for (int p = 0; p < fewest; ++p) {
      for (int rest = budget, cut; rest > 0; rest -= cut)
        lengths.push_back(cut = (std::min)(rest, 1 + random.below(random.pick({budget, 8}))));
    }
    random.shuffle(lengths);
    const index_t packs = pack(lengths, budget).packs();
    CHECK(packs >= fewest);
    CHECK(9 * packs <= 11 * fewest + 6);
  }
  // The family that reaches 11/9 (Johnson 1973): 6 n rows each of 1/2 + e, 1/4 + 2 e and 1/4 + e,
  // and 12 n of 1/4 - 2 e. 9 n packs are full: 6 n times (1/2 + e, 1/4 + e, 1/4 - 2 e), and 3 n
  // times (1/4 + 2 e twice, 1/4 - 2 e twice).
  Numbers worst;
  for (const index_t n : {1, 2, 5}) {
    worst.clear();
    for (const auto& [length, count] :
         {std::pair<index_t, index_t>{51, 6}, {27, 6}, {26, 6}, {23, 12}}) {
      worst.insert(worst.end(), at(count * n), length);
    }
    CHECK(pack(worst, 100).packs() == 11 * n);
  }
}

TEST_CASE("pack depends on the lengths alone, not on the order of rows", "[update]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Numbers lengths = random_lengths(random, 64), first = lengths;
    const auto lengths_in_packs = [](const Packing& packing, const Numbers& of_row) {
      std::vector<Numbers> all = packs_of(packing);
      for (Numbers& rows : all) {
        for (index_t& row : rows) row = of_row[at(row)];
        std::sort(rows.begin(), rows.end());
      }
      return all;
    };
    random.shuffle(lengths);
    CHECK(lengths_in_packs(pack(lengths, 64), lengths) == lengths_in_packs(pack(first, 64), first));
  }
}

TEST_CASE("pack by hand", "[update]") {
  // In the order 7, 6, 5, 3, 2 of rows 2, 4, 0, 1, 3: 7 | 6 | 5; 3 to 7; 2 to 6.
  const Packing packing = pack(std::vector<int>{5, 3, 7, 2, 6}, 10);
  CHECK(packs_of(packing) == std::vector<Numbers>{{1, 2}, {3, 4}, {0}});
  CHECK(list(packing.order()) == Numbers{1, 2, 3, 4, 0});
  CHECK(list(packing.inverse()) == Numbers{4, 0, 1, 2, 3});
  CHECK(list(packing.row_offsets()) == Numbers{0, 2, 4, 5});
  CHECK(list(packing.offsets()) == Numbers{0, 3, 10, 12, 18, 23});
  CHECK(list(packing.offsets(0)) == Numbers{0, 3, 10});
  CHECK(list(packing.offsets(1)) == Numbers{0, 2, 8});
  CHECK(list(packing.offsets(2)) == Numbers{0, 5});
  CHECK(packing.tokens(0) == 10);
  CHECK(packing.tokens(1) == 8);
  CHECK(packing.tokens(2) == 5);
  CHECK(packing.waste() == 7.0 / 30.0);
  // Equal lengths in row order; a shorter row goes back to the first pack.
  CHECK(packs_of(pack(Numbers{4, 4, 4, 4, 4, 1}, 9)) ==
        std::vector<Numbers>{{0, 1, 5}, {2, 3}, {4}});
  // Rows longer than the budget come first, the longest first, and nothing joins them, not even
  // rows without tokens. Their packs have no padding.
  const Packing alone = pack(Numbers{0, 12, 6, 12, 14, 0}, 10, {Oversize::Alone});
  CHECK(packs_of(alone) == std::vector<Numbers>{{4}, {1}, {3}, {0, 2, 5}});
  CHECK(alone.waste() == 4.0 / 48.0);
}

TEST_CASE("pack of nothing, of one row and of rows without tokens", "[update]") {
  const Packing none = pack(Numbers{}, 10);
  CHECK(none.packs() == 0);
  check_laws(none, {}, 10);
  check_laws(pack(gdpo::View<const int, 1>{}, 1), {}, 1);
  CHECK(packs_of(pack(Numbers{10}, 10)) == std::vector<Numbers>{{0}});
  CHECK(pack(Numbers{10}, 10).waste() == 0);
  CHECK(pack(Numbers{1}, 4).waste() == 0.75);
  const Packing zeros = pack(Numbers{0, 0, 0}, 1);
  CHECK(packs_of(zeros) == std::vector<Numbers>{{0, 1, 2}});
  CHECK(zeros.waste() == 1);
  check_laws(zeros, {0, 0, 0}, 1);
  CHECK(packs_of(pack(Numbers{11}, 10, {Oversize::Alone})) == std::vector<Numbers>{{0}});
  CHECK(pack(Numbers{11}, 10, {Oversize::Alone}).waste() == 0);
  // Every row fills its pack.
  CHECK(packs_of(pack(Numbers{3, 3, 3}, 3)) == std::vector<Numbers>{{0}, {1}, {2}});
  // A budget above all tokens, up to the largest one: a single pack.
  const index_t unbounded = (std::numeric_limits<index_t>::max)();
  CHECK(packs_of(pack(Numbers{5, 0, 9}, unbounded)) == std::vector<Numbers>{{0, 1, 2}});
  const index_t many = index_t{1} << 53;
  CHECK(pack(Numbers{many / 2, many / 2}, many).packs() == 1);
  CHECK(pack(Numbers{many / 2, many / 2}, many - 1).packs() == 2);
}

TEST_CASE("pack reads lengths of every integer type and stride", "[update]") {
  const Numbers lengths{5, 3, 7, 2, 6};
  const auto want = packs_of(pack(lengths, 10));
  const auto same = [&](auto type) {
    std::vector<decltype(type)> typed;
    for (const index_t length : lengths) typed.push_back(static_cast<decltype(type)>(length));
    CHECK(packs_of(pack(typed, 10)) == want);
    CHECK(packs_of(pack(gdpo::view(typed), 10)) == want);
    // Backwards, every second element.
    std::vector<decltype(type)> spread(2 * typed.size(), 99);
    for (std::size_t i = 0; i < typed.size(); ++i) spread[spread.size() - 1 - 2 * i] = typed[i];
    CHECK(packs_of(pack(gdpo::view(spread.data() + 9, {5}, {-2}), 10)) == want);
  };
  same(std::uint8_t{}), same(std::int8_t{}), same(std::int32_t{}), same(std::uint32_t{});
  same(std::int64_t{}), same(std::uint64_t{});
  CHECK(pack(std::vector<std::uint8_t>{200, 200, 255}, 400).packs() == 2);
}

TEST_CASE("pack gives the offsets of packed batches, whose losses add up to the whole",
          "[update]") {
  const Numbers lengths{5, 3, 7, 2, 6};
  const Packing packing = pack(lengths, 10);
  // Log-probs and advantages that differ from row to row and from token to token.
  std::vector<double> logp, old_logp, advantages;
  const auto batch_of = [&](gdpo::View<const index_t, 1> rows,
                            gdpo::View<const index_t, 1> offsets) {
    logp.clear(), old_logp.clear(), advantages.clear();
    for (index_t k = 0; k < rows.extent[0]; ++k) {
      const double row = static_cast<double>(rows(k));
      advantages.push_back(row - 1.5);
      for (index_t t = 0; t < lengths[at(rows(k))]; ++t) {
        old_logp.push_back(-row);
        logp.push_back(-row - static_cast<double>(t) / 16);
      }
    }
    gdpo::TokenBatch<double> batch;
    batch.logp = gdpo::view(logp);
    batch.old_logp = gdpo::view(old_logp);
    batch.advantages = gdpo::view(advantages);
    batch.offsets = offsets;
    return batch;
  };
  const auto loss_of = [&](const gdpo::TokenBatch<double>& batch, const gdpo::Normalizer& counts) {
    std::vector<double> gradient(logp.size());
    return gdpo::dapo_loss(batch, counts, gdpo::view(gradient)).loss;
  };
  const auto all = batch_of(packing.order(), packing.offsets());
  const gdpo::Normalizer counts = gdpo::count(all);
  CHECK(counts.tokens == 23);
  CHECK(counts.rows == 5);
  const double whole = loss_of(all, counts);
  gdpo::Normalizer sum;
  double packs = 0;
  for (index_t p = 0; p < packing.packs(); ++p) {
    const auto batch = batch_of(packing.rows(p), packing.offsets(p));
    sum += gdpo::count(batch);
    packs += loss_of(batch, counts);
  }
  CHECK(sum.tokens == counts.tokens);
  CHECK(sum.rows == counts.rows);
  // 23 terms below 2.5 / 23 each, in two orders of summation: some dozen roundings of 2^-53.
  CHECK(std::abs(packs - whole) <= 1e-14);
  CHECK(std::abs(whole) > 0.1);
}

TEST_CASE("pack refuses what it cannot pack", "[update]") {
  const Numbers lengths{3, 11, 12};
  CHECK(message_of([&] { pack(lengths, 0); }) ==
        "gdpo::update::pack: budget: given 0; needed: a number of tokens of at least 1");
  CHECK(message_of([&] { pack(lengths, -5); }) ==
        "gdpo::update::pack: budget: given -5; needed: a number of tokens of at least 1");
  CHECK(message_of([&] { pack(lengths, 10); }) ==
        "gdpo::update::pack: lengths: given the length 11 for row 1 and a budget of 10; needed: "
        "rows that are not longer than the budget, or Oversize::Alone");
  CHECK(message_of([&] { pack(lengths, 12); }) == "no error");
  CHECK(message_of([] {
          pack(std::vector<std::int8_t>{1, 0, -3, -4}, 10);
        }) ==
        "gdpo::update::pack: lengths: given the length -3 for row 2; needed: lengths of at least "
        "0");
  CHECK(message_of([&] { pack(lengths, 10, {static_cast<Oversize>(7)}); }) ==
        "gdpo::update::pack: oversize: given 7, which is no enumerator; needed: one of "
        "refuse, alone");
  CHECK(message_of([] {
          pack(gdpo::View<const int, 1>{nullptr, {2}, {1}}, 10);
        }) == "gdpo::update::pack: lengths: given a null pointer; needed: (2) elements");
  CHECK(message_of([] {
          pack(gdpo::View<const int, 1>{nullptr, {-2}, {1}}, 10);
        }) == "gdpo::update::pack: lengths: given (-2); needed: extents of at least 0");
  // 2^53 tokens, then one more; and a length that no signed integer holds.
  const index_t many = index_t{1} << 53;
  CHECK(message_of([&] {
          pack(Numbers{many - 1, 1, 0, 1}, 10);
        }) ==
        "gdpo::update::pack: lengths: given the length 1 for row 3 after 9007199254740992 tokens; "
        "needed: at most 2^53 tokens in all");
  CHECK(message_of([] {
          pack(std::vector<std::uint64_t>{(std::numeric_limits<std::uint64_t>::max)()}, 10);
        }) ==
        "gdpo::update::pack: lengths: given the length 18446744073709551615 for row 0 after 0 "
        "tokens; needed: at most 2^53 tokens in all");
}

TEST_CASE("pack: a Packing refuses packs that are not there", "[update]") {
  const Packing packing = pack(Numbers{3, 8}, 10);
  CHECK(message_of([&] { packing.rows(2); }) ==
        "gdpo::update::Packing::rows: pack: given 2; needed: at least 0 and below 2");
  CHECK(message_of([&] { packing.offsets(-1); }) ==
        "gdpo::update::Packing::offsets: pack: given -1; needed: at least 0 and below 2");
  CHECK(message_of([&] { packing.tokens(2); }) ==
        "gdpo::update::Packing::tokens: pack: given 2; needed: at least 0 and below 2");
}

}  // namespace pack_test
