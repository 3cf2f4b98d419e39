// labels: sanitizers
// shape_rewards: the rules at their break points, against the formulas of the trainers, and the
// laws of their application.
#include <cmath>
#include <cstdint>
#include <gdpo/advantages.hpp>
#include <gdpo/update/shape_rewards.hpp>
#include <limits>
#include <memory>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace shape_rewards_test {

namespace {

namespace shaping = gdpo::update::shaping;
using gdpo::Column;
using gdpo::index_t;
using gdpo::update::shape_rewards;
using gdpo::update::ShapedRewards;
using Vector = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();
const double missing = std::nan("");
constexpr std::uint64_t rounds = few_rounds ? 40 : 200;

/// One reward of a completion of this length, after the rules.
template <class... Rules>
double one(double reward, double tokens, const Rules&... rules) {
  shape_rewards(gdpo::view(&reward, 1), gdpo::view(&tokens, 1), rules...);
  return reward;
}
/// The same rewards after the rules.
template <class... Rules>
Vector shaped(Vector rewards, const Vector& lengths, const Rules&... rules) {
  shape_rewards(gdpo::view(rewards), gdpo::view(lengths), rules...);
  return rewards;
}
/// A rule of a user.
struct Square {
  double operator()(const shaping::Args& a) const { return a.reward * a.reward; }
};
/// A rule that returns its number, and one that reads the length without saying so.
struct Constant {
  double value;
  double operator()(const shaping::Args&) const { return value; }
};
struct Undeclared {
  double operator()(const shaping::Args& a) const { return a.tokens; }
};
struct Declared : Undeclared {
  static constexpr bool reads_tokens = true;
};
Vector random_rewards(Random& random, int n, double nan = 0.2) {
  Vector x;
  for (int i = 0; i < n; ++i)
    x.push_back(random.chance(nan) ? missing : random_reward(random, random.below(4)));
  return x;
}
Vector random_lengths(Random& random, int n) {
  Vector x;
  for (int i = 0; i < n; ++i) x.push_back(random.below(200));
  return x;
}

}  // namespace

TEST_CASE("shape_rewards: clip and affine", "[update]") {
  CHECK(one(3, 0, shaping::Clip{-1, 1}) == 1);
  CHECK(one(-3, 0, shaping::Clip{-1, 1}) == -1);
  CHECK(one(1, 0, shaping::Clip{-1, 1}) == 1);
  CHECK(one(0.5, 0, shaping::Clip{-1, 1}) == 0.5);
  CHECK(one(0.5, 0, shaping::Clip{2, 2}) == 2);
  CHECK(one(-1e300, 0, shaping::Clip{}) == -1e300);
  CHECK(one(infinity, 0, shaping::Clip{}) == infinity);
  CHECK(one(infinity, 0, shaping::Clip{-1, 1}) == 1);
  CHECK(one(-infinity, 0, shaping::Clip{-1, 1}) == -1);
  CHECK(one(3, 0, shaping::Affine{0.5, -2}) == -0.5);
  CHECK(one(0.1, 0, shaping::Affine{}) == 0.1);
  CHECK(one(0.1, 0, shaping::Affine{0, 7}) == 7);
}

TEST_CASE("shape_rewards: DAPO's soft overlong punishment", "[update]") {
  // The numbers of the paper: L_max = 20480, L_cache = 4096 (arXiv 2503.14476, section 3.4).
  const shaping::SoftOverlong paper{20480, 4096};
  CHECK(one(1, 0, paper) == 1);
  CHECK(one(1, 16384, paper) == 1);
  CHECK(one(1, 16385, paper) == 1 - 1.0 / 4096);
  CHECK(one(1, 18432, paper) == 0.5);
  CHECK(one(1, 20479, paper) == 1.0 / 4096);
  CHECK(one(1, 20480, paper) == 0);
  CHECK(one(1, 20481, paper) == 0);
  CHECK(one(-1, 100000, paper) == -2);
  // Without the clamp the line goes on (verl, ms-swift, NeMo-RL).
  const shaping::SoftOverlong line{20480, 4096, 1, false};
  CHECK(one(1, 16384, line) == 1);
  CHECK(one(1, 18432, line) == 0.5);
  CHECK(one(1, 20480, line) == 0);
  CHECK(one(1, 24576, line) == -1);
  // Another price.
  CHECK(one(1, 20480, shaping::SoftOverlong{20480, 4096, 0.25}) == 0.75);
  CHECK(one(1, 30000, shaping::SoftOverlong{20480, 4096, 0.25}) == 0.75);
  CHECK(one(1, 30000, shaping::SoftOverlong{20480, 4096, 0}) == 1);
  // The buffer may begin at 0.
  CHECK(one(0, 4, shaping::SoftOverlong{16, 16}) == -0.25);
  // As a reward of its own, as in TRL: the formulas, piece by piece.
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const double most = 1 + random.below(1000), buffer = most * (1 - random.uniform()),
                 tokens = random.below(1500), factor = 2 * random.uniform();
    const double expected = most - buffer;  // the length without punishment
    const double trl = tokens <= expected ? 0.0
                       : tokens <= most   ? (expected - tokens) / buffer
                                          : -1.0,
                 verl = std::fmin(-(tokens - expected) / buffer * factor, 0.0);
    CHECK(one(0, tokens, shaping::SoftOverlong{most, buffer}) == Approx(trl).margin(1e-12));
    CHECK(one(0, tokens, shaping::SoftOverlong{most, buffer, factor, false}) == verl);
  }
}

TEST_CASE("shape_rewards: length rewards", "[update]") {
  CHECK(one(1, 1000, shaping::LengthTarget{1000, 0.25}) == 1);
  CHECK(one(1, 1004, shaping::LengthTarget{1000, 0.25}) == 0);
  CHECK(one(1, 996, shaping::LengthTarget{1000, 0.25}) == 0);
  CHECK(one(0, 1001, shaping::LengthTarget{1000, 0.25}) == -0.25);
  CHECK(one(1, 2000, shaping::LengthTarget{1000}) == Approx(0.7));  // alpha 0.0003

  const shaping::LengthLimit limit{1000, 1.0 / 1024};
  CHECK(one(1, 1000, limit) == 0.5);
  CHECK(one(1, 1256, limit) == 0.25);
  CHECK(one(1, 1512, limit) == 0);
  CHECK(one(1, 5000, limit) == 0);
  CHECK(one(1, 744, limit) == 0.75);
  CHECK(one(1, 488, limit) == 1);
  CHECK(one(1, 0, limit) == 1);
  CHECK(one(0, 0, limit) == 0);
  CHECK(one(4, 1256, limit) == 1);
  CHECK(one(1, 1000, shaping::LengthLimit{1000, 0.5, 0}) == 0);
  CHECK(one(1, 1000, shaping::LengthLimit{1000, 0.5, 1}) == 1);

  for (const double reward : {-5.0, 0.0, 0.3, infinity}) {
    CHECK(one(reward, 4000, shaping::LengthAtMost{4000}) == 1);
    CHECK(one(reward, 4001, shaping::LengthAtMost{4000}) == 0);
    CHECK(one(reward, 0, shaping::LengthAtMost{0}) == 1);
  }
}

TEST_CASE("shape_rewards: GDPO's conditioned length reward", "[update]") {
  // Rewards: correctness and length, of which the second counts only where the first is 1 (GDPO
  // paper, eq. 8): a column of anything becomes the length reward, and a Gate its condition.
  Vector rewards{1, 9, 1, 9, 0, 9, 0, 9};
  const std::vector<int> lengths{100, 5000, 100, 5000};
  const ShapedRewards report = shape_rewards(gdpo::column(gdpo::view(rewards.data(), 4, 2), 1),
                                             gdpo::view(lengths), shaping::LengthAtMost{4000});
  CHECK(rewards == Vector{1, 1, 1, 0, 0, 1, 0, 0});
  CHECK(report.changed == 4);
  gdpo::Gdpo gated, by_hand;
  gated.gates = {{1, 0, 1.0}};
  const Vector conditioned{1, 1, 1, 0, 0, 0, 0, 0};
  CHECK(difference(gdpo::advantages(gdpo::view(rewards.data(), 4, 2), gdpo::groups_of(4), gated),
                   gdpo::advantages(gdpo::view(conditioned.data(), 4, 2), gdpo::groups_of(4),
                                    by_hand)) == "");
}

TEST_CASE("shape_rewards: no rule of length pays for a longer completion", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const double most = 1 + random.below(150), buffer = most * (1 - random.uniform()),
                 reward = random.uniform(), alpha = 0.02 * random.uniform();
    const int short_one = random.below(200), longer = short_one + random.below(100);
    const auto falls = [&](const auto& rule, double least) {
      const double a = one(reward, short_one, rule), b = one(reward, longer, rule);
      CHECK(b <= a);
      CHECK(b >= least);
    };
    const double factor = 3 * random.uniform();
    falls(shaping::SoftOverlong{most, buffer, factor}, reward - factor);
    falls(shaping::SoftOverlong{most, buffer, factor, false}, -infinity);
    falls(shaping::LengthLimit{most, alpha, random.uniform()}, 0);
    falls(shaping::LengthAtMost{most}, 0);
    // The target is the best length, and as far below it costs as much as above.
    const shaping::LengthTarget target{300, alpha};
    CHECK(one(reward, 300 + short_one, target) == one(reward, 300 - short_one, target));
    CHECK(one(reward, 300 + longer, target) <= one(reward, 300 + short_one, target));
    CHECK(one(reward, 300, target) == reward);
  }
}

TEST_CASE("shape_rewards: laws of the rules", "[update]") {
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int n = random.below(20);
    const Vector rewards = random_rewards(random, n), lengths = random_lengths(random, n);
    const shaping::Clip clip{-random.uniform(), random.uniform()};
    const shaping::SoftOverlong overlong{100, 50, random.uniform(), random.chance(0.5)};
    const shaping::Affine affine{random.pick({0.5, -2.0, 0.3}), random.uniform()};

    // A clip twice is a clip, and lies within its bounds.
    const Vector clipped = shaped(rewards, lengths, clip);
    CHECK(difference(shaped(clipped, lengths, clip), clipped) == "");
    for (const double x : clipped) CHECK((std::isnan(x) || (x >= clip.min && x <= clip.max)));

    // Powers of two are undone exactly; other factors up to two roundings of values below 8.
    const shaping::Affine twice{-4, 0}, back{-0.25, 0};
    CHECK(difference(shaped(rewards, lengths, twice, back), rewards) == "");
    const shaping::Affine inverse{1 / affine.scale, -affine.offset / affine.scale};
    CHECK(deviation(shaped(rewards, lengths, affine, inverse), rewards, tolerance::formula) == "");

    // Several rules in one call are the calls one after the other.
    CHECK(difference(shaped(rewards, lengths, overlong, clip, affine),
                     shaped(shaped(shaped(rewards, lengths, overlong), lengths, clip), lengths,
                            affine)) == "");
    CHECK(difference(shaped(rewards, lengths), rewards) == "");

    // A row is shaped by itself: the rows in another order.
    std::vector<int> order;
    for (int i = 0; i < n; ++i) order.push_back(i);
    random.shuffle(order);
    Vector moved, moved_lengths, expected;
    const Vector all = shaped(rewards, lengths, clip, overlong);
    for (const int i : order) {
      moved.push_back(rewards[static_cast<std::size_t>(i)]);
      moved_lengths.push_back(lengths[static_cast<std::size_t>(i)]);
      expected.push_back(all[static_cast<std::size_t>(i)]);
    }
    CHECK(difference(shaped(moved, moved_lengths, clip, overlong), expected) == "");
  }
}

TEST_CASE("shape_rewards of many rows is that of each row by itself", "[update]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto rows = static_cast<std::size_t>(random.pick({255, 256, 257, 700}));
    std::vector<double> rewards;
    std::vector<float> tokens;
    for (std::size_t i = 0; i < rows; ++i) {
      rewards.push_back(random.pick({0.0, 1.0, random.uniform(), std::nan("")}));
      tokens.push_back(static_cast<float>(random.below(100)));
    }
    const gdpo::update::shaping::SoftOverlong punishment{50, 20, 1, false};
    const std::vector<double> given = rewards;
    gdpo::update::shape_rewards(gdpo::view(rewards), gdpo::view(tokens), punishment);
    for (std::size_t i = 0; i < rows; ++i) {
      double alone = given[i];
      gdpo::update::shape_rewards(gdpo::view(&alone, 1), gdpo::view(&tokens[i], 1), punishment);
      REQUIRE(gdpo::math::bits_of(alone) == gdpo::math::bits_of(rewards[i]));
    }
    tokens.back() = -1;
    std::vector<double> kept = given;
    const std::string message = message_of(
        [&] { gdpo::update::shape_rewards(gdpo::view(kept), gdpo::view(tokens), punishment); });
    CHECK(message.find("lengths(" + std::to_string(rows - 1) + ")") != std::string::npos);
  }
}

TEST_CASE("shape_rewards applies the rules in their order", "[update]") {
  const shaping::Clip clip{-1, 1};
  const shaping::Affine twice{2, 0};
  CHECK(one(0.75, 0, clip, twice) == 1.5);
  CHECK(one(0.75, 0, twice, clip) == 1);
  const shaping::SoftOverlong overlong{10, 10, 1};
  CHECK(one(3, 5, clip, overlong) == 0.5);
  CHECK(one(3, 5, overlong, clip) == 1);
  CHECK(one(3, 5, Square{}, overlong, Constant{7}) == 7);
  CHECK(one(3, 5, Square{}) == 9);
  CHECK(one(3, 5, Declared{}) == 5);
}

TEST_CASE("shape_rewards leaves missing rewards alone", "[update]") {
  const double payload = std::nan("0x123");
  Vector rewards{1, payload, missing, -3};
  const Vector before = rewards, lengths{10, 10, 10, 10};
  const ShapedRewards report =
      shape_rewards(gdpo::view(rewards), gdpo::view(lengths), shaping::LengthAtMost{4}, Constant{5},
                    shaping::Clip{0, 1}, shaping::SoftOverlong{8, 4});
  CHECK(rewards[0] == 0);
  CHECK(same_bits(rewards[1], before[1]));
  CHECK(same_bits(rewards[2], before[2]));
  CHECK(rewards[3] == 0);
  CHECK(report.missing == 2);
  CHECK(report.changed == 2);
  CHECK(report.not_finite == 0);
}

TEST_CASE("shape_rewards writes infinity where a rule makes NaN", "[update]") {
  Vector rewards{infinity, 1, -infinity, 2};
  ShapedRewards report = shape_rewards(gdpo::view(rewards), {}, shaping::Affine{0, 1});
  CHECK(rewards == Vector{infinity, 1, infinity, 1});
  CHECK(report.not_finite == 2);
  CHECK(report.changed == 2);  // -infinity and 2
  CHECK(report.missing == 0);
  // The rules after it do not hide it.
  rewards = {1, 2};
  report = shape_rewards(gdpo::view(rewards), {}, Constant{missing}, shaping::Clip{0, 1});
  CHECK(rewards == Vector{infinity, infinity});
  CHECK(report.not_finite == 2);
  // A rule that reads the length without declaring it gets NaN where there is none.
  rewards = {1, 2};
  shape_rewards(gdpo::view(rewards), {}, Undeclared{});
  CHECK(rewards == Vector{infinity, infinity});
}

TEST_CASE("shape_rewards reads and writes every storage", "[update]") {
  const Vector rewards{1, -0.5, missing, 3, 0.1}, lengths{0, 60, 70, 80, 500};
  const shaping::Clip clip{-1, 1};
  const shaping::SoftOverlong overlong{100, 50, 0.7};
  const auto stored = [&](auto element) {
    using T = decltype(element);
    std::vector<T> x(rewards.size());
    std::vector<float> from;
    Vector expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      gdpo::store(x[i], rewards[i]);
      // Rounded once: the result for the stored reward, in double, and then stored.
      const double value = gdpo::load(x[i]);
      T to{};
      gdpo::store(to, one(value, lengths[i], clip, overlong));
      expected.push_back(gdpo::load(to));
    }
    const ShapedRewards report = shape_rewards(gdpo::view(x), gdpo::view(lengths), clip, overlong);
    Vector got;
    for (const T& v : x) got.push_back(gdpo::load(v));
    CHECK(difference(got, expected) == "");
    CHECK(report.missing == 1);
    CHECK(report.changed == 3);
  };
  stored(float{});
  stored(double{});
  stored(gdpo::Float16{});
  stored(gdpo::BFloat16{});

  // Half precision ends at 65504: beyond it a reward is infinite, and that is counted.
  std::vector<gdpo::Float16> half(1);
  gdpo::store(half[0], 60000.0);
  CHECK(shape_rewards(gdpo::view(half), {}, shaping::Affine{2, 0}).not_finite == 1);
  CHECK(gdpo::load(half[0]) == infinity);
  // A change too small to be stored is none.
  gdpo::store(half[0], 1.0);
  CHECK(shape_rewards(gdpo::view(half), {}, shaping::Affine{1, 1e-5}).changed == 0);

  // Lengths of any type, and views with any stride.
  const std::vector<std::int32_t> counts{0, 60, 70, 80, 500};
  Vector a = rewards, strided(10, 7.0);
  shape_rewards(gdpo::view(a), gdpo::view(counts), overlong);
  CHECK(difference(a, shaped(rewards, lengths, overlong)) == "");
  for (std::size_t i = 0; i < 5; ++i) strided[2 * i] = rewards[i];
  shape_rewards(gdpo::view(strided.data() + 8, {5}, {-2}),
                Column(gdpo::View<const double, 1>{lengths.data() + 4, {5}, {-1}}), overlong);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK((same_bits(strided[2 * i], a[i]) || std::isnan(a[i])));
    CHECK(strided[2 * i + 1] == 7);
  }
  Vector none;
  CHECK(shape_rewards(gdpo::view(none), {}, overlong).changed == 0);
}

TEST_CASE("shape_rewards refuses settings out of their range and writes nothing", "[update]") {
  const Vector before{1, 2};
  Vector rewards = before;
  const Vector lengths{10, 20};
  const auto refused = [&](const auto& rule) {
    // The rule before the refused one is not applied either.
    const std::string message = message_of([&] {
      shape_rewards(gdpo::view(rewards), gdpo::view(lengths), shaping::Affine{3, 1}, rule);
    });
    CHECK(rewards == before);
    return message;
  };
  const std::string f = "gdpo::update::shape_rewards: ",
                    at_least_0 = "a finite number of at least 0";
  CHECK(refused(shaping::Clip{2, 1}) ==
        f + "clip.min, clip.max: given 2 and 1; needed: the lower before the upper");
  for (const double bad : {missing, infinity, -infinity}) {
    INFO(bad);
    const auto fails = [&](const auto& rule, const std::string& name) {
      const std::string message = refused(rule);
      CHECK_THAT(message, Catch::Matchers::ContainsSubstring(f + name + ": given "));
    };
    if (std::isnan(bad)) {
      fails(shaping::Clip{bad, 1}, "clip.min");
      fails(shaping::Clip{1, bad}, "clip.max");
    }
    fails(shaping::Affine{bad, 0}, "affine.scale");
    fails(shaping::Affine{1, bad}, "affine.offset");
    fails(shaping::SoftOverlong{bad, 1}, "soft_overlong.max_length");
    fails(shaping::SoftOverlong{10, bad}, "soft_overlong.buffer");
    fails(shaping::SoftOverlong{10, 1, bad}, "soft_overlong.penalty");
    fails(shaping::LengthTarget{bad}, "length_target.target");
    fails(shaping::LengthTarget{1, bad}, "length_target.alpha");
    fails(shaping::LengthLimit{bad}, "length_limit.limit");
    fails(shaping::LengthLimit{1, bad}, "length_limit.alpha");
    fails(shaping::LengthLimit{1, 1, bad}, "length_limit.delta");
    fails(shaping::LengthAtMost{bad}, "length_at_most.limit");
  }
  CHECK(refused(shaping::Affine{missing, 0}) ==
        f + "affine.scale: given nan; needed: a finite number");
  const std::string longest =
      "a finite number that is more than 0 (tokens of the longest completion)";
  CHECK(refused(shaping::SoftOverlong{}) ==
        f + "soft_overlong.max_length: given 0; needed: " + longest);
  CHECK(refused(shaping::SoftOverlong{10}) ==
        f + "soft_overlong.buffer: given 0; needed: a finite number that is more than 0");
  CHECK(refused(shaping::SoftOverlong{10, 11}) ==
        f + "soft_overlong.buffer: given 11; needed: at most max_length, which is 10");
  CHECK(refused(shaping::SoftOverlong{10, 10, -1}) ==
        f + "soft_overlong.penalty: given -1; needed: " + at_least_0);
  CHECK(refused(shaping::SoftOverlong{-1, 1}) ==
        f + "soft_overlong.max_length: given -1; needed: " + longest);
  CHECK(refused(shaping::LengthTarget{-1}) ==
        f + "length_target.target: given -1; needed: " + at_least_0);
  CHECK(refused(shaping::LengthTarget{1, -1}) ==
        f + "length_target.alpha: given -1; needed: " + at_least_0);
  CHECK(refused(shaping::LengthLimit{-1}) ==
        f + "length_limit.limit: given -1; needed: " + at_least_0);
  CHECK(refused(shaping::LengthLimit{1, -1}) ==
        f + "length_limit.alpha: given -1; needed: " + at_least_0);
  for (const double delta : {-0.5, 1.5}) {
    CHECK_THAT(refused(shaping::LengthLimit{1, 1, delta}),
               Catch::Matchers::ContainsSubstring("; needed: 0 to 1"));
  }
  CHECK(refused(shaping::LengthAtMost{-1}) ==
        f + "length_at_most.limit: given -1; needed: " + at_least_0);
}

TEST_CASE("shape_rewards refuses arrays that do not fit and writes nothing", "[update]") {
  const Vector before{1, 2, 3};
  Vector rewards = before;
  const shaping::SoftOverlong overlong{10, 5};
  const std::string f = "gdpo::update::shape_rewards: ";
  const auto refused = [&](const Column& lengths) {
    const std::string message = message_of([&] {
      shape_rewards(gdpo::view(rewards), lengths, shaping::Affine{2, 0}, overlong);
    });
    CHECK(rewards == before);
    return message;
  };
  CHECK(refused({}) ==
        f + "lengths: given no column; needed: token counts, because a rule reads them");
  const Vector two{1, 2}, negative{1, -1, 2}, unknown{1, 2, missing}, endless{infinity, 1, 1};
  CHECK(refused(gdpo::view(two)) ==
        f + "lengths: given 2 entries; needed: one for each of the 3 rows");
  CHECK(refused(gdpo::view(negative)) == f + "lengths(1): given -1; needed: a count of at least 0");
  CHECK_THAT(refused(gdpo::view(unknown)),
             Catch::Matchers::ContainsSubstring(f + "lengths(2): given "));
  CHECK(refused(gdpo::view(endless)) == f + "lengths(0): given inf; needed: a count of at least 0");
  // Lengths are checked even if no rule reads them.
  CHECK(message_of([&] {
          shape_rewards(gdpo::view(rewards), gdpo::view(negative), shaping::Clip{0, 1});
        }) == f + "lengths(1): given -1; needed: a count of at least 0");
  CHECK(rewards == before);
  CHECK(message_of([&] {
          shape_rewards(gdpo::View<double, 1>{nullptr, {3}, {1}}, {}, shaping::Clip{0, 1});
        }) == f + "rewards: given a null pointer; needed: (3) elements");
  CHECK(
      message_of([&] {
        shape_rewards(gdpo::view(rewards.data(), {3}, {0}), {}, shaping::Clip{0, 1});
      }) ==
      f + "rewards: given strides (0) for shape (3), which repeat elements; needed: an element of "
          "its own for each index, because it is written");
  CHECK(rewards == before);
  CHECK(message_of([&] {
          shape_rewards(gdpo::view(rewards.data(), {1}, {0}), {}, shaping::Clip{0, 9});
        }) == "no error");
}

}  // namespace shape_rewards_test
