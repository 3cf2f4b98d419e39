// labels: sanitizers
// place_turns_into: where the rewards of turns stand, before and after the discount, and what is
// refused.
#include <gdpo/value.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace turn_rewards_test {

namespace {

using gdpo::index_t;
using Vector = std::vector<double>;
using Mask = std::vector<unsigned char>;
constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// Row 0 has the turns 1-2, 4 and 6; row 1 has one turn that fills it; row 2 has none.
const Mask mask{0, 1, 1, 0, 1, 0, 1,  //
                1, 1, 1, 1, 1, 1, 1,  //
                0, 0, 0, 0, 0, 0, 0};
const Vector turns{1,    2,    4,     //
                   8,    none, none,  //
                   none, none, none};

Vector placed(double gamma) {
  Vector out(21, 99);
  gdpo::place_turns_into(gdpo::view(turns.data(), 3, 3), gdpo::view(mask.data(), 3, 7),
                         gdpo::view(out.data(), 3, 7), gamma);
  return out;
}

/// The returns of the placed rewards, row 0.
Vector returns_of(const Vector& rewards, const gdpo::returns::RewardToGo& to_go) {
  gdpo::ReturnBatch<double> batch;
  batch.rewards = gdpo::view(rewards.data(), 3, 7);
  batch.mask = gdpo::view(mask.data(), 3, 7);
  Vector out(21);
  gdpo::advantages_and_returns_into(batch, gdpo::TokenAdvantage<gdpo::returns::RewardToGo>{to_go},
                                    gdpo::view(out.data(), 3, 7));
  return {out.begin(), out.begin() + 7};
}

}  // namespace

TEST_CASE("a reward stands at the last token of its turn", "[turns]") {
  CHECK(placed(0) == Vector{0, 0, 1, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0});
  CHECK(placed(0.5) == Vector{0, 0, 3, 0, 4, 0, 4, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("storage of rewards, masks and outputs of turns", "[turns]") {
  const std::vector<float> turns_f(turns.begin(), turns.end());
  std::vector<double> mask_d(mask.begin(), mask.end());
  mask_d[1] = none;  // every number but 0 is a valid token
  std::vector<gdpo::BFloat16> out(2 * 21);
  gdpo::place_turns_into(gdpo::view(turns_f.data(), 3, 3), gdpo::view(mask_d.data(), 3, 7),
                         gdpo::View<gdpo::BFloat16, 2>{out.data(), {3, 7}, {14, 2}}, 0.5);
  for (std::size_t k = 0; k < 21; ++k) CHECK(gdpo::load(out[2 * k]) == placed(0.5)[k]);
  // Infinite rewards, and rows without turns, which need no columns.
  const Vector infinite{1, -INFINITY, 3, none};
  const Mask four{1, 0, 1, 0, 1, 0, 1};
  Vector of_row(7, 99);
  const auto place = [&](double gamma) {
    gdpo::place_turns_into(gdpo::view(infinite.data(), 1, 4), gdpo::view(four.data(), 1, 7),
                           gdpo::view(of_row.data(), 1, 7), gamma);
  };
  place(0);
  CHECK((of_row[0] == 1 && of_row[2] == -INFINITY && of_row[4] == 3 && std::isnan(of_row[6])));
  place(0.5);
  for (const int t : {0, 2, 4, 6}) CHECK(std::isnan(of_row[static_cast<std::size_t>(t)]));
  const Mask nothing(7, 0);
  gdpo::place_turns_into(gdpo::view(infinite.data(), 1, 0), gdpo::view(nothing.data(), 1, 7),
                         gdpo::view(of_row.data(), 1, 7));
  CHECK(of_row == Vector(7, 0));
}

TEST_CASE("rewards of turns before and after the discount", "[turns]") {
  using gdpo::Steps;
  // By tokens: token 1 is one step before the end of its turn, two before the next end.
  CHECK(returns_of(placed(0), {0.5, Steps::Valid}) == Vector{0, 1.5, 3, 0, 4, 0, 4});
  CHECK(returns_of(placed(0.5), {1, Steps::Turns}) == Vector{0, 3, 3, 0, 4, 0, 4});
  CHECK(returns_of(placed(0), {1, Steps::Turns}) == Vector{0, 1, 1, 0, 2, 0, 4});
}

TEST_CASE("packed rows are padded rows, and a turn ends with its row", "[turns]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int rows = 1 + random.below(5), width = 1 + random.below(12), columns = 6;
    const double gamma = random.pick({0.0, 0.5, 1.0});
    std::vector<index_t> offsets{0};
    Mask padded(static_cast<std::size_t>(rows * width)), packed;
    Vector rewards(static_cast<std::size_t>(rows * columns), none), expected;
    for (int i = 0; i < rows; ++i) {
      const int length = random.below(width + 1);
      std::vector<int> ends;
      for (int t = 0; t < length; ++t) {
        const auto at = static_cast<std::size_t>(i * width + t);
        padded[at] = random.chance(0.6);
        packed.push_back(padded[at]);
      }
      for (int t = 0; t < length; ++t) {
        const auto at = static_cast<std::size_t>(i * width + t);
        if (padded[at] && (t + 1 == length || !padded[at + 1])) ends.push_back(t);
      }
      Vector row(static_cast<std::size_t>(length), 0.0);
      double later = 0;
      for (std::size_t k = ends.size(); k-- > 0;) {
        const double reward = random_reward(random, 1);
        rewards[static_cast<std::size_t>(i * columns) + k] = reward;
        later = reward + gamma * later;
        row[static_cast<std::size_t>(ends[k])] = gamma == 0 ? reward : later;
      }
      expected.insert(expected.end(), row.begin(), row.end());
      offsets.push_back(static_cast<index_t>(packed.size()));
    }
    const auto turn_rewards = gdpo::view(std::as_const(rewards).data(), rows, columns);
    Vector out(packed.size(), 99), wide(padded.size(), 99), kept;
    gdpo::place_turns_into(turn_rewards, gdpo::view(packed), gdpo::view(offsets), gdpo::view(out),
                           gamma);
    CHECK(out == expected);
    gdpo::place_turns_into(turn_rewards, gdpo::view(padded.data(), rows, width),
                           gdpo::view(wide.data(), rows, width), gamma);
    for (int i = 0; i < rows; ++i) {
      const auto length =
          offsets[static_cast<std::size_t>(i) + 1] - offsets[static_cast<std::size_t>(i)];
      const auto begin = wide.begin() + i * width;
      kept.insert(kept.end(), begin, begin + length);
      CHECK(std::count(begin + length, begin + width, 0.0) == width - length);
    }
    CHECK(kept == expected);
  }
}

TEST_CASE("what is refused leaves the output as it was", "[turns]") {
  Vector out(21, 99);
  const auto call = [&](index_t columns, double gamma) {
    return message_of([&] {
      gdpo::place_turns_into(gdpo::view(turns.data(), 3, columns), gdpo::view(mask.data(), 3, 7),
                             gdpo::view(out.data(), 3, 7), gamma);
    });
  };
  CHECK(call(2, 0) ==
        "gdpo::place_turns_into: mask: given 3 turns in row 0; needed: at most 2, the columns of "
        "turn_rewards");
  CHECK(call(3, 1.5) ==
        "gdpo::place_turns_into: gamma: given 1.5; needed: 0 to 1 (discount of a turn)");
  CHECK(call(3, none).find("gamma") != std::string::npos);
  CHECK(message_of([&] {
          gdpo::place_turns_into(gdpo::view(turns.data(), 3, 3), gdpo::view(mask.data(), 3, 7),
                                 gdpo::view(out.data(), 7, 3));
        }) == "gdpo::place_turns_into: out: given (7, 3); needed: (3, 7), the shape of mask");
  CHECK(message_of([&] {
          gdpo::place_turns_into(gdpo::view(turns.data(), 2, 3), gdpo::view(mask.data(), 3, 7),
                                 gdpo::view(out.data(), 3, 7));
        }) == "gdpo::place_turns_into: mask: given 3 entries; needed: one for each of the 2 rows");
  const auto packed = [&](const std::vector<int>& offsets) {
    return message_of([&] {
      gdpo::place_turns_into(gdpo::view(turns.data(), 3, 3), gdpo::view(mask), gdpo::view(offsets),
                             gdpo::view(out));
    });
  };
  CHECK(packed({0, 7, 21}).find("3 entries; needed: 4") != std::string::npos);
  CHECK(packed({0, 14, 7, 21}).find("7 at 2; needed: offsets from 0 to 21") != std::string::npos);
  CHECK(packed({0, 7, 14, 20}).find("20 at 3") != std::string::npos);
  CHECK(packed({1, 7, 14, 21}).find("1 at 0") != std::string::npos);
  CHECK(out == Vector(21, 99));
}

}  // namespace turn_rewards_test
