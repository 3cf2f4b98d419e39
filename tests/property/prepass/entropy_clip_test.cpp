// labels: lanes
// Laws of EntropyClip: the definition in long double, layouts, masked numbers, and its report.
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/trinity.hpp>

#include "reference/naive_entropy_clip.hpp"
#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace entropy_clip_test {

namespace {

using gdpo::Against, gdpo::EntropyCenter, gdpo::index_t, gdpo::Reach;
using gdpo::prepass::EntropyClip;
using Numbers = std::vector<double>;

constexpr int seeds = few_rounds ? 60 : 400;

/// A batch, row after row; old may be empty. Numbers are multiples of 2^-8.
struct Data {
  index_t rows = 0, width = 0;
  Numbers logp, old, rollout, entropies, tags, advantages;
  std::vector<unsigned char> mask;

  std::size_t at(index_t i, index_t t) const { return static_cast<std::size_t>(i * width + t); }
};

Data random_data(Random& random, double wild) {
  Data d;
  d.rows = 1 + random.below(6), d.width = 1 + random.below(12);
  const auto number = [&](double from, double to) {
    if (random.chance(wild)) return random.pick({std::nan(""), HUGE_VAL, -HUGE_VAL});
    return std::floor((from + (to - from) * random.uniform()) * 256) / 256;
  };
  const bool old = random.chance(0.7);
  for (index_t i = 0; i < d.rows; ++i) {
    d.advantages.push_back(random.pick({-1.0, -0.5, 0.0, 1.0, -0.25}));
    const int length = random.below(static_cast<int>(d.width) + 1);
    for (index_t t = 0; t < d.width; ++t) {
      d.mask.push_back(t < length && !random.chance(0.2));
      d.logp.push_back(number(-4, 0)), d.rollout.push_back(number(-4, 0));
      if (old) d.old.push_back(number(-4, 0));
      d.entropies.push_back(number(0, 3)), d.tags.push_back(number(-1, 1));
    }
  }
  return d;
}
EntropyClip random_clip(Random& random) {
  EntropyClip pass;
  pass.mu = random.pick({0.0, 0.5, 1.0, 2.5});
  pass.center = random.pick({EntropyCenter::Batch, EntropyCenter::Tags});
  pass.max_share = random.pick({1.0, 0.2, 0.05, 0.0});
  pass.zero_advantage = random.chance(0.5);
  pass.policy = random.pick({Against::Old, Against::Rollout});
  return pass;
}

struct Result {
  std::vector<unsigned char> mask;
  std::map<std::string, double> report;
};
bool operator==(const Result& a, const Result& b) {
  return a.mask == b.mask && a.report == b.report;
}

/// The mask after prepare(), and the report; packed up to the last valid token of each row, or
/// padded.
template <class S>
Result run(const Data& d, const EntropyClip& pass, bool packed) {
  std::vector<index_t> offsets{0};
  std::vector<std::size_t> place;
  for (index_t i = 0; i < d.rows; ++i) {
    index_t length = d.width;
    while (packed && length > 0 && d.mask[d.at(i, length - 1)] == 0) --length;
    for (index_t t = 0; t < length; ++t) place.push_back(d.at(i, t));
    offsets.push_back(static_cast<index_t>(place.size()));
  }
  const auto take = [&](const auto& x, auto zero) {
    std::vector<decltype(zero)> tokens;
    for (const std::size_t k : place) {
      if (!x.empty()) tokens.push_back(static_cast<decltype(zero)>(x[k]));
    }
    return tokens;
  };
  const auto logp = take(d.logp, S()), old = take(d.old, S()), rollout = take(d.rollout, S()),
             entropies = take(d.entropies, S()), tags = take(d.tags, S());
  const auto mask = take(d.mask, static_cast<unsigned char>(0));
  gdpo::TokenBatch<S> b;
  const auto set = [&](auto& view, const auto& tokens) {
    if (tokens.empty()) return;
    if (packed) {
      view = gdpo::view(tokens);
    } else {
      view = gdpo::view(tokens.data(), d.rows, d.width);
    }
  };
  set(b.logp, logp), set(b.old_logp, old), set(b.rollout_logp, rollout);
  set(b.entropies, entropies), set(b.tags, tags), set(b.mask, mask);
  b.advantages = gdpo::view(d.advantages);
  if (packed) b.offsets = gdpo::view(offsets);
  gdpo::PrepassMemory<S> memory;
  gdpo::prepare(b, memory, pass);
  Result r{std::vector<unsigned char>(d.mask.size(), 0),
           gdpo::entropy_clip_report(b, pass).to_map()};
  for (std::size_t k = 0; k < place.size(); ++k) r.mask[place[k]] = memory.mask[k];
  return r;
}

}  // namespace

TEST_CASE("EntropyClip: the definition in long double", "[prepass]") {
  int dropped = 0, decided = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed));
    const Data d = random_data(random, random.chance(0.3) ? 0.1 : 0.0);
    const EntropyClip pass = random_clip(random);
    std::vector<naive::EntropyToken> tokens;
    std::vector<std::size_t> place;
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (d.mask[k] == 0) continue;
      const double logp = pass.policy == Against::Rollout ? d.rollout[k]
                          : d.old.empty()                 ? d.logp[k]
                                                          : d.old[k];
      tokens.push_back(
          {logp, d.entropies[k], d.tags[k], d.advantages[k / static_cast<std::size_t>(d.width)]});
      place.push_back(k);
    }
    const auto wanted = naive::entropy_clip(
        tokens,
        {pass.mu, pass.max_share, pass.center == EntropyCenter::Batch, pass.zero_advantage});
    const Result got = run<double>(d, pass, false);
    // Measures are below 8, in a few roundings; sums have at most 72 terms.
    if (!(wanted.margin > 0x1p-40L)) continue;
    ++decided;
    index_t negative = 0, dropped_negative = 0;
    for (std::size_t k = 0; k < place.size(); ++k) {
      REQUIRE((got.mask[place[k]] == 0) == wanted.dropped[k]);
      dropped += wanted.dropped[k];
      if (!(tokens[k].advantage < 0)) continue;
      ++negative, dropped_negative += wanted.dropped[k];
    }
    const auto near = [](double a, long double b) {
      return std::fabs(static_cast<double>(a - b)) <= 0x1p-40;
    };
    REQUIRE(near(got.report.at("ES"), wanted.mean));
    REQUIRE(near(got.report.at("varS"), wanted.variance));
    REQUIRE(got.report.at("frac_clipped_pos") == 0);
    REQUIRE(got.report.at("frac_clipped_neg") ==
            (negative > 0 ? static_cast<double>(dropped_negative) / static_cast<double>(negative)
                          : 0.0));
  }
  CHECK(decided > seeds / 2);
  CHECK(dropped > seeds / 2);
}

TEST_CASE("EntropyClip: neither layout nor masked numbers change a bit", "[prepass]") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 1000);
    const Data d = random_data(random, 0.05);
    const EntropyClip pass = random_clip(random);
    Data poisoned = d;
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (d.mask[k] != 0) continue;
      for (Numbers* x : {&poisoned.logp, &poisoned.old, &poisoned.rollout, &poisoned.entropies,
                         &poisoned.tags}) {
        if (!x->empty()) (*x)[k] = random.pick({std::nan(""), HUGE_VAL, 1e30, -7.0});
      }
    }
    CHECK(run<double>(d, pass, false) == run<double>(d, pass, true));
    CHECK(run<double>(poisoned, pass, false) == run<double>(d, pass, false));
    CHECK(run<float>(poisoned, pass, false) == run<float>(d, pass, true));
  }
}

TEST_CASE("EntropyClip: by hand", "[prepass]") {
  // S = 1 - 0.5, ... with pi = 1: S is the entropy.
  Data d{1, 4, {0, 0, 0, 0}, {}, {0, 0, 0, 0}, {1, 1, 1, 5}, {0, 0, 0, 0}, {-1}, {1, 1, 1, 1}};
  EntropyClip pass;
  pass.mu = 0.5;  // mean 2, sd sqrt(3): tokens at -1, but for the last
  CHECK(run<double>(d, pass, false).mask == std::vector<unsigned char>{0, 0, 0, 1});
  pass.max_share = 0.5;  // of equal ones the first
  CHECK(run<double>(d, pass, false).mask == std::vector<unsigned char>{0, 0, 1, 1});
  pass.max_share = 0;  // but for one
  CHECK(run<double>(d, pass, false).mask == std::vector<unsigned char>{0, 1, 1, 1});
  d.advantages = {1};
  CHECK(run<double>(d, pass, false).mask == d.mask);
  d.advantages = {0};
  CHECK(run<double>(d, pass, false).mask == d.mask);
  pass.zero_advantage = true;
  CHECK(run<double>(d, pass, false).mask == std::vector<unsigned char>{0, 0, 0, 1});
  pass.mu = gdpo::math::infinity;
  CHECK(run<double>(d, pass, false).mask == d.mask);
  pass.mu = 0;
  d.entropies.assign(4, 0.1), d.mask[3] = 0;  // all alike: the mean of three would round up
  d.advantages = {-1};
  CHECK(run<double>(d, pass, false).mask == d.mask);
  d.entropies.clear();
  CHECK(message_of([&] { run<double>(d, pass, false); }) ==
        "gdpo::prepare: batch.entropies: given no array; needed: the entropy of each token, "
        "because of prepass::EntropyClip");
}

TEST_CASE("EntropyClip: settings that are refused", "[prepass][errors]") {
  const auto refused = [](EntropyClip pass) {
    return message_of([&] {
      gdpo::PrepassMemory<float> memory;
      const std::vector<unsigned char> mask{1};
      gdpo::TokenBatch<float> batch;
      batch.mask = gdpo::view(mask.data(), 1, 1);
      gdpo::prepare(batch, memory, pass);
    });
  };
  EntropyClip pass;
  pass.mu = -1;
  CHECK(refused(pass) ==
        "gdpo::prepare: entropy_clip.mu: given -1; needed: at least 0 (infinity: off)");
  pass = {}, pass.max_share = 1.5;
  CHECK(refused(pass) == "gdpo::prepare: entropy_clip.max_share: given 1.5; needed: 0 to 1");
  pass = {}, pass.policy = Against::Ref;
  CHECK(refused(pass) == "gdpo::prepare: entropy_clip.policy: given ref; needed: old or rollout");
  pass = {}, pass.reach = Reach::Level;
  CHECK(refused(pass).find("gdpo::prepare: entropy_clip.reach: given level") == 0);
  pass = gdpo::trinity::clip_v;
  CHECK(refused(pass).find("gdpo::prepare: batch.advantages") == 0);
}

}  // namespace entropy_clip_test
