// labels: sanitizers
// Objects that have been moved from: each is empty, or refuses a call in words. None remembers the
// number of elements that are gone.
#include <gdpo/constraint.hpp>
#include <gdpo/gdpo.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace moved_test {

namespace {

using gdpo::index_t, gdpo::view;

/// Moves an object away, calls check(moved-from object), moves it back and returns whether it is as
/// before, as `same` says.
template <class Object, class Check>
Object moved_and_back(Object object, const Check& check) {
  Object taken = std::move(object);
  check(std::as_const(object));  // NOLINT(bugprone-use-after-move): what this test is about
  object = std::move(taken);
  check(std::as_const(taken));  // NOLINT(bugprone-use-after-move)
  return object;
}
const std::string none = "; needed: at least 0 and below 0";

}  // namespace

TEST_CASE("moved from: plans, packings and shardings have no parts", "[moved]") {
  gdpo::update::PlanSettings settings;
  settings.mini_batches = 2, settings.accumulation = 2, settings.micro_batch = 0,
  settings.ranks = 2, settings.epochs = 2;
  settings.shuffle = gdpo::update::Shuffle::EveryEpoch;
  const auto plan = moved_and_back(gdpo::update::plan(16, settings), [](const auto& p) {
    CHECK(p.steps() == 0);
    CHECK(p.epochs() == 0);
    CHECK(p.ranks() == 0);
    CHECK(p.mini_batches() == 0);
    CHECK(p.largest_micro_batch() == 0);
    const std::string rows =
        "gdpo::update::Plan::rows: step: given 0" + none + ", the number of steps";
    CHECK(message_of([&] { p.rows(0); }) == rows);
    CHECK(message_of([&] { p.rows(0, 0, 0); }) == rows);
    CHECK(message_of([&] { p.dropped(0); }) ==
          "gdpo::update::Plan::dropped: epoch: given 0" + none + ", the number of epochs");
  });
  CHECK(plan.steps() == 4);
  CHECK(plan.rows(3, 1, 1).extent[0] == 2);
  CHECK(plan.largest_micro_batch() == 2);

  const std::vector<int> lengths{5, 7, 3};
  const auto packing = moved_and_back(gdpo::update::pack(lengths, 10), [](const auto& p) {
    CHECK(p.packs() == 0);
    CHECK(p.waste() == 0);
    CHECK(p.order().extent[0] == 0);
    CHECK(p.row_offsets().extent[0] == 0);
    CHECK(message_of([&] { p.rows(0); }) == "gdpo::update::Packing::rows: pack: given 0" + none);
    CHECK(message_of([&] { p.offsets(0); }) ==
          "gdpo::update::Packing::offsets: pack: given 0" + none);
    CHECK(message_of([&] { p.tokens(0); }) ==
          "gdpo::update::Packing::tokens: pack: given 0" + none);
  });
  CHECK(packing.packs() == 2);
  CHECK(packing.waste() == 0.25);

  const auto sharding = moved_and_back(gdpo::update::shard(lengths, 2), [](const auto& s) {
    CHECK(s.ranks() == 0);
    CHECK(s.imbalance() == 1);
    CHECK(message_of([&] { s.rows(0); }) == "gdpo::update::Sharding::rows: rank: given 0" + none);
    CHECK(message_of([&] { s.cost(0); }) == "gdpo::update::Sharding::cost: rank: given 0" + none);
    CHECK(message_of([&] { s.rank_of(0); }) ==
          "gdpo::update::Sharding::rank_of: row: given 0" + none);
  });
  CHECK(sharding.ranks() == 2);
  CHECK(sharding.imbalance() > 1);
}

TEST_CASE("moved from: groups by id are none, and a batch with them is refused", "[moved]") {
  const std::vector<double> rewards{1, 0, 0, 1};
  const auto groups = moved_and_back(gdpo::by_id(std::vector<int>{3, 3, 5, 5}), [&](const auto& g) {
    CHECK(g.count(0) == 0);
    CHECK(g.count(4) == 0);
    CHECK(g.ids().extent[0] == 0);
    CHECK(message_of([&] { gdpo::advantages(view(rewards.data(), 4, 1), g); }) ==
          "gdpo::advantages: groups: given 0 ids; needed: one id for each of the 4 rows");
    CHECK(gdpo::advantages(view(rewards.data(), 0, 1), g).empty());
  });
  CHECK(groups.count(4) == 2);
}

TEST_CASE("moved from: what ranks have gathered", "[moved]") {
  const std::vector<double> rewards{1, 0, 0, 1};
  const std::vector<index_t> offsets{0, 2, 4};
  const auto check = [&](const auto& groups) {
    const gdpo::RewardBatch batch{view(rewards.data(), 4, 1), groups};
    const auto all =
        moved_and_back(gdpo::dist::gather_rows(gdpo::dist::Single{}, batch), [](const auto& rows) {
          CHECK(rows.rows() == 0);
          CHECK(rows.own_rows().empty());
          CHECK(rows.split_groups() == 0);
          CHECK(rows.incomplete_groups(2).empty());
          CHECK(message_of([&] { rows.batch(); }) ==
                "gdpo::dist::GatheredRows::batch: object: given one that has been moved from; "
                "needed: one that holds rows");
        });
    CHECK(gdpo::advantages(gdpo::seq, all.batch(), gdpo::Gdpo{}) ==
          gdpo::advantages(gdpo::seq, batch, gdpo::Gdpo{}));
  };
  check(gdpo::groups_of(2));
  check(gdpo::by_offsets(view(offsets)));
  check(gdpo::by_id(std::vector<int>{0, 0, 1, 1}));

  const std::vector<float> logp{-1, -2, -3, -4};
  const std::vector<double> advantages{1, -1};
  for (const bool packed : {false, true}) {
    gdpo::TokenBatch<float> batch;
    batch.logp = packed ? gdpo::TokenView<float>(view(logp)) : view(logp.data(), 2, 2);
    if (packed) batch.offsets = view(offsets);
    batch.advantages = view(advantages);
    const gdpo::dist::Single one;
    gdpo::dist::GatheredTokens<float> tokens = gdpo::dist::gather_tokens(one, batch);
    const gdpo::Normalizer counts = gdpo::count(tokens.batch());
    gdpo::dist::GatheredTokens<float> taken = std::move(tokens);
    CHECK(message_of([&] { gdpo::dapo_loss(tokens.batch(), counts); }) ==
          "gdpo::PolicyLoss: batch.logp: given no array; needed: the log-probs of the policy being "
          "trained");
    const gdpo::TokenOut<float> gradient = tokens.gradient();
    CHECK(!gradient);
    std::vector<float> out(4, 7);
    tokens.own_into(view(out.data(), 2, 2));
    CHECK(out == std::vector<float>(4, 7));
    gdpo::dapo_loss(taken.batch(), counts, taken.gradient());
    taken.own_into(packed ? gdpo::TokenOut<float>(view(out)) : view(out.data(), 2, 2));
    CHECK(out != std::vector<float>(4, 7));
  }
}

TEST_CASE("moved from: memory of calls and controllers", "[moved]") {
  const std::vector<double> rewards{1, 0, 0, 1};
  const gdpo::RewardBatch batch{view(rewards.data(), 4, 1), gdpo::groups_of(2)};
  std::vector<double> out(4, 7);
  gdpo::Workspace workspace;
  const auto moments = gdpo::first_stage(gdpo::seq, batch, gdpo::Gdpo{}, workspace);
  gdpo::Workspace taken = std::move(workspace);
  CHECK(message_of(
            [&] { gdpo::finish(gdpo::seq, batch, gdpo::Gdpo{}, moments, view(out), workspace); }) ==
        "gdpo::finish: workspace: given one that first_stage() has not used last; needed: "
        "that of first_stage() with this batch and estimator");
  CHECK(workspace.sums().extent[0] == 0);
  CHECK(out == std::vector<double>(4, 7));
  gdpo::finish(gdpo::seq, batch, gdpo::Gdpo{}, moments, view(out), taken);
  CHECK(out == gdpo::advantages(gdpo::seq, batch, gdpo::Gdpo{}));
  gdpo::advantages_into(gdpo::seq, batch, gdpo::Gdpo{}, view(out), workspace);
  CHECK(out == gdpo::advantages(gdpo::seq, batch, gdpo::Gdpo{}));

  gdpo::PidLagrangian pid(gdpo::PidGains{}, 2);
  const gdpo::PidLagrangian other = std::move(pid);
  CHECK(pid.size() == 0);
  CHECK(pid.lambda().extent[0] == 0);
  CHECK(message_of([&] { pid.lambda(0); }) ==
        "gdpo::PidLagrangian::lambda: c: given 0; needed: one of 0 constraints");
  CHECK(message_of([&] {
          pid.update({1.0, 2.0});
        }) ==
        "gdpo::PidLagrangian::update: values: given 2; needed: one for each of the 0 constraints");
  CHECK(pid.update(std::vector<double>{}).empty());
  CHECK(message_of([&] { pid.restore(other.state()); }) != "no error");
}

}  // namespace moved_test
