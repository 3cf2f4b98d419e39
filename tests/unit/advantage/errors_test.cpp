// labels: sanitizers
// Every mistake of a caller: the message names the function, the argument, what was given and what
// is needed, and nothing is written.
#include <functional>
#include <gdpo/runtime.hpp>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace errors_test {

namespace {

const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

void expect(const std::function<void()>& call, const std::vector<std::string>& words) {
  std::string message = "nothing was thrown";
  try {
    call();
  } catch (const gdpo::invalid_input& e) {
    message = e.what();
  }
  for (const std::string& word : words) {
    INFO(message);
    CHECK(message.find(word) != std::string::npos);
  }
  INFO(message);
  CHECK(message.find("gdpo::") == 0);
  CHECK(message.find(": given ") != std::string::npos);
  CHECK(message.find("; needed: ") != std::string::npos);
}

/// A batch of 4 rows and 2 rewards in groups of 2. `fails` checks the message of a call on it, and
/// that the call leaves `out` as it was.
struct Call {
  std::vector<double> rewards{1, 2, 3, 4, 5, 6, 7, 9}, tokens{1, 2, 3, 4};
  gdpo::RewardBatch<double, gdpo::GroupsOf> batch{gdpo::view(rewards.data(), 4, 2),
                                                  gdpo::groups_of(2)};

  template <class Estimator>
  void fails(const Estimator& e, const std::vector<std::string>& words) {
    std::vector<double> out(4, 42.0);
    gdpo::Workspace workspace;
    expect([&] { gdpo::advantages_into(gdpo::seq, batch, e, gdpo::view(out), workspace); }, words);
    for (const double x : out) CHECK(x == 42);
  }
};

template <class Estimator = gdpo::Gdpo, class Change>
void rejects(const Change& change, const std::vector<std::string>& words) {
  Estimator e;
  change(e);
  Call().fails(e, words);
}

}  // namespace

TEST_CASE("groups that do not fit", "[errors]") {
  expect([] { gdpo::groups_of(0); }, {"groups_of", "K", "given 0", "at least 1"});
  expect([] { gdpo::groups_of(-3); }, {"groups_of", "-3"});
  const std::vector<double> rewards(10, 1.0);
  const auto view = gdpo::view(rewards.data(), 10, 1);
  expect([&] { gdpo::advantages(view, gdpo::groups_of(4)); },
         {"advantages", "groups", "10 rows", "number 2", "of 2", "multiple of 4"});

  const auto offsets = [&](std::vector<std::int64_t> o, gdpo::index_t size = 0) {
    gdpo::advantages(view, gdpo::by_offsets(o, size));
  };
  expect([&] { offsets({}); }, {"offsets", "no entries", "10"});
  expect([&] { offsets({1, 10}); }, {"offsets", "from 1 to 10", "from 0 to 10"});
  expect([&] { offsets({0, 5, 9}); }, {"offsets", "to 9", "to 10, the number of rows"});
  expect(
      [&] {
        offsets({0, 7, 3, 10});
      },
      {"offsets[2] = 3", "offsets[1] = 7", "group 1", "never decrease"});
  expect(
      [&] {
        offsets({0, 5, 8, 10}, 5);
      },
      {"3 rows in group 1", "5 rows in every group", "expected_size"});
  expect([&] { offsets({0, 5, 5, 10}, 5); }, {"0 rows in group 1"});
  offsets({0, 5, 10}, 5);

  const std::vector<int> ids{7, 7, 3, 3, 3};
  expect([&] { gdpo::by_id(ids, 2); }, {"by_id", "3 rows of id 3", "2 rows of every id"});
  expect([&] { gdpo::by_id(ids, 3); }, {"2 rows of id 7", "3 rows of every id"});
  expect([&] { gdpo::advantages(view, gdpo::by_id(ids)); }, {"advantages", "5 ids", "10 rows"});
}

TEST_CASE("numbers that are no enumerators", "[errors]") {
  rejects([](auto& e) { e.missing.entry = static_cast<gdpo::MissingEntry>(4); },
          {"missing.entry: given 4, which is no enumerator", "skip, zero, propagate, reject"});
  rejects([](auto& e) { e.missing.row = static_cast<gdpo::MissingRow>(9); }, {"missing.row"});
  rejects([](auto& e) { e.missing.infinite = static_cast<gdpo::InfiniteEntry>(9); },
          {"missing.infinite"});
  rejects([](auto& e) { e.missing.unused = static_cast<gdpo::UnusedRow>(2); }, {"missing.unused"});
  rejects<gdpo::Grpo>([](auto& e) { e.singleton = static_cast<gdpo::Singleton>(-1); },
                      {"singleton: given -1, which is no enumerator"});
  rejects([](auto& e) { e.scale.of = static_cast<gdpo::scale::Of>(4); }, {"scale.of: given 4"});
  rejects([](auto& e) { e.renorm.eps_at = static_cast<gdpo::EpsAt>(6); },
          {"renorm.eps_at: given 6"});
}

TEST_CASE("weights and gates that do not fit", "[errors]") {
  rejects([](auto& e) { e.weights = {1, 1, 1}; }, {"weights", "3 weights", "2 rewards"});
  rejects([](auto& e) { e.weights = {1}; }, {"weights", "1 weights", "2 rewards"});
  rejects([](auto& e) { e.weights = {1, no}; }, {"weights[1]", "nan", "finite"});
  rejects<gdpo::Grpo>([](auto& e) { e.weights = {-inf, 1}; }, {"weights[0]", "-inf", "finite"});
  rejects([](auto& e) { e.gates = {gdpo::Gate{2, 0, 1}}; }, {"gates", "reward 2", "from 0 to 1"});
  rejects([](auto& e) { e.gates = {gdpo::Gate{0, -1, 1}}; }, {"gates", "reward -1", "from 0 to 1"});
  rejects([](auto& e) { e.gates = {gdpo::Gate{0, 1, no}}; }, {"gates.at_least", "nan"});
  const std::vector<gdpo::Gate> many(17);
  expect([&] { gdpo::List<gdpo::Gate, 16>(many.data(), 17); }, {"17 entries", "at most 16"});
}

TEST_CASE("settings out of range", "[errors]") {
  rejects([](auto& e) { e.scale.ddof = -1; },
          {"scale.ddof", "given -1", "at least 0 (0: population)"});
  rejects([](auto& e) { e.scale.eps = -1e-4; }, {"scale.eps", "-0.0001", "at least 0"});
  rejects<gdpo::Grpo>([](auto& e) { e.scale.eps = no; }, {"scale.eps", "nan"});
  rejects([](auto& e) { e.scale.eps = inf; }, {"scale.eps", "inf"});
  rejects([](auto& e) { e.renorm.ddof = -2; }, {"renorm.ddof", "-2"});
  rejects([](auto& e) { e.renorm.eps = no; }, {"renorm.eps", "nan"});
  rejects([](auto& e) { e.renorm.count_eps = -1; }, {"renorm.count_eps", "-1"});
}

TEST_CASE("columns that do not fit", "[errors]") {
  const std::vector<double> three{1, 2, 3};
  const auto column = [&](const char* name,
                          gdpo::Column gdpo::RewardBatch<double, gdpo::GroupsOf>::*member) {
    Call call;
    call.batch.*member = gdpo::view(three);
    call.fails(gdpo::Gdpo{}, {std::string("batch.") + name, "3 entries", "4 rows"});
  };
  using Batch = gdpo::RewardBatch<double, gdpo::GroupsOf>;
  column("tokens", &Batch::tokens);
  column("valid", &Batch::valid);
  column("baseline", &Batch::baseline);
  column("penalty", &Batch::penalty);
  column("weights", &Batch::weights);

  for (const double bad : {-1.0, no, inf}) {
    Call call;
    call.tokens[2] = bad;
    call.batch.tokens = gdpo::view(call.tokens);
    call.fails(gdpo::Gdpo{}, {"batch.tokens(2)", "at least 0"});
  }
  Call().fails(gdpo::verl::gdpo, {"batch.tokens", "no column", "renorm.over is Tokens"});

  Call call;
  std::vector<double> out(3, 42.0);
  gdpo::Workspace workspace;
  expect(
      [&] {
        gdpo::advantages_into(gdpo::seq, call.batch, gdpo::Gdpo{}, gdpo::view(out), workspace);
      },
      {"out", "3 entries", "4 rows"});
}

TEST_CASE("a penalty without its column or its place", "[errors]") {
  rejects([](auto& e) { e.penalty = {no, 0}; }, {"penalty.coef", "nan"});
  rejects<gdpo::Grpo>(
      [](auto& e) {
        e.penalty = {0.1, -1};
      },
      {"batch.penalty", "no column", "penalty.coef is not 0"});
  Call call;
  call.batch.penalty = gdpo::view(call.tokens);
  gdpo::Grpo grpo;
  grpo.penalty = {0.1, 1};
  call.fails(grpo, {"penalty.reward", "given 1", "-1", "SumThenNormalize"});
  for (const gdpo::index_t reward : {-1, 2}) {
    gdpo::Gdpo gdpo;
    gdpo.penalty = {0.1, reward};
    call.fails(gdpo, {"penalty.reward", std::to_string(reward), "from 0 to 1", "NormalizeThenSum"});
  }
  gdpo::Gdpo off;
  off.penalty = {0, 7};  // a coef of 0 turns the penalty off: nothing of it is checked
  CHECK_NOTHROW(gdpo::advantages(gdpo::seq, Call().batch, off));
}

TEST_CASE("what the settings turn into an error", "[errors]") {
  const auto reject = [](auto e) {
    e.missing.entry = gdpo::MissingEntry::Reject;
    return e;
  };
  Call call;
  call.rewards[5] = no;
  call.fails(reject(gdpo::Gdpo{}), {"rewards", "NaN in row 2, reward 1", "Reject"});
  call.fails(reject(gdpo::Grpo{}), {"row 2, reward 1"});
  call.fails(reject(gdpo::Rloo{}), {"row 2, reward 1"});
  gdpo::Gdpo without = reject(gdpo::Gdpo{});
  without.weights = {1, 0};
  CHECK_NOTHROW(gdpo::advantages(gdpo::seq, call.batch, without));
  const std::vector<double> valid{1, 1, 0, 1};
  call.batch.valid = gdpo::view(valid);
  // An unused row may hold anything.
  CHECK_NOTHROW(gdpo::advantages(gdpo::seq, call.batch, reject(gdpo::Gdpo{})));
  CHECK_NOTHROW(gdpo::advantages(gdpo::seq, call.batch, reject(gdpo::Grpo{})));

  Call lone;
  const std::vector<double> third{1, 1, 0, 1};
  lone.batch.valid = gdpo::view(third);
  gdpo::Gdpo e;
  e.singleton = gdpo::Singleton::Error;
  lone.fails(e, {"groups", "one used row in group 1", "two or more", "Error"});
  gdpo::Rloo rloo;
  rloo.singleton = gdpo::Singleton::Error;
  lone.fails(rloo, {"one used row in group 1"});
}

TEST_CASE("broadcast to tokens of another shape", "[errors]") {
  std::vector<double> a(2), mask(6, 1.0), out(6, 42.0);
  const auto broadcast = [&](gdpo::index_t rows, gdpo::index_t length, gdpo::index_t out_rows,
                             gdpo::index_t out_length) {
    gdpo::broadcast_into(gdpo::view(a), gdpo::view(mask.data(), rows, length),
                         gdpo::view(out.data(), out_rows, out_length));
  };
  expect([&] { broadcast(3, 2, 2, 2); }, {"broadcast_into", "(3, 2)", "N = 2"});
  expect([&] { broadcast(2, 3, 3, 2); }, {"(2, 3) and (3, 2)"});
  expect([&] { broadcast(2, 3, 2, 2); }, {"(2, 2)"});
  for (const double x : out) CHECK(x == 42);
  broadcast(2, 3, 2, 3);
  CHECK(out[0] == 0);
}

TEST_CASE("an unknown name lists the known ones", "[errors][runtime]") {
  std::vector<std::string> words{"estimator", "name", "'gdop'", "one of "};
  for (const std::string& name : gdpo::runtime::estimator_names()) words.push_back(name);
  expect([] { gdpo::runtime::estimator("gdop"); }, words);
  expect([] { gdpo::runtime::estimator(""); }, {"''"});
}

}  // namespace errors_test
