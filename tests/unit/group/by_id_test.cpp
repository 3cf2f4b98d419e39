// labels: sanitizers
// by_id: rows of an id in row order, ids ascending, however the ids are sorted inside.
#include <cstdint>
#include <gdpo/advantages.hpp>
#include <limits>
#include <numeric>
#include <string>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace by_id_test {

namespace {

using gdpo::index_t;

/// What is wrong with `groups` of these ids; empty: nothing.
template <class Id>
std::string fault_of(const gdpo::ById& groups, const std::vector<Id>& ids) {
  std::vector<index_t> order(ids.size()), offsets;
  std::iota(order.begin(), order.end(), index_t{0});
  const auto id = [&](index_t row) { return ids[static_cast<std::size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(), [&](index_t a, index_t b) { return id(a) < id(b); });
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && id(order[i]) == id(order[i - 1])) continue;
    offsets.push_back(static_cast<index_t>(i));
    found.push_back(static_cast<std::int64_t>(id(order[i])));
  }
  offsets.push_back(static_cast<index_t>(ids.size()));
  const auto same = [](const auto& view, const auto& expected) {
    return std::equal(expected.begin(), expected.end(), view.data, view.data + view.extent[0]);
  };
  return !same(groups.order(), order)       ? "the order"
         : !same(groups.offsets(), offsets) ? "the offsets"
         : !same(groups.ids(), found)       ? "the ids"
                                            : "";
}

/// One kind of random ids of `rows` rows.
template <class Id>
std::vector<Id> ids_of(Random& random, int rows, int kind) {
  std::vector<Id> ids(static_cast<std::size_t>(rows));
  for (Id& id : ids) {
    switch (kind) {
      case 0:  // any
        id = static_cast<Id>(random.bits());
        break;
      case 1:  // as many numbers as rows, below and above 0
        id = static_cast<Id>(random.below(rows) - rows / 2);
        break;
      case 2:  // alike in the digits between
        id = static_cast<Id>((random.bits() % 5 << 40) + random.bits() % 7);
        break;
      default:  // the ends
        id = random.chance(0.5) ? std::numeric_limits<Id>::min() : std::numeric_limits<Id>::max();
    }
  }
  if (random.chance(0.2)) std::sort(ids.begin(), ids.end());
  return ids;
}

template <class Id>
void law(std::uint64_t seed) {
  Random random(seed);
  gdpo::ById again = gdpo::by_id(std::vector<Id>{});
  for (int round = 0; round < 60; ++round) {
    const int rows = random.pick({0, 1, 7, 255, 256, 700, 5000}), kind = round % 4;
    const std::vector<Id> ids = ids_of<Id>(random, rows, kind);
    INFO("seed " << seed << ", round " << round << ", " << rows << " rows");
    again.assign(gdpo::View<const Id, 1>(gdpo::view(ids)));
    REQUIRE(fault_of(again, ids) == "");
    REQUIRE(fault_of(gdpo::by_id(ids), ids) == "");
  }
}

}  // namespace

TEST_CASE("rows of an id are in row order, and ids ascend", "[groups]") {
  law<std::int64_t>(1);
  law<std::uint64_t>(2);
  law<std::int32_t>(3);
  law<std::uint32_t>(4);
  law<short>(5);
  law<signed char>(6);
  law<unsigned char>(7);
}

TEST_CASE("a strided column of ids", "[groups]") {
  const std::vector<int> table{5, 0, -3, 0, 5, 0, 1000000, 0, -3, 0};
  const gdpo::View<const int, 1> column{table.data(), {5}, {2}};
  CHECK(fault_of(gdpo::by_id(column), std::vector<int>{5, -3, 5, 1000000, -3}) == "");
}

TEST_CASE("the group that has another size is the one of the lowest id", "[groups]") {
  for (const std::int64_t far : {std::int64_t{7}, std::int64_t{1} << 60}) {
    const std::vector<std::int64_t> ids{far, -4, far, 2, -4, far, 2, 2};
    const std::string text = message_of([&] { gdpo::by_id(ids, 2); });
    CHECK(text.find("3 rows of id 2") != std::string::npos);
  }
}

}  // namespace by_id_test
