// labels: sanitizers
// Advantages and returns of tokens on a device: the bits of the host, for every layout, choice of
// steps and storage type, and with a renormalization the host's numbers within its tolerance.
#include "support/returns.hpp"

#include <gdpo/cuda/value/device_returns.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace returns_test {

namespace {

using namespace return_cases;
using gdpo::Steps;
using K2 = gdpo::Kl<gdpo::kl::K2>;
using Gae = gdpo::TokenAdvantage<gdpo::returns::Gae, K2>;
using ToGo = gdpo::TokenAdvantage<gdpo::returns::RewardToGo>;

/// The packed arrays of a Data on the device.
template <class S>
struct OnTheDevice {
  OnDevice<S> rewards, values, logp, ref_logp, advantages, returns;
  OnDevice<unsigned char> mask;
  OnDevice<index_t> offsets;
  OnDevice<double> row_rewards, bootstrap;
  index_t rows, tokens;

  explicit OnTheDevice(const Data& d)
      : rewards(stored<S>(d.rewards)),
        values(stored<S>(d.values)),
        logp(stored<S>(d.logp)),
        ref_logp(stored<S>(d.ref_logp)),
        advantages(std::vector<S>(d.mask.size(), S(42))),
        returns(std::vector<S>(d.mask.size(), S(42))),
        mask(d.mask),
        offsets(d.offsets()),
        row_rewards(d.row_rewards),
        bootstrap(d.bootstrap),
        rows(d.rows()),
        tokens(d.tokens()) {}

  /// width 0: packed; else all rows have it.
  template <class T>
  gdpo::TokenView<S> view(OnDevice<T>& x, index_t width) {
    if (width > 0) return gdpo::view(x.data(), rows, width);
    return gdpo::view(x.data(), tokens);
  }
  gdpo::ReturnBatch<S> batch(index_t width) {
    gdpo::ReturnBatch<S> b;
    b.rewards = view(rewards, width), b.values = view(values, width);
    b.logp = view(logp, width), b.ref_logp = view(ref_logp, width);
    if (width > 0) {
      b.mask = gdpo::view(mask.data(), rows, width);
    } else {
      b.mask = gdpo::view(mask.data(), tokens);
      b.offsets = gdpo::view(offsets.data(), rows + 1);
    }
    b.row_rewards = gdpo::view(row_rewards.data(), rows);
    b.bootstrap = gdpo::view(bootstrap.data(), rows);
    return b;
  }
  template <class Device, class Estimator>
  Out<S> operator()(const Device& device, const Estimator& estimator, index_t width = 0,
                    bool in_place = false) {
    const gdpo::ReturnBatch<S> b = batch(width);
    OnDevice<unsigned char> memory(
        std::vector<unsigned char>(gdpo::cuda::scratch_bytes(estimator, b) + 16));
    const auto out = [&](OnDevice<S>& x) -> gdpo::TokenOut<S> {
      if (width > 0) return gdpo::view(x.data(), rows, width);
      return gdpo::view(x.data(), tokens);
    };
    OnDevice<S>&to = in_place ? rewards : advantages, &also = in_place ? values : returns;
    gdpo::advantages_and_returns_into(
        device, b, estimator, out(to), out(also),
        gdpo::cuda::Scratch{memory.data(), gdpo::cuda::scratch_bytes(estimator, b)});
    return {to.host(), also.host()};
  }
};

template <class Estimator>
Estimator random_gae(Random& random) {
  Estimator e;
  e.returns.gamma = random.pick({0.9, 1.0}), e.returns.lambda = random.pick({0.5, 0.95});
  e.returns.lambda_returns = random.pick({gdpo::same_lambda, 1.0});
  e.returns.length_alpha = random.pick({0.0, 0.1});
  e.returns.steps = all_steps[random.below(4)];
  e.penalty.coef = random.pick({0.0, 0.1});
  if (random.chance(0.3)) e.reward_clip = {-0.5, 0.5};
  return e;
}

}  // namespace

TEST_CASE("cuda returns: the bits of the host", "[cuda]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto device = test_device(seed);
    const Data d = random_rows(random, 1 + random.below(30), random.pick({10, 70, 200}));
    const auto check = [&](const auto& e, auto zero) {
      using S = decltype(zero);
      CHECK(OnTheDevice<S>(d)(device, e) == packed<S>(gdpo::seq, d, e));
    };
    const Gae gae = random_gae<Gae>(random);
    check(gae, 0.0f), check(gae, 0.0);
    check(ToGo{{0.9, all_steps[random.below(4)]}}, 0.0f);
  }
}

TEST_CASE("cuda returns: padded rows, and outputs over the inputs", "[cuda]") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed + 100);
    Data d;
    const index_t width = 1 + random.below(150);
    for (int i = 0; i < 11; ++i) add_row(random, d, width, random.pick({0.0, 0.5, 1.0}));
    const Gae e = random_gae<Gae>(random);
    const Out<float> wanted = packed<float>(gdpo::seq, d, e);
    CHECK(OnTheDevice<float>(d)(test_device(seed), e, width) == wanted);
    CHECK(OnTheDevice<float>(d)(test_device(seed), e, width, true) == wanted);
    CHECK(OnTheDevice<float>(d)(test_device(seed), e, 0, true) == wanted);
  }
}

TEST_CASE("cuda returns: the renormalization", "[cuda]") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    Random random(seed + 200);
    // More than 1024 rows: several rows form a unit.
    const Data d = random_rows(random, random.pick({1, 5, 40, 2100}), 20);
    Gae e = random_gae<Gae>(random);
    e.renorm = gdpo::renorm::token_weighted_batch();
    const auto got = OnTheDevice<double>(d)(test_device(seed), e);
    const auto wanted = packed<double>(gdpo::seq, d, e);
    CHECK(difference(got.returns, wanted.returns) == "");
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      // What the library promises, for advantages of up to 100 standard deviations.
      REQUIRE(std::fabs(got.advantages[k] - wanted.advantages[k]) <= 100 * tolerance::merge);
      if (d.mask[k] == 0) REQUIRE(same_bits(got.advantages[k], 0));
    }
    CHECK(OnTheDevice<double>(d)(test_device(seed + 1), e) == got);
  }
  // Equal advantages give exactly 0, and a NaN reaches every valid token.
  Random random(1);
  Data d = random_rows(random, 9, 30);
  for (auto* v : {&d.rewards, &d.values, &d.row_rewards, &d.bootstrap})
    for (double& x : *v) x = 0;
  const Gae e{{}, {}, {}, gdpo::renorm::token_weighted_batch()};
  for (const float x : OnTheDevice<float>(d)(test_device(), e).advantages)
    CHECK(same_bits(static_cast<double>(x), 0));
  for (std::size_t k = 0; k < d.mask.size(); ++k) d.values[k] = std::nan("");
  const auto nan = OnTheDevice<float>(d)(test_device(), e).advantages;
  for (std::size_t k = 0; k < d.mask.size(); ++k) CHECK(std::isnan(nan[k]) == (d.mask[k] != 0));
}

TEST_CASE("cuda returns: no scratch for a renormalization", "[cuda]") {
  const float numbers[6] = {};
  float out[6];
  gdpo::ReturnBatch<float> b;
  b.rewards = b.values = gdpo::view(numbers, 2, 3);
  const Gae e{{}, {}, {}, gdpo::renorm::token_weighted_batch()};
  CHECK(message_of([&] {
          gdpo::advantages_and_returns_into(test_device(), b, e, gdpo::view(out, 2, 3), {},
                                            gdpo::cuda::Scratch{});
        }).find("scratch: given no memory; needed: ") != std::string::npos);
}

}  // namespace returns_test
