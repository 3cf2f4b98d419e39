// The loss that the steps of tests/README.md add, in a copy of the tree: by its name and by its
// type, against each other and the oracle, with its setting. pages.add_policy compiles it together
// with the tests that step 4 names.
#include <gdpo/runtime.hpp>

#include "support/catch.hpp"
#include "support/loss_calls.hpp"
#include "support/message.hpp"

namespace add_policy_test {

namespace runtime = gdpo::runtime;
using loss_product::Data;
using loss_product::Outcome;

TEST_CASE("the loss of the page has a name, and its setting a place in the schema", "[product]") {
  const std::vector<runtime::Setting> all = runtime::settings(runtime::loss("capped"));
  const auto cap =
      std::find_if(all.begin(), all.end(), [](const auto& s) { return s.name == "surrogate.cap"; });
  REQUIRE(cap != all.end());
  CHECK(cap->kind == "number");
  CHECK(cap->value == "2");
  CHECK(cap->fits == "more than 0 (infinity: off)");
  CHECK(cap->meaning == "the ratio is at most this");

  const std::string other = message_of([] { runtime::configured_loss("capped low=0.1"); });
  CHECK(other.find("given the setting 'low'; needed: one of surrogate.cap, ") != std::string::npos);
  const std::string none = message_of([] { runtime::configured_loss("capped cap=0"); });
  CHECK(none.find("cap: given 0; needed: more than 0") != std::string::npos);
}

TEST_CASE("the loss of the page by name, by type and by the oracle", "[product]") {
  double clipped = 0;
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Data data = loss_product::random_tokens(random, 4, 9, 0.7);
    const naive_loss::Counts counts = naive_loss::count(data);
    if (counts.tokens == 0) continue;
    const gdpo::Normalizer n = loss_product::normalizer_of(counts);
    const double cap = random.pick({0.7, 1.0, 1.5});
    auto by_type = gdpo::capped_loss;
    by_type.surrogate.cap = cap;
    const Outcome expected = loss_product::call<double>(by_type, data, &n);
    const std::string value = std::to_string(cap);
    for (const char* setting : {"cap", "surrogate.cap"}) {
      const auto named = runtime::configured_loss(std::string("capped ") + setting + "=" + value);
      const Outcome got = std::visit(
          [&](const auto& loss) { return loss_product::call<double>(loss, data, &n); }, named);
      CHECK(loss_product::difference_of(got, expected) == "");
    }
    naive_loss::Settings s = naive_loss::settings_of(
        naive_loss::Capped{cap}, 0, naive_loss::Aggregate::TokenMean, naive_loss::Over::Tokens);
    CHECK(loss_product::describe(loss_product::settings_of(by_type)) == loss_product::describe(s));
    s.kl.clear();
    CHECK(loss_product::mismatch(s, data, naive_loss::loss(s, data, counts), expected,
                                 tolerance::unit) == "");
    clipped += expected.result.metrics.clip_fraction_high.sum;
    ++compared;
  }
  CHECK(compared > 30);
  CHECK(clipped > 50);
}

}  // namespace add_policy_test
