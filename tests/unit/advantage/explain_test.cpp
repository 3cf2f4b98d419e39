// labels: sanitizers
// gdpo::explain: its table for a terminal, what it says of special groups, and errors.
#include <cmath>
#include <gdpo/advantage/explain.hpp>
#include <gdpo/advantages.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace explain_test {

namespace {

const float none = NAN;
const std::vector<float> rewards = {1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, none, 0, 0, 1, 1};
gdpo::View<const float, 2> table() { return gdpo::view(rewards.data(), 8, 2); }
const gdpo::GroupsOf fours = gdpo::groups_of(4);

gdpo::Gdpo gated() {
  gdpo::Gdpo e;
  e.weights = {1, 0.5};
  e.gates = {{1, 0, 1.0}};
  return e;
}
bool says(const gdpo::Explanation& e, const std::string& words) {
  for (const std::string& note : e.notes)
    if (note.find(words) != std::string::npos) return true;
  return false;
}
template <class Estimator>
gdpo::Explanation explain(const std::vector<double>& values, const Estimator& e) {
  return gdpo::explain(gdpo::view(values), gdpo::groups_of(static_cast<int>(values.size())), e, 0);
}

}  // namespace

TEST_CASE("the table of a group with a gate and two rewards", "[explain]") {
  CHECK("\n" + gdpo::explain(table(), fours, gated(), 0).to_text({"correct", "short"}, "gdpo") ==
        R"(
gdpo
group 0 of 2: 4 members, 2 rewards
  gate          r1 is 0 where r0 < 1
  missing       NaN: skip, row without rewards: exclude, infinity: propagate, unused row: compare
  baseline      b = the mean of the group
  scale         m = 1 / S; S = the std of the group [ddof=1]
  standardized  z = (x - b) m
  combined      s = z0 + 0.5 z1
  renorm        a = s m over the batch, whose mean is 0; m = 1 / S [ddof=1]

correct (r0), weight 1
  n = 4, mean = 0.5000, std = 0.5774, b = 0.5000, S = 0.5774, m = 1.7321
      row       x        z      w z
        0  1.0000   0.8660   0.8660
        1  1.0000   0.8660   0.8660
        2  0.0000  -0.8660  -0.8660
        3  0.0000  -0.8660  -0.8660

short (r1), weight 0.5
  n = 4, mean = 0.2500, std = 0.5000, b = 0.2500, S = 0.5000, m = 2.0000
      row   short   gated       x        z      w z
        0  1.0000  1.0000  1.0000   1.5000   0.7500
        1  0.0000  0.0000  0.0000  -0.5000  -0.2500
        2  1.0000  0.0000  0.0000  -0.5000  -0.2500  gated
        3  0.0000  0.0000  0.0000  -0.5000  -0.2500

advantage
  n = 8, mean = 0.0000, S = 1.2701, m = 0.7874
      row  correct    short        s        a
        0   0.8660   0.7500   1.6160   1.2724
        1   0.8660  -0.2500   0.6160   0.4850
        2  -0.8660  -0.2500  -1.1160  -0.8787
        3  -0.8660  -0.2500  -1.1160  -0.8787

  ! row 2: short is gated: it counts as 0
)");
}

TEST_CASE("the table of weighted sums, each compared with the others", "[explain]") {
  gdpo::Rloo e;
  e.weights = {1, 0.25};
  CHECK("\n" + gdpo::explain(table(), fours, e, 1).to_text() == R"(
group 1 of 2: 4 members, 2 rewards
  missing       NaN: skip, row without rewards: exclude, infinity: propagate, unused row: compare
  sum           x = r0 + 0.25 r1
  baseline      b = the mean of the other members
  scale         m = 1
  standardized  z = (x - b) m
  combined      s = z

weighted sum
  n = 4, mean = 0.8750, std = 0.5951, m = 1.0000
      row  reward 0  reward 1       x       b        z
        4    1.0000    1.0000  1.2500  0.7500   0.5000
        5    1.0000         -  1.0000  0.8333   0.1667  reward 1 missing
        6    0.0000    0.0000  0.0000  1.1667  -1.1667
        7    1.0000    1.0000  1.2500  0.7500   0.5000

advantage
      row        s        a
        4   0.5000   0.5000
        5   0.1667   0.1667
        6  -1.1667  -1.1667
        7   0.5000   0.5000

  ! row 5: reward 1 is missing (missing.entry is skip)
)");
}

TEST_CASE("an explanation has the numbers as data", "[explain]") {
  const gdpo::Explanation e = gdpo::explain(table(), fours, gated(), 0);
  CHECK(e.rows == std::vector<gdpo::index_t>{0, 1, 2, 3});
  CHECK(e.rewards == std::vector<double>{1, 1, 1, 0, 0, 1, 0, 0});
  CHECK(e.gated == std::vector<double>{1, 1, 1, 0, 0, 0, 0, 0});
  REQUIRE(e.columns.size() == 2);
  CHECK(e.columns[1].reward == 1);
  CHECK(e.columns[1].weight == 0.5);
  CHECK(e.columns[1].baseline == std::vector<double>(4, 0.25));
  CHECK(e.columns[1].spread == std::vector<double>(4, 0.5));
  CHECK(e.columns[1].multiplier == std::vector<double>(4, 2.0));
  CHECK(e.columns[1].standardized == std::vector<double>{1.5, -0.5, -0.5, -0.5});
  CHECK(e.columns[1].weighted == std::vector<double>{0.75, -0.25, -0.25, -0.25});
  CHECK(e.over == gdpo::RenormOver::Batch);
  CHECK(e.renorm_n == 8);
  CHECK(e.renorm_mean == 0);
  // z of reward 0: +-sqrt(3)/2 and 1/2, 1/2, -3/2, 1/2; the terms as in the two tables above.
  CHECK(std::abs(e.renorm.multiplier * e.renorm_std - 1) <= tolerance::formula);
  CHECK(e.advantage[3] == static_cast<double>(gdpo::advantages(table(), fours, gated())[3]));
}

TEST_CASE("a scale keeps the spread and its eps apart", "[explain]") {
  gdpo::Grpo e;
  e.scale.eps = 0.25;
  const gdpo::Explanation explained = explain({1, 3, 1, 3}, e);
  const double std = std::sqrt(4 / 3.0);
  CHECK(std::abs(explained.columns[0].spread[0] - std) <= tolerance::formula);
  CHECK(std::abs(explained.columns[0].multiplier[0] - 1 / (std + 0.25)) <= tolerance::formula);
  CHECK(std::isnan(explain({1, 3, 1, 3}, gdpo::DrGrpo{}).columns[0].spread[0]));
  // Bounds of the advantages come last.
  gdpo::DrGrpo bounded;
  bounded.clip = {-0.5, 2};
  const gdpo::Explanation clipped = explain({1, 3, 1, 3}, bounded);
  CHECK(clipped.sum == std::vector<double>{-1, 1, -1, 1});
  CHECK(clipped.advantage == std::vector<double>{-0.5, 1, -0.5, 1});
}

TEST_CASE("an explanation says what is special in a group", "[explain]") {
  CHECK(says(explain({2, 2, 2}, gdpo::Grpo{}), "all values are equal, every term is 0"));
  CHECK(says(explain({2, 2, 2}, gdpo::Grpo{}), "the group is degenerate"));
  CHECK(says(explain({2}, gdpo::Grpo{}), "one value counts (singleton is zero)"));
  CHECK(says(explain({2, INFINITY, 1}, gdpo::Grpo{}), "row 1: reward 0 is infinite"));
  CHECK(says(explain({2, INFINITY, 1}, gdpo::Grpo{}), "its statistics are unknown"));
  CHECK(std::isnan(explain({2, INFINITY, 1}, gdpo::Gdpo{}).renorm_mean));
  CHECK(says(explain({2, NAN, 1}, gdpo::Grpo{}), "row 1: excluded"));
  CHECK(says(explain({2, 0, 1}, gdpo::Gdpo{}), "the batch has this group only"));
  CHECK(explain({2, 0, 1}, gdpo::Grpo{}).notes.empty());
  // An advantage that is NaN is no gap in the table.
  CHECK(explain({2, INFINITY, 1}, gdpo::Grpo{}).to_text().find("nan") != std::string::npos);
  // One value is no special case where it is compared with no group.
  CHECK(!says(explain({2}, gdpo::RawReward{}), "singleton"));

  // Two rewards that undo each other in every row.
  const std::vector<double> opposite = {1, 0, 0, 1, 1, 0};
  const auto canceled =
      gdpo::explain(gdpo::view(opposite.data(), 3, 2), gdpo::groups_of(3), gdpo::Gdpo{}, 0);
  CHECK(says(canceled, "the rewards cancel each other"));
  CHECK(canceled.equal);

  // Unused rows, of which one is in a group with no other row.
  const std::vector<double> values = {1, 0, 1, 5}, valid = {1, 1, 0, 0};
  const std::vector<int> ids = {0, 0, 0, 7};
  gdpo::RewardBatch batch{gdpo::view(values), gdpo::by_id(ids)};
  batch.valid = gdpo::view(valid);
  const auto first = gdpo::explain(batch, gdpo::Grpo{}, 0),
             alone = gdpo::explain(batch, gdpo::Grpo{}, 1);
  CHECK(says(first, "row 2: unused"));
  CHECK(first.advantage[2] == first.advantage[0]);
  CHECK(first.columns[0].n == 2);
  CHECK(alone.rows == std::vector<gdpo::index_t>{3});
  CHECK(says(alone, "no value counts"));
  CHECK(alone.columns[0].baseline[0] == 5);
  CHECK(alone.advantage[0] == 0);
}

TEST_CASE("a policy of one's own is explained without a phrase", "[explain]") {
  struct Half {
    double operator()(const gdpo::BaselineArgs& a) const { return 0.5 * a.value; }
    bool reads_batch() const { return false; }
  };
  gdpo::GroupAdvantage<Half, gdpo::scale::None, gdpo::combine::SumThenNormalize> e;
  const gdpo::Explanation explained = explain({4, 8}, e);
  CHECK(explained.columns[0].baseline == std::vector<double>{2, 4});
  CHECK(explained.advantage == std::vector<double>{2, 4});
  CHECK(explained.to_text().find("b = that of the estimator") != std::string::npos);
}

TEST_CASE("explain refuses what advantages refuse, and a group that there is not", "[explain]") {
  const auto message = [](const auto& e, gdpo::index_t group) {
    return message_of([&] { gdpo::explain(table(), fours, e, group); });
  };
  CHECK(message(gdpo::Gdpo{}, 2) == "gdpo::explain: group: given 2; needed: 0 to 1");
  CHECK(message(gdpo::Gdpo{}, -1) == "gdpo::explain: group: given -1; needed: 0 to 1");
  gdpo::Gdpo e;
  e.weights = {1};
  CHECK(message(e, 0) ==
        "gdpo::explain: weights: given 1 weights; needed: one for each of the 2 rewards, or none");
  e = {};
  e.missing.entry = gdpo::MissingEntry::Reject;
  CHECK(message(e, 0) ==
        "gdpo::explain: rewards: given NaN in row 5, reward 1; needed: a number, "
        "because missing.entry is Reject");
  const std::vector<double> nothing;
  CHECK(message_of([&] {
          gdpo::explain(gdpo::view(nothing.data(), 0, 1), gdpo::groups_of(4), gdpo::Gdpo{}, 0);
        }) == "gdpo::explain: group: given 0; needed: a batch with groups");
  CHECK(
      message_of([&] { gdpo::explain(table(), fours, gdpo::Gdpo{}, 0).to_text({"one"}); }) ==
      "gdpo::Explanation::to_text: names: given 1 names; needed: 2, one for each reward, or none");
}

}  // namespace explain_test
