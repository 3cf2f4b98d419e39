// labels: sanitizers
// The errors of placements, mix_into, column and measure: the message names the argument, and
// nothing is written. Those of a constraint stand in tests/refusals/advantages.json.
#include <gdpo/constraint.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/renormed.hpp"
#include "support/tolerance.hpp"

namespace constrained_errors_test {

namespace {

const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

/// A call with 4 rows in groups of 2 and 4 rewards, of which tests constrain one or several. It
/// checks that a refused call leaves `out` as it was.
struct Call {
  std::vector<double> rewards{1, 2, 3, 4, 5, 6, 7, 9, 2, 1, 0, 3, 1, 4, 2, 2}, kl{1, 2, 3, 4};
  gdpo::RewardBatch<double, gdpo::GroupsOf> batch{gdpo::view(rewards.data(), 4, 4),
                                                  gdpo::groups_of(2)};

  template <class E, class P>
  std::string message(const E& estimator, const P& placement,
                      const gdpo::List<gdpo::Constraint, 16>& constraints) const {
    std::vector<double> out(4, 42.0);
    gdpo::Workspace workspace;
    const std::string text = message_of([&] {
      gdpo::advantages_into(gdpo::seq, batch, gdpo::Constrained{estimator, placement, constraints},
                            gdpo::view(out), workspace);
    });
    for (const double x : out) {
      if (text != "no error") CHECK(x == 42);
    }
    return text;
  }
  template <class E = gdpo::Gdpo, class P = gdpo::placement::FixedScale>
  std::string message(const gdpo::List<gdpo::Constraint, 16>& constraints, const P& placement = {},
                      const E& estimator = {}) const {
    return message(estimator, placement, constraints);
  }
};

gdpo::Constraint on(gdpo::index_t reward, double lambda = 1, double limit = 0, double scale = 1) {
  return {reward, lambda, limit, scale};
}
const std::string at = "gdpo::advantages: ";

}  // namespace

TEST_CASE("constraints and norms of every placement", "[errors][constraint]") {
  const Call call;
  // Constraints are checked under every placement.
  CHECK(call.message({on(7)}, gdpo::placement::Composite{0}).find("constraints[0].reward") !=
        std::string::npos);
  CHECK(call.message({on(7)}, gdpo::placement::AdvantageMix{}).find("constraints[0].reward") !=
        std::string::npos);
  CHECK(call.message({on(2), on(3), on(2)}) == "no error");
  const auto beyond = static_cast<gdpo::LambdaNorm>(3);
  const std::string norm =
      at + "placement.norm: given 3, which is no enumerator; needed: one of none, sum, diff";
  CHECK(call.message({on(2)}, gdpo::placement::NormalizeThenCombine{beyond}) == norm);
  CHECK(call.message({on(2)}, gdpo::placement::FixedScale{beyond}) == norm);
  CHECK(call.message({on(2)}, gdpo::placement::AdvantageMix{beyond}) == norm);
}

TEST_CASE("the reward that carries the violations of Composite", "[errors][constraint]") {
  const Call call;
  using gdpo::placement::Composite;
  const std::string needed =
      "; needed: the primary reward that carries the violations (-1: the only one): each is "
      "standardized by itself";
  CHECK(call.message({on(2)}, Composite{}) ==
        at + "placement.reward: given -1, with 3 primary rewards" + needed);
  CHECK(call.message({on(2)}, Composite{9}) ==
        at + "placement.reward: given 9, with 3 primary rewards" + needed);
  CHECK(call.message({on(2)}, Composite{2}) ==
        at + "placement.reward: given 2, with 3 primary rewards" + needed);
  CHECK(call.message({on(0), on(1), on(2), on(3)}, Composite{}) ==
        at + "placement.reward: given -1, with 0 primary rewards" + needed);
  CHECK(call.message({on(2)}, Composite{3}) == "no error");
  CHECK(call.message({on(1), on(2), on(3)}, Composite{}) == "no error");
  CHECK(call.message({on(2)}, Composite{0}, gdpo::Grpo{}) ==
        at + "placement.reward: given 0; needed: -1: the violations enter the weighted sum");
  CHECK(call.message({on(2)}, Composite{}, gdpo::Grpo{}) == "no error");
}

TEST_CASE("what the estimator itself refuses, it refuses under constraints",
          "[errors][constraint]") {
  const auto every = [](const Call& call, const auto& estimator, const std::string& words) {
    const gdpo::List<gdpo::Constraint, 16> constraints{on(2)};
    for (const std::string& message :
         {call.message(constraints, gdpo::placement::Composite{-1}, estimator),
          call.message(constraints, gdpo::placement::NormalizeThenCombine{}, estimator),
          call.message(constraints, gdpo::placement::FixedScale{}, estimator),
          call.message(constraints, gdpo::placement::AdvantageMix{}, estimator)}) {
      INFO(message);
      CHECK(message.find(words) != std::string::npos);
    }
  };
  Call call;
  gdpo::Grpo e;
  e.weights = {1};
  every(call, e, "weights: given 1 weights; needed: one for each of the 4 rewards");
  e.weights = {1, no, 0, 0};
  every(call, e, "weights[1]: given ");
  e = {};
  e.penalty.coef = no;
  call.batch.penalty = gdpo::view(call.kl);
  every(call, e, "penalty.coef: given ");
  e = {};
  e.scale.ddof = -1;
  every(call, e, "scale.ddof: given -1");
  e = {};
  e.missing.entry = gdpo::MissingEntry::Reject;
  call.rewards[6] = no;
  every(call, e,
        "rewards: given NaN in row 1, reward 2; needed: a number, because missing.entry is Reject");
  const std::vector<double> valid{1, 0, 1, 1};
  call.batch.valid = gdpo::view(valid);  // an unused row may hold anything
  every(call, e, "no error");
  call.rewards[4] = no;
  call.rewards[6] = 0;
  call.batch.valid = {};
  every(call, e, "rewards: given NaN in row 1, reward 0");
  gdpo::Gdpo carrying;
  carrying.missing.entry = gdpo::MissingEntry::Reject;
  CHECK(call.message({on(2)}, gdpo::placement::Composite{0}, carrying)
            .find("NaN in row 1, reward 0;") != std::string::npos);
  call.rewards[6] = no;
  const std::vector<double> three{1, 1, 1};
  call.batch.valid = gdpo::view(three);
  every(call, e, "batch.valid: given 3 entries; needed: one for each of the 4 rows");
  call = {};
  call.batch.groups = gdpo::groups_of(3);
  every(call, e, "groups: given 4 rows, which leaves a last group (number 1) of 1");
  call = {};
  e = {};
  e.singleton = gdpo::Singleton::Error;
  const std::vector<double> lone{1, 0, 1, 1};
  call.batch.valid = gdpo::view(lone);
  every(call, e, "groups: given one used row in group 0");

  const auto whitened = renormed(gdpo::Grpo{}, gdpo::renorm::token_weighted_batch());
  every(Call{}, whitened, "batch.tokens: given no column");
  // A constraint with lambda 0 is not applied, so its missing reward is not rejected.
  Call missing;
  missing.rewards[6] = no;
  e = {};
  e.missing.entry = gdpo::MissingEntry::Reject;
  CHECK(missing.message({on(2, 0)}, gdpo::placement::FixedScale{}, e) == "no error");
}

TEST_CASE("more rewards than weights can name", "[errors][constraint]") {
  std::vector<double> rewards(2 * 65);
  for (std::size_t i = 0; i < rewards.size(); ++i) rewards[i] = static_cast<double>(i * i % 17);
  const auto run = [&](gdpo::index_t columns, auto placement,
                       const std::vector<gdpo::Constraint>& constraints) {
    return message_of([&] {
      gdpo::advantages(gdpo::view(rewards.data(), 2, columns), gdpo::groups_of(2),
                       gdpo::Constrained{gdpo::Grpo{}, placement, constraints});
    });
  };
  // The call of the estimator itself.
  CHECK(run(65, gdpo::placement::FixedScale{}, {}) == "no error");
  CHECK(run(65, gdpo::placement::FixedScale{}, {on(1)}) ==
        at + "estimator.weights: given none, for 65 rewards; needed: one a reward, 0 for those "
             "that are only "
             "constrained, where there are more than 64");
  CHECK(run(64, gdpo::placement::FixedScale{}, {on(1)}) == "no error");
  CHECK(run(63, gdpo::placement::Composite{}, {on(1)}) == "no error");
  CHECK(run(63, gdpo::placement::Composite{}, {on(1), on(2)}) ==
        at + "constraints: given 63 rewards and 2 constraints; needed: at most 64 rewards together "
             "with "
             "placement::Composite");
}

TEST_CASE("advantages under constraints need an out of their length", "[errors][constraint]") {
  const Call call;
  std::vector<double> out(3, 42.0);
  gdpo::Workspace workspace;
  CHECK(message_of([&] {
          gdpo::advantages_into(gdpo::seq, call.batch, gdpo::Constrained<>{}, gdpo::view(out),
                                workspace);
        }) == at + "out: given 3 entries; needed: one for each of the 4 rows");
  CHECK(out == std::vector<double>(3, 42.0));
}

TEST_CASE("mix_into with shapes and multipliers that do not fit", "[errors][constraint]") {
  const std::vector<double> reward{1, 2, 3}, costs{1, 2, 3, 4, 5, 6};
  const auto run = [&](gdpo::index_t n, gdpo::index_t m, gdpo::index_t columns,
                       const std::vector<double>& lambda,
                       gdpo::LambdaNorm norm = gdpo::LambdaNorm::Sum) {
    std::vector<double> out(3, 42.0);
    const std::string message = message_of([&] {
      gdpo::mix_into(gdpo::view(reward.data(), n), gdpo::view(costs.data(), m, columns),
                     gdpo::view(lambda), norm, gdpo::view(out));
    });
    if (message != "no error") CHECK(out == std::vector<double>(3, 42.0));
    return message;
  };
  const std::string shapes = "gdpo::mix_into: reward_advantages, cost_advantages, lambda: given ";
  const std::string needed = "; needed: (N), (m, N) and (m), with N = 3, the length of out";
  CHECK(run(2, 2, 3, {1, 1}) == shapes + "(2), (2, 3) and (2)" + needed);
  CHECK(run(3, 2, 2, {1, 1}) == shapes + "(3), (2, 2) and (2)" + needed);
  CHECK(run(3, 2, 3, {1}) == shapes + "(3), (2, 3) and (1)" + needed);
  CHECK(run(3, 2, 3, {1, -0.5}) ==
        "gdpo::mix_into: lambda(1): given -0.5; needed: a finite number of at least 0");
  CHECK(run(3, 2, 3, {inf, 1}) ==
        "gdpo::mix_into: lambda(0): given inf; needed: a finite number of at least 0");
  CHECK(run(3, 2, 3, {no, 1}).find("lambda(0): given ") != std::string::npos);
  CHECK(run(3, 2, 3, {1e308, 1e308}) ==
        "gdpo::mix_into: lambda: given multipliers without a finite sum; needed: a finite sum");
  CHECK(run(3, 2, 3, {1, 1}, static_cast<gdpo::LambdaNorm>(3)) ==
        "gdpo::mix_into: norm: given 3, which is no enumerator; needed: one of none, sum, diff");
  CHECK(run(3, 0, 0, {}) == "no error");
}

TEST_CASE("mix_into by hand: norms, in place, what a multiplier of 0 leaves unread",
          "[constraint]") {
  const std::vector<double> lambda{0.25, 0, 0.5};
  const std::vector<double> costs{4, -8, no, inf, 1, 2};
  const auto run = [&](gdpo::LambdaNorm norm) {
    std::vector<double> a{1, 2};
    gdpo::mix_into(gdpo::view(std::as_const(a)), gdpo::view(costs.data(), 3, 2), gdpo::view(lambda),
                   norm, gdpo::view(a));
    return a;
  };
  CHECK(run(gdpo::LambdaNorm::None) == std::vector<double>{-0.5, 3});
  CHECK(run(gdpo::LambdaNorm::Sum) == std::vector<double>{-0.5 / 1.75, 3 / 1.75});
  CHECK(run(gdpo::LambdaNorm::Diff) == std::vector<double>{0.25 - 1.5, 0.5 + 1});
  // Under Diff the weight of the reward, 1 - sum lambda, never goes below 0.
  const std::vector<double> large{2, 0, 1};
  std::vector<double> beyond{1, 2};
  gdpo::mix_into(gdpo::view(std::as_const(beyond)), gdpo::view(costs.data(), 3, 2),
                 gdpo::view(large), gdpo::LambdaNorm::Diff, gdpo::view(beyond));
  CHECK(beyond == std::vector<double>{-9, 14});
  // With float in and out the mix is computed in double and rounded once.
  const std::vector<float> reward{0.1F}, cost{0.3F};
  const std::vector<double> third{1.0 / 3};
  std::vector<float> out(1);
  gdpo::mix_into(gdpo::view(reward), gdpo::view(cost.data(), 1, 1), gdpo::view(third),
                 gdpo::LambdaNorm::Sum, gdpo::view(out));
  CHECK(out[0] ==
        static_cast<float>((static_cast<double>(0.1F) - third[0] * static_cast<double>(0.3F)) /
                           (1 + third[0])));
}

TEST_CASE("column and measure name what does not fit", "[errors][constraint]") {
  const std::vector<double> table{1, 2, 3, 4, 5, 6};
  const auto view = gdpo::view(table.data(), 2, 3);
  CHECK(message_of([&] { gdpo::column(view, 3); }) ==
        "gdpo::column: c: given 3; needed: one of 3 columns");
  CHECK(message_of([&] { gdpo::column(view, -1); }) ==
        "gdpo::column: c: given -1; needed: one of 3 columns");
  const auto second = gdpo::column(view, 1);
  CHECK(second.extent[0] == 2);
  CHECK(second(0) == 2);
  CHECK(second(1) == 5);
  const gdpo::View<const double, 2> transposed{table.data(), {3, 2}, {1, 3}};
  CHECK(gdpo::column(transposed, 1)(2) == 6);

  const auto measure = [&](const gdpo::SetPoint& s, const gdpo::Column& valid = {}) {
    return message_of([&] { gdpo::measure(second, s, valid); });
  };
  CHECK(measure({inf}) == "gdpo::measure: set_point.limit: given inf; needed: a finite number");
  CHECK(measure({no}).find("set_point.limit: given ") != std::string::npos);
  CHECK(measure({0, 0}) ==
        "gdpo::measure: set_point.scale: given 0; needed: a finite number that is more than 0 (its "
        "inverse too)");
  CHECK(measure({0, no}).find("set_point.scale: given ") != std::string::npos);
  const std::vector<double> three{1, 1, 1};
  CHECK(measure({}, gdpo::view(three)) ==
        "gdpo::measure: valid: given 3 entries; needed: one for each of the 2 values");
}

}  // namespace constrained_errors_test
