// labels: sanitizers
// The adaptive entropy coefficient of Skywork-OR1 (2505.22312), as TRL implements it.
#include <gdpo/constraint/adaptive_entropy.hpp>
#include <support/catch.hpp>
#include <support/generators.hpp>
#include <support/message.hpp>
#include <support/tolerance.hpp>

namespace adaptive_entropy_test {

using gdpo::AdaptiveEntropy;
using gdpo::EntropyState;
using gdpo::math::infinity;

TEST_CASE("the coefficient rises below the target and falls above it, by hand") {
  const AdaptiveEntropy controller{0.5, 0.25, 0, 1};
  EntropyState state{0.5};
  CHECK(controller.applied(state) == 0);  // nothing was measured yet
  controller.update(state, 0.25);
  CHECK((state.coef == 0.75 && state.last_entropy == 0.25));
  CHECK(controller.applied(state) == 0.75);
  controller.update(state, 0.5);  // on the target: too low still
  CHECK((state.coef == 1 && controller.applied(state) == 1));
  controller.update(state, 0.5);  // at the upper bound
  CHECK(state.coef == 1);
  controller.update(state, 0.75);
  CHECK((state.coef == 0.75 && controller.applied(state) == 0));
  for (int k = 0; k < 5; ++k) controller.update(state, 2);  // to the lower bound
  CHECK(state.coef == 0);
}

TEST_CASE("a state that was saved goes on with the same bits") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const AdaptiveEntropy controller{random.uniform(), 0.01 * random.uniform(), 0, 0.5};
    EntropyState whole{0.1}, first{0.1};
    for (int t = 0; t < 100; ++t) {
      const double entropy = 2 * random.uniform();
      controller.update(whole, entropy);
      const EntropyState saved = first;
      EntropyState restored = saved;
      controller.update(restored, entropy);
      first = restored;
      REQUIRE(same_bits(controller.applied(whole), controller.applied(first)));
    }
  }
}

TEST_CASE("a closed loop keeps the entropy near its target") {
  // The entropy of this simulated policy falls by 2 % a step and rises with the bonus.
  const AdaptiveEntropy controller{0.3, 0.001, 0, 1};
  EntropyState state{};
  double entropy = 1;
  for (int t = 0; t < 3000; ++t) {
    entropy = 0.98 * entropy + controller.applied(state);
    controller.update(state, entropy);
  }
  CHECK(std::fabs(entropy - 0.3) < 0.1);
}

TEST_CASE("what is not finite or out of range") {
  const AdaptiveEntropy controller;
  for (const double bad : {std::nan(""), infinity, -infinity}) {
    EntropyState state{0.25, 0.1};
    controller.update(state, bad);
    CHECK((state.coef == 0.25 && state.last_entropy == 0.1));
  }
  EntropyState state{-1};
  CHECK(message_of([&] { controller.update(state, 1); }) ==
        "gdpo::AdaptiveEntropy::update: state.coef: given -1; needed: a finite number of at least "
        "0");
  state = {0.5, std::nan("")};
  CHECK(message_of([&] { (void)controller.applied(state); }) ==
        "gdpo::AdaptiveEntropy::applied: state.last_entropy: given nan; needed: the entropy of the "
        "last step, or infinity before the first");
  state = {0.5};
  const AdaptiveEntropy crossed{0.2, 0.1, 1, 0.5};
  CHECK(message_of([&] { (void)crossed.applied(state); }) ==
        "gdpo::AdaptiveEntropy::applied: min_coef, max_coef: given 1 and 0.5; needed: the lower "
        "before the upper");
}

}  // namespace adaptive_entropy_test
