// labels: none
// What an unknown name may have meant.
#include <gdpo/core/near.hpp>
#include <gdpo/runtime.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

using gdpo::contract::near_names;

TEST_CASE("the number of changes between two names is a distance", "[near]") {
  using gdpo::contract::detail::distance;
  const std::vector<std::string> words = {"", "a", "low", "lwo", "dapo", "dpao", "kl_beta", "beta"};
  for (const std::string& a : words) {
    for (const std::string& b : words) {
      INFO(a << " and " << b);
      CHECK(distance(a, b) == distance(b, a));
      CHECK((distance(a, b) == 0) == (a == b));
      CHECK(distance(a, b) <= std::max(a.size(), b.size()));
    }
    CHECK(distance(a, a + "x") == 1);
    CHECK(distance(a, "") == a.size());
  }
  CHECK(distance("low", "lwo") == 1);   // two letters are swapped
  CHECK(distance("dapo", "dap") == 1);  // one is left out
  CHECK(distance("gspo", "grpo") == 1);
  CHECK(distance("beta", "kl_beta") == 3);
}

TEST_CASE("near names: few letters, the same end, or few letters of the end", "[near]") {
  const std::vector<std::string> known = {"grpo",       "dapo",          "trl::dapo",
                                          "verl::dapo", "surrogate.low", "kl.beta"};
  using List = std::vector<std::string>;
  CHECK(near_names("dpao", known) == List{"dapo"});
  CHECK(near_names("DAPO", known) == List{"dapo"});
  CHECK(near_names("trl:dapo", known) == List{"trl::dapo"});
  CHECK(near_names("kl_bta", known) == List{"kl.beta"});
  CHECK(near_names("other_trainer::dapo", known) == List{"dapo", "trl::dapo", "verl::dapo"});
  CHECK(near_names("lwo", known) == List{"surrogate.low"});
  CHECK(near_names("clip", known).empty());
  CHECK(near_names("", known).empty());
  CHECK(near_names("dapo", {}).empty());
  CHECK(near_names("a", {"b"}).empty());  // of one letter all would be near
  CHECK(near_names("x.a", {"1.a", "2.a", "3.a", "4.a"}).size() == 3);
}

TEST_CASE("every known name is the nearest to what one changed letter makes of it", "[near]") {
  namespace runtime = gdpo::runtime;
  for (const auto* names : {&runtime::loss_names(), &runtime::estimator_names()}) {
    for (const std::string& name : *names) {
      const std::string slip = name + "x";
      INFO(slip);
      const auto near = near_names(slip, *names);
      CHECK(std::find(near.begin(), near.end(), name) != near.end());
    }
  }
}

TEST_CASE("messages about unknown names say what is near", "[near][errors]") {
  namespace runtime = gdpo::runtime;
  const auto ends = [](const std::string& message, const std::string& end) {
    INFO(message);
    CHECK((message.size() >= end.size() &&
           message.compare(message.size() - end.size(), end.size(), end) == 0));
  };
  ends(message_of([] { runtime::loss("dpao"); }), "; did you mean \"dapo\"?");
  ends(message_of([] { runtime::estimator("trl:gdpo"); }), "; did you mean \"trl::gdpo\"?");
  ends(message_of([] { runtime::configured_loss("dapo lwo=0.1"); }),
       "; did you mean \"surrogate.low\"?");
  ends(message_of([] { runtime::configured_estimator("gdpo scale.of=batches"); }),
       "; did you mean \"batch\"?");
  CHECK(message_of([] { runtime::loss("nothing"); }).find("did you mean") == std::string::npos);
}
