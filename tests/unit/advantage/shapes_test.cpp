// labels: none
// Edge cases of shapes: no rows, no rewards, groups of one, one group, empty groups; the groupings
// themselves; and tokens.
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/product.hpp"
#include "support/tolerance.hpp"

namespace shapes_test {

namespace {

using Vector = std::vector<double>;

template <class Grouping>
std::vector<std::vector<gdpo::index_t>> members(const Grouping& groups, gdpo::index_t rows) {
  std::vector<std::vector<gdpo::index_t>> all;
  groups.check("test", rows);
  for (gdpo::index_t g = 0; g < groups.count(rows); ++g) {
    all.emplace_back();
    for (gdpo::index_t k = 0; k < groups.length(g); ++k) all.back().push_back(groups.row(g, k));
  }
  return all;
}
using Members = std::vector<std::vector<gdpo::index_t>>;

}  // namespace

TEST_CASE("who belongs together", "[groups]") {
  CHECK(members(gdpo::groups_of(2), 4) == Members{{0, 1}, {2, 3}});
  CHECK(members(gdpo::groups_of(7), 0) == Members{});
  const std::vector<std::int32_t> offsets{0, 2, 2, 5};
  const std::vector<std::uint64_t> wide{0, 2, 2, 5};
  CHECK(members(gdpo::by_offsets(offsets), 5) == Members{{0, 1}, {}, {2, 3, 4}});
  CHECK(members(gdpo::by_offsets(wide), 5) == Members{{0, 1}, {}, {2, 3, 4}});
  CHECK(members(gdpo::by_offsets(gdpo::view(offsets.data(), 1)), 0) == Members{});
  const std::vector<std::int64_t> ids{9, -2, 9, 1LL << 40, -2, 9};
  // Groups by ascending id, rows of a group in their order.
  CHECK(members(gdpo::by_id(ids), 6) == Members{{1, 4}, {0, 2, 5}, {3}});
  const std::vector<std::uint64_t> large{~0ull, 0, ~0ull};
  CHECK(members(gdpo::by_id(large), 3) == Members{{1}, {0, 2}});
  const std::vector<std::uint8_t> narrow{255, 0};
  CHECK(members(gdpo::by_id(narrow), 2) == Members{{1}, {0}});
  CHECK(members(gdpo::by_id(std::vector<int>{}), 0) == Members{});
  CHECK(members(gdpo::by_id(std::vector<int>{4, 4, 1, 1}, 2), 4) == Members{{2, 3}, {0, 1}});
  std::vector<int> strided{1, 0, 2, 0, 1, 0};
  CHECK(members(gdpo::by_id(gdpo::View<int, 1>{strided.data(), {3}, {2}}), 3) ==
        Members{{0, 2}, {1}});
}

TEST_CASE("no rows, no rewards, groups of one", "[shapes]") {
  naive::Data none;
  none.reward_count = 2;
  naive::Data no_rewards = none;
  no_rewards.reward_count = 0;
  no_rewards.rows = 4;
  no_rewards.ids = {1, 1, 2, 2};
  no_rewards.tokens = {1, 2, 3, 4};
  naive::Data ones;
  ones.reward_count = 1;
  ones.rows = 3;
  ones.ids = {1, 2, 3};
  ones.rewards = {5, 0.1, -2};
  ones.tokens = {1, 2, 3};
  const double placeholder = 0;  // a view without entries is a column only if it is not null
  for (const product::Preset& preset : product::presets()) {
    INFO(preset.name);
    if (preset.settings.renorm != naive::Renorm::Tokens) {
      none.tokens.clear();
      CHECK(product::advantages(preset.settings, none).advantages.empty());
    } else {
      gdpo::RewardBatch batch{gdpo::view(&placeholder, 0, 2), gdpo::groups_of(3)};
      batch.tokens = gdpo::view(&placeholder, 0);
      CHECK(gdpo::advantages(gdpo::seq, batch, gdpo::verl::gdpo).empty());
    }
    // A baseline that is shifted leaves its shift to sums of nothing.
    if (preset.settings.shift == 0)
      CHECK(all_zero(product::advantages(preset.settings, no_rewards).advantages));
    const Vector alone = product::advantages(preset.settings, ones).sums;
    if (!naive::detail::compares(preset.settings.baseline)) continue;
    if (preset.settings.singleton == naive::Singleton::Zero) CHECK(all_zero(alone));
    if (preset.settings.singleton == naive::Singleton::Nan)
      CHECK((std::isnan(alone[0]) && std::isnan(alone[1]) && std::isnan(alone[2])));
    if (preset.settings.singleton == naive::Singleton::Raw &&
        preset.settings.scale != naive::Scale::Batch) {
      const double scale = preset.settings.scale == naive::Scale::Group ||
                                   preset.settings.scale == naive::Scale::GroupOthers
                               ? 1 / (1 + preset.settings.scale_spread.eps)
                               : 1;
      CHECK(deviation(alone, Vector{5 * scale, 0.1 * scale, -2 * scale}, 8 * tolerance::formula) ==
            "");
    }
  }
}

TEST_CASE("empty groups among others change nothing", "[shapes]") {
  const Vector rewards{1, 0, 0.5, 2, 0, 0, 1, 1};
  const std::vector<int> plain{0, 2, 4}, with_empty{0, 0, 2, 2, 2, 4, 4};
  for (const bool report : {false, true}) {
    gdpo::GroupReport a, b;
    const Vector x = gdpo::advantages(gdpo::view(rewards.data(), 4, 2), gdpo::by_offsets(plain),
                                      gdpo::Gdpo{}, report ? &a : nullptr);
    CHECK(difference(
              x, gdpo::advantages(gdpo::view(rewards.data(), 4, 2), gdpo::by_offsets(with_empty),
                                  gdpo::Gdpo{}, report ? &b : nullptr)) == "");
    if (report) {
      CHECK(b.groups == 6);
      CHECK(b.smallest_group == 0);
      CHECK(!b.one_group);
    }
  }
}

TEST_CASE("an infinite reward spoils its own group and no other before the renormalization",
          "[shapes]") {
  naive::Data d;
  d.rows = 6;
  d.reward_count = 1;
  d.ids = {1, 1, 1, 2, 2, 2};
  d.rewards = {std::numeric_limits<double>::infinity(), 1, 2, 0, 1, 5};
  for (const char* name : {"gdpo", "grpo", "dr_grpo", "rloo"}) {
    const naive::Settings e = std::visit([](const auto& x) { return product::settings_of(x); },
                                         gdpo::runtime::estimator(name));
    gdpo::GroupReport report;
    const Vector sums = product::advantages(e, d, &report).sums;
    INFO(name);
    CHECK(report.infinite_rewards == 1);
    CHECK(std::isnan(sums[0]));
    for (std::size_t i = 1; i < 3; ++i) CHECK_FALSE(std::isfinite(sums[i]));
    for (std::size_t i = 3; i < 6; ++i) CHECK(std::isfinite(sums[i]));
  }
}

TEST_CASE("a row's advantage goes to its valid tokens, 0 to the others", "[tokens]") {
  const std::vector<float> advantages{0.5f, std::nanf(""), -2};
  const std::vector<std::uint8_t> mask{1, 0, 1, 0, 0, 0, 1, 1, 1};
  std::vector<double> out(9, 42.0);
  gdpo::broadcast_into(gdpo::view(advantages), gdpo::view(mask.data(), 3, 3),
                       gdpo::view(out.data(), 3, 3));
  // Tokens are selected, not multiplied by the mask: the NaN does not spread.
  CHECK(difference(out, Vector{0.5, 0, 0.5, 0, 0, 0, -2, -2, -2}) == "");
  std::vector<float> narrow(9, 42.f);
  const std::vector<float> weights{0.f, -0.f, 3.f};
  gdpo::broadcast_into(gdpo::view(advantages.data(), 1), gdpo::view(weights.data(), 1, 3),
                       gdpo::view(narrow.data(), 1, 3));
  CHECK(difference(std::vector<float>(narrow.begin(), narrow.begin() + 4),
                   std::vector<float>{0, 0, 0.5f, 42}) == "");
  gdpo::broadcast_into(gdpo::view(advantages.data(), 0), gdpo::view(mask.data(), 0, 3),
                       gdpo::view(out.data(), 0, 3));
  CHECK(out[0] == 0.5);
}

}  // namespace shapes_test
