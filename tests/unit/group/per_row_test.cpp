// labels: sanitizers
// per_row: from one value per group to one value per row.
#include <cstdint>
#include <gdpo/advantages.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace per_row_test {

namespace {

using gdpo::index_t;
using Vector = std::vector<double>;

}  // namespace

TEST_CASE("the value of each row's group", "[groups]") {
  CHECK(gdpo::per_row(gdpo::groups_of(2), 6, Vector{5, -1, 7}) == Vector{5, 5, -1, -1, 7, 7});
  const std::vector<std::int32_t> offsets{0, 2, 2, 5};  // the second group is empty
  CHECK(gdpo::per_row(gdpo::by_offsets(offsets), 5, Vector{5, -1, 7}) == Vector{5, 5, 7, 7, 7});
  const std::vector<std::int64_t> ids{9, -2, 9, 1LL << 40, -2};  // groups by ascending id
  CHECK(gdpo::per_row(gdpo::by_id(ids), 5, Vector{5, -1, 7}) == Vector{-1, 5, -1, 7, 5});
  CHECK(gdpo::per_row(gdpo::groups_of(3), 0, Vector{}).empty());
  CHECK(gdpo::per_row(gdpo::by_id(std::vector<int>{}), 0, std::vector<float>{}).empty());

  const std::vector<unsigned char> flags{1, 0, 0, 1, 1, 1};  // (3 groups, 2 rewards)
  const gdpo::View<const unsigned char, 1> second{flags.data() + 1, {3}, {2}};
  CHECK(gdpo::per_row(gdpo::groups_of(2), 6, second) ==
        std::vector<unsigned char>{0, 0, 1, 1, 1, 1});
}

TEST_CASE("every row finds its group", "[groups]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const naive::Data d = random_batch(random, 1 + random.below(8), 6, 1, 0);
    Vector values;
    std::map<long long, double> value_of;
    for (const auto& group : d.groups()) value_of[group.first] = random.uniform();
    for (const auto& [id, value] : value_of) values.push_back(value);
    const Vector rows = gdpo::per_row(gdpo::by_id(d.ids), d.rows, values);
    INFO("seed " << seed);
    REQUIRE(rows.size() == d.ids.size());
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == value_of[d.ids[i]]);
  }
}

TEST_CASE("what a report has of groups", "[groups]") {
  const double no = std::nan("");
  // Group 4 has the rewards 1 and 3, group 1 is constant, group 7 has one row, and group 9 has one
  // reward left.
  const Vector rewards{1, 0.1, 3, 0.1, 5, no, 2};
  const std::vector<int> ids{4, 1, 4, 1, 7, 9, 9};
  const auto groups = gdpo::by_id(ids);
  gdpo::GroupReport report;
  gdpo::advantages(gdpo::view(rewards), groups, gdpo::Grpo{}, &report);
  const Vector std = gdpo::per_row(groups, 7, report.group_std);
  const double root = std::sqrt(2.0);
  CHECK(deviation(std, Vector{root, 0, root, 0, 0, no, no}, 4 * tolerance::unit) == "");
  CHECK(gdpo::per_row(groups, 7, report.degenerate) ==
        std::vector<unsigned char>{0, 1, 0, 1, 1, 1, 1});
  // The form in which prepass::DegenerateGroups takes the flags.
  const gdpo::Column column = gdpo::view(report.degenerate);
  CHECK(column.size() == 4);
}

TEST_CASE("mistakes in per_row", "[groups][errors]") {
  const std::vector<int> offsets{0, 2, 6}, ids{1, 2, 1};
  CHECK(message_of([] { gdpo::per_row(gdpo::groups_of(2), 6, Vector(4)); }) ==
        "gdpo::per_row: values: given 4 entries; needed: one for each of the 3 groups");
  CHECK(message_of([&] { gdpo::per_row(gdpo::by_offsets(offsets), 6, Vector(3)); }) ==
        "gdpo::per_row: values: given 3 entries; needed: one for each of the 2 groups");
  CHECK(message_of([&] { gdpo::per_row(gdpo::by_id(ids), 3, Vector(3)); }) ==
        "gdpo::per_row: values: given 3 entries; needed: one for each of the 2 groups");
  CHECK(message_of([&] { gdpo::per_row(gdpo::by_id(ids), 4, Vector(2)); }) ==
        "gdpo::per_row: groups: given 3 ids; needed: one id for each of the 4 rows");
  CHECK(message_of([] {
          gdpo::per_row(gdpo::groups_of(4), 6, Vector(1));
        }).find("gdpo::per_row: groups: given 6 rows") == 0);
  CHECK(message_of([] { gdpo::per_row(gdpo::groups_of(2), -2, Vector{}); }) ==
        "gdpo::per_row: rows: given -2; needed: a count of at least 0");
}

}  // namespace per_row_test
