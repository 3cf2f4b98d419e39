// labels: sanitizers
// update::Step: the counts of a step before its first loss, the sum of its micro-batches and ranks
// whatever the order in which they are added, and every call that it refuses. That the sum is the
// loss of one batch of all rows is the law of property/update/update_law_test.cpp. merge() of
// LossResult, by which the sum is made, stands at the end.
#include <gdpo/advantages.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/presets/paper.hpp>
#include <gdpo/update/step.hpp>

#include "support/catch.hpp"
#include "support/loss_calls.hpp"
#include "support/message.hpp"
#include "support/thread_ranks.hpp"

namespace step_test {

namespace {

using gdpo::index_t;
using gdpo::LossResult;
using gdpo::Normalizer;
using gdpo::update::Step;
using test::on_ranks;
using test::ThreadRank;

/// One row of so many tokens, on-policy: the surrogate of each token is -advantage.
class Row {
 public:
  Row(int tokens, double advantage)
      : logp_(static_cast<std::size_t>(tokens), -1.0), advantage_{advantage} {}
  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    b.logp = gdpo::view(logp_.data(), 1, static_cast<index_t>(logp_.size()));
    b.advantages = gdpo::view(advantage_);
    return b;
  }

 private:
  std::vector<double> logp_, advantage_;
};
using Rows = std::vector<Row>;

/// Micro-batches of one row each: 3 tokens of advantage 1, 1 token of -2, 2 tokens of 0.5.
const Rows& three_rows() {
  static const Rows rows{{3, 1}, {1, -2}, {2, 0.5}};
  return rows;
}
const Row& row(const Rows& rows, index_t k) { return rows[static_cast<std::size_t>(k)]; }
auto counts_of(const Rows& rows) {
  return [&rows](index_t k) { return gdpo::count(row(rows, k).batch()); };
}
LossResult loss_of(const Row& row, const Normalizer& n) { return gdpo::dapo_loss(row.batch(), n); }

/// Without a rank of its own: the Step of three_rows() in one process.
Step<> step_of_three() { return Step<>(3, counts_of(three_rows())); }

/// What all ranks have thrown, if that is the same; else a complaint.
std::string same_on_all(const std::vector<std::string>& thrown) {
  for (const std::string& what : thrown) {
    if (what != thrown[0]) return "different: \"" + thrown[0] + "\" and \"" + what + "\"";
  }
  return thrown[0];
}
std::vector<double> numbers(const LossResult& r) { return loss_product::numbers(r); }

const std::string of_finish = "gdpo::update::Step::finish: ";

}  // namespace

TEST_CASE("update::Step by hand: three micro-batches of one row", "[update]") {
  Step<> step = step_of_three();
  CHECK(step.normalizer().tokens == 6);
  CHECK(step.normalizer().rows == 3);
  CHECK(step.normalizer().non_empty_rows == 3);
  CHECK(step.normalizer().given == 0);
  for (const index_t k : {2, 0, 1}) {
    LossResult result = loss_of(row(three_rows(), k), step.normalizer());
    result.metrics.non_finite.entropies = {1, 0, k};
    step.add(k, result);
  }
  const LossResult total = step.finish();
  CHECK(total.metrics.non_finite.entropies.count == 3);
  CHECK(total.metrics.non_finite.entropies.token == 0);  // that of micro-batch 0
  // DAPO divides by the tokens of the step: -(3 * 1 - 1 * 2 + 2 * 0.5) / 6.
  CHECK(total.loss == Approx(-2.0 / 6).epsilon(1e-14));
  CHECK(total.policy_loss == total.loss);
  CHECK(total.kl_loss == 0);
  CHECK(total.normalizer.tokens == 6);
  CHECK(total.metrics.rows == 3);
  CHECK(total.metrics.ratio.count == 6);
  CHECK(total.metrics.advantage.n == 6);
  CHECK(total.metrics.advantage.min == -2);
  CHECK(total.metrics.completion_length.row_max == 3);
  CHECK(step.report().rows == 0);
}

TEST_CASE("update::Step does not depend on the order in which micro-batches are added",
          "[update]") {
  Random random(3);
  // Numbers of many magnitudes, whose sum has other bits in most orders.
  Rows rows;
  for (int k = 0; k < 7; ++k)
    rows.push_back({random.below(5), std::pow(10.0, 8 * random.uniform()) - 1e4});
  std::vector<index_t> order{0, 1, 2, 3, 4, 5, 6};
  std::vector<double> first;
  std::set<double> in_order_of_add;
  for (int round = 0; round < 20; ++round) {
    INFO("round " << round);
    Step<> step(7, counts_of(rows));
    LossResult sum;
    for (const index_t k : order) {
      const LossResult result = loss_of(row(rows, k), step.normalizer());
      if (round % 2 == 0) {
        step.add(k, result);
      } else {
        step.add(k, [&] { return result; });
      }
      sum = merge(sum, result);
    }
    const std::vector<double> total = numbers(step.finish());
    if (first.empty()) first = total;
    CHECK(difference(total, first) == "");
    in_order_of_add.insert(sum.loss);
    random.shuffle(order);
  }
  CHECK(in_order_of_add.size() > 1);
}

TEST_CASE("update::Step keeps the bits of one micro-batch on one rank", "[update]") {
  const Rows rows{{5, 0.3}};
  Step<> step(1, counts_of(rows));
  const LossResult result = loss_of(rows[0], step.normalizer());
  step.add(0, result);
  CHECK(difference(numbers(step.finish()), numbers(result)) == "");
}

TEST_CASE("update::Step of no rows: the loss is 0", "[update]") {
  const auto none = [](index_t) { return Normalizer{}; };
  Step<> without_batches(0, none);
  without_batches.set_given(5);
  const LossResult nothing = without_batches.finish();
  CHECK(nothing.loss == 0);
  CHECK(nothing.normalizer.given == 5);
  // A micro-batch without rows may be added or left out.
  Step<> step(3, none);
  step.add(1, LossResult{});
  const LossResult total = step.finish();
  CHECK(total.loss == 0);
  CHECK(total.metrics.rows == 0);
  // One that has rows, but no tokens, has to be there.
  const Rows rows{{0, 1}};
  Step<> empty(1, counts_of(rows));
  CHECK(message_of([&] { empty.finish(); }) ==
        of_finish +
            "micro-batches: given no result of number 0 (1 of 1 missing); needed: "
            "every micro-batch that has rows");
  empty.add(0, loss_of(rows[0], empty.normalizer()));
  CHECK(empty.finish().normalizer.rows == 1);
}

TEST_CASE("update::Step: every kind of result says how many tokens it has", "[update]") {
  // add() compares them with the count; they are known for every set of metrics, for advantages
  // that are NaN or of tokens, and in float.
  std::vector<float> logp{-1, -2, -3, -1, -2, -3};
  const std::vector<unsigned char> mask{1, 0, 1, 0, 0, 0};
  const std::vector<float> advantages{std::nanf(""), 1};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 2, 3), batch.mask = gdpo::view(mask.data(), 2, 3);
  batch.advantages = gdpo::view(advantages);
  const auto check = [&](const auto& loss) {
    Step<> step(1, [&](index_t) { return gdpo::count(batch); });
    CHECK(step.normalizer().tokens == 2);
    CHECK(step.normalizer().non_empty_rows == 1);
    CHECK(message_of([&] { step.add(0, loss(batch, step.normalizer())); }) == "no error");
  };
  check(gdpo::dapo_loss);
  check(gdpo::with_metrics<gdpo::metrics::None>(gdpo::dapo_loss));
  check(gdpo::with_level<gdpo::level::Sequence<>>(gdpo::dapo_loss));
  batch.token_advantages = gdpo::view(logp.data(), 2, 3), batch.advantages = {};
  check(gdpo::with_metrics<gdpo::metrics::Means>(gdpo::dapo_loss));
}

TEST_CASE("update::Step refuses what is not the counted micro-batch, and stays as it was",
          "[update]") {
  Step<> step = step_of_three();
  const Rows& rows = three_rows();
  const Normalizer n = step.normalizer();
  const auto add = [&](index_t k, const LossResult& r) {
    return message_of([&] { step.add(k, r); });
  };
  const std::string of = "gdpo::update::Step::add: ";
  CHECK(add(3, loss_of(rows[0], n)) == of + "k: given 3; needed: a micro-batch from 0 to 2");
  CHECK(add(-1, loss_of(rows[0], n)) == of + "k: given -1; needed: a micro-batch from 0 to 2");
  // The loss of another micro-batch, and of a mask that has lost tokens since the count.
  CHECK(add(1, loss_of(rows[0], n)) ==
        of + "result: given 3 tokens, 1 rows, 1 non-empty rows; needed: 1 tokens, 1 rows, 1 "
             "non-empty rows, as counted for micro-batch 1");
  LossResult fewer = loss_of(rows[0], n);
  fewer.metrics.advantage.n = 2;
  CHECK(add(0, fewer).find("given 2 tokens, 1 rows") != std::string::npos);
  LossResult empty = loss_of(rows[0], n);
  empty.metrics.empty_rows = 1;
  CHECK(add(0, empty).find("1 rows, 0 non-empty rows; needed") != std::string::npos);
  LossResult more = loss_of(rows[0], n);
  more.metrics.rows = 2, more.metrics.empty_rows = 1;
  CHECK(add(0, more).find("given 3 tokens, 2 rows, 1 non-empty") != std::string::npos);
  CHECK(add(0, LossResult{}).find("given 0 tokens, 0 rows, 0 non-empty rows; needed: 3 tokens") !=
        std::string::npos);
  // Counts of the micro-batch alone, or any one of them.
  CHECK(add(0, loss_of(rows[0], gdpo::count(rows[0].batch()))) ==
        of + "result.normalizer: given 3 tokens, 1 rows, 1 non-empty rows, 0 given; needed: 6 "
             "tokens, 3 rows, 3 non-empty rows, 0 given, the normalizer() of the step");
  for (const auto member :
       {&Normalizer::tokens, &Normalizer::rows, &Normalizer::non_empty_rows, &Normalizer::given}) {
    Normalizer other = n;
    other.*member += 1;
    CHECK(add(0, loss_of(rows[0], other)).find("result.normalizer: given") != std::string::npos);
  }
  // Nothing of this was added: each comes now, and then no more.
  for (index_t k = 0; k < 3; ++k) CHECK(add(k, loss_of(row(rows, k), n)) == "no error");
  CHECK(add(1, loss_of(rows[1], n)) == of + "k: given 1 again; needed: each micro-batch once");
  CHECK(step.finish().loss == Approx(-2.0 / 6).epsilon(1e-14));
  CHECK(add(1, loss_of(rows[1], n)) ==
        of + "call: given one after finish(); needed: every micro-batch before finish(), and a "
             "Step for each optimizer step");
  CHECK(message_of([&] { step.finish(); }) ==
        of_finish +
            "call: given a second one; needed: one call, and a Step "
            "for each step");

  Step<> none(0, [](index_t) { return Normalizer{}; });
  CHECK(message_of([&] { none.add(0, LossResult{}); }) ==
        of + "k: given 0; needed: none: this rank has no micro-batches");
  CHECK(message_of([] { Step<>(-1, [](index_t) { return Normalizer{}; }); }) ==
        "gdpo::update::Step: micro_batches: given -1; needed: a number of "
        "micro-batches of at "
        "least 0");
}

TEST_CASE("update::Step names the micro-batches that finish() misses", "[update]") {
  Step<> step = step_of_three();
  step.add(1, loss_of(three_rows()[1], step.normalizer()));
  CHECK(message_of([&] { step.finish(); }) ==
        of_finish +
            "micro-batches: given no result of number 0, 2 (2 of 3 missing); "
            "needed: every micro-batch that has rows");
  CHECK(message_of([&] { step.report(); }) ==
        "gdpo::update::Step::report: call: given one before finish(); needed: a call after "
        "finish(), which merges the reports");
  // They may come after the error.
  step.add(0, loss_of(three_rows()[0], step.normalizer()));
  step.add(2, loss_of(three_rows()[2], step.normalizer()));
  CHECK(step.finish().metrics.rows == 3);

  const Rows many(20, Row(1, 1));
  Step<> long_step(20, counts_of(many));
  CHECK(message_of([&] {
          long_step.finish();
        }).find("given no result of number 0, 1, 2, 3, 4, 5, 6, 7, ... (20 of 20 missing)") !=
        std::string::npos);
}

TEST_CASE("update::Step::set_given is the count of the caller's own", "[update]") {
  auto loss = gdpo::dapo_loss;
  loss.aggregate.over = gdpo::Over::Given;
  const Rows& rows = three_rows();
  Step<> step = step_of_three();
  const std::string of = "gdpo::update::Step::set_given: ";
  for (const double wrong : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    CHECK(message_of([&] { step.set_given(wrong); }).find(of + "given: given ") == 0);
  }
  CHECK(message_of([&] { step.set_given(0); }) ==
        of + "given: given 0; needed: a finite count above 0");
  const Normalizer before = step.normalizer();
  step.set_given(5);
  step.set_given(4);
  CHECK(message_of([&] { step.add(0, loss_of(rows[0], before)); }) != "no error");
  for (index_t k = 0; k < 3; ++k) step.add(k, loss(row(rows, k).batch(), step.normalizer()));
  CHECK(message_of([&] { step.set_given(4); }) ==
        of + "call: given one after add(); needed: a call before the first add()");
  const LossResult total = step.finish();
  CHECK(total.loss == Approx(-2.0 / 4).epsilon(1e-14));
  CHECK(total.normalizer.given == 4);

  // Without it, what the counts say; the other form of add() ends the time for it as well.
  Step<> own(3, [&](index_t k) {
    Normalizer n = gdpo::count(row(rows, k).batch());
    n.given = 2;
    return n;
  });
  CHECK(own.normalizer().given == 6);
  own.add(0, [&] { return loss(rows[0].batch(), own.normalizer()); });
  CHECK(message_of([&] { own.set_given(4); }) != "no error");
  for (const index_t k : {1, 2}) own.add(k, loss(row(rows, k).batch(), own.normalizer()));
  CHECK(own.finish().loss == Approx(-2.0 / 6).epsilon(1e-14));
}

TEST_CASE("update::Step merges the reports of micro-batches in their order", "[update]") {
  // Groups of 2, 3 and 4 rows; micro-batch 1 has two of them.
  const std::vector<std::vector<double>> rewards{{1, 2}, {0, 0, 0, 1, 2, 4, 8}, {5, 5, 5}};
  const std::vector<std::vector<int>> ids{{0, 0}, {1, 1, 1, 2, 2, 2, 2}, {3, 3, 3}};
  const auto report_of = [](const std::vector<double>& r, const std::vector<int>& id) {
    gdpo::GroupReport report;
    gdpo::advantages(
        gdpo::seq,
        gdpo::RewardBatch{gdpo::view(r.data(), static_cast<index_t>(r.size()), 1), gdpo::by_id(id)},
        gdpo::Grpo{}, &report);
    return report;
  };
  std::vector<double> all_rewards;
  std::vector<int> all_ids;
  for (std::size_t k = 0; k < 3; ++k) {
    all_rewards.insert(all_rewards.end(), rewards[k].begin(), rewards[k].end());
    all_ids.insert(all_ids.end(), ids[k].begin(), ids[k].end());
  }
  const gdpo::GroupReport whole = report_of(all_rewards, all_ids);
  const auto check = [&](const gdpo::GroupReport& r) {
    CHECK(r.rows == 12);
    CHECK(r.groups == 4);
    CHECK(r.degenerate == std::vector<unsigned char>{0, 1, 0, 1});
    CHECK(difference(r.group_std, whole.group_std) == "");
    CHECK(r.reward_mean == Approx(whole.reward_mean).epsilon(1e-14));
  };
  Step<> step = step_of_three();
  for (const index_t k : {2, 0, 1}) {
    const auto at = static_cast<std::size_t>(k);
    const LossResult result = loss_of(three_rows()[at], step.normalizer());
    gdpo::GroupReport report;  // it is read after work()
    if (k == 1) {
      step.add(k, result, report_of(rewards[at], ids[at]));
    } else {
      step.add(
          k,
          [&] {
            report = report_of(rewards[at], ids[at]);
            return result;
          },
          report);
    }
  }
  step.finish();
  check(step.report());

  // The same over ranks: micro-batch 0 on rank 0, none on rank 1, the others on rank 2.
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          const index_t n = comm.rank() == 0 ? 1 : comm.rank() == 1 ? 0 : 2;
          const std::size_t first = comm.rank() == 0 ? 0 : 1;
          Step of_rank(comm, n, [&](index_t k) {
            return gdpo::count(three_rows()[first + static_cast<std::size_t>(k)].batch());
          });
          for (index_t k = n - 1; k >= 0; --k) {
            const std::size_t at = first + static_cast<std::size_t>(k);
            of_rank.add(k, loss_of(three_rows()[at], of_rank.normalizer()),
                        report_of(rewards[at], ids[at]));
          }
          of_rank.finish();
          if (of_rank.report().degenerate != std::vector<unsigned char>{0, 1, 0, 1} ||
              !difference(of_rank.report().group_std, whole.group_std).empty())
            throw std::runtime_error("other reports");
        })) == "");

  // Of other rewards: refused, and nothing else was.
  Step<> two = step_of_three();
  gdpo::GroupReport other = report_of(rewards[0], ids[0]);
  other.rewards.resize(2);
  two.add(0, loss_of(three_rows()[0], two.normalizer()), report_of(rewards[0], ids[0]));
  two.add(1, loss_of(three_rows()[1], two.normalizer()), other);
  two.add(2, loss_of(three_rows()[2], two.normalizer()));
  CHECK(message_of([&] { two.finish(); }) ==
        of_finish + "gdpo::merge: b.rewards: given 2 rewards; needed: 1, as in a");
}

TEST_CASE("update::Step: what a rank's work throws all ranks throw in finish()", "[update]") {
  // Three ranks with three, none and three micro-batches; rank 2 does something wrong.
  const auto run = [](const auto& wrong) {
    return on_ranks(3, [&](const ThreadRank& comm) {
      const index_t n = comm.rank() == 1 ? 0 : 3;
      Step step(comm, n, counts_of(three_rows()));
      if (step.normalizer().tokens != 12) throw std::runtime_error("tokens");
      for (index_t k = 0; k < n; ++k) {
        const auto work = [&] { return loss_of(row(three_rows(), k), step.normalizer()); };
        if (comm.rank() == 2) {
          wrong(step, k, work);
        } else {
          step.add(k, work);
        }
      }
      const LossResult total = step.finish();
      if (!(std::fabs(total.loss + 4.0 / 12) < 1e-14)) throw std::runtime_error("loss");
    });
  };
  const std::string rank_2 = "gdpo::update::Step::finish: rank 2 of 3: ";
  CHECK(same_on_all(run([](auto& step, index_t k, const auto& work) { step.add(k, work); })) == "");
  CHECK(same_on_all(run([](auto& step, index_t k, const auto& work) {
          step.add(k, [&] {
            gdpo::contract::fail("mine", "k", "1", "0");
            return work();
          });
        })) == rank_2 + "mine: k: given 1; needed: 0");
  // The first error is the one that is told; the work of the others is called nevertheless.
  int calls = 0;
  CHECK(same_on_all(run([&](auto& step, index_t k, const auto& work) {
          step.add(k, [&] {
            ++calls;
            if (k > 0) throw std::runtime_error("out of memory " + std::to_string(k));
            return work();
          });
        })) == "exception: " + rank_2 + "out of memory 1");
  CHECK(calls == 3);
  // The work of a micro-batch that comes twice is not called, so its gradients are added once.
  calls = 0;
  CHECK(same_on_all(run([&](auto& step, index_t k, const auto& work) {
          for (int twice = 0; twice < (k == 1 ? 2 : 1); ++twice) {
            step.add(k, [&] {
              ++calls;
              return work();
            });
          }
        })) == rank_2 + "gdpo::update::Step::add: k: given 1 again; needed: each micro-batch once");
  CHECK(calls == 3);
  CHECK(same_on_all(run([](auto& step, index_t k, const auto& work) {
          if (k != 1) step.add(k, work);
        })) == rank_2 +
                   "micro-batches: given no result of number 1 (1 of 3 missing); "
                   "needed: every micro-batch that has rows");
  CHECK(same_on_all(run([](auto& step, index_t k, const auto&) {
          step.add(k, [&] {  // divided by the counts of this rank
            return loss_of(row(three_rows(), k), Normalizer{6, 3, 3});
          });
        })) == rank_2 +
                   "gdpo::update::Step::add: result.normalizer: given 6 tokens, 3 rows, 3 "
                   "non-empty rows, 0 given; needed: 12 tokens, 6 rows, 6 non-empty rows, 0 given, "
                   "the normalizer() of the step");
  CHECK(same_on_all(run([](auto& step, index_t k, const auto& work) {
          if (k == 0) step.set_given(8);
          step.add(k, work);
        })) ==
        "gdpo::update::Step::finish: given: given 0 on rank 0 and 8 on rank 2; needed: the same "
        "set_given() on all ranks");
  // An error of the loop around the micro-batches is kept; the first one counts.
  CHECK(same_on_all(run([](auto& step, index_t k, const auto& work) {
          step.add(k, work);
          if (k == 0) return;
          step.keep(std::make_exception_ptr(std::runtime_error("loop " + std::to_string(k))));
        })) == "exception: " + rank_2 + "loop 1");
  // Also where no rank, or one, has rows.
  CHECK(same_on_all(on_ranks(3,
                             [](const ThreadRank& comm) {
                               Step step(comm, 0, [](index_t) { return Normalizer{}; });
                               if (comm.rank() > 0) step.set_given(comm.rank());
                               step.finish();
                             })) ==
        "gdpo::update::Step::finish: given: given 0 on rank 0 and 1 on rank 1; needed: the same "
        "set_given() on all ranks");
}

TEST_CASE("update::Step: counting fails on all ranks, lost ranks are told at once", "[update]") {
  CHECK(same_on_all(on_ranks(2, [](const ThreadRank& comm) {
          Step(comm, 1, [&](index_t) -> Normalizer {
            if (comm.rank() == 1) gdpo::contract::fail("mine", "mask", "none", "one");
            return {};
          });
        })) == "gdpo::update::Step: rank 1 of 2: mine: mask: given none; needed: one");
  CHECK(same_on_all(on_ranks(2,
                             [](const ThreadRank& comm) {
                               Step(comm, comm.rank() == 0 ? -2 : 1,
                                    [&](index_t) { return Normalizer{}; });
                             })) ==
        "gdpo::update::Step: rank 0 of 2: micro_batches: given -2; needed: "
        "a number of micro-batches of at least 0");

  Step<> step = step_of_three();
  const auto lost = [&]() -> LossResult { gdpo::dist::fail_communication("lost"); };
  CHECK_THROWS_AS(step.add(0, lost), gdpo::communication_error);
  // It is no error of this rank: nothing was kept.
  for (index_t k = 0; k < 3; ++k)
    step.add(k, [&] { return loss_of(row(three_rows(), k), step.normalizer()); });
  CHECK(step.finish().metrics.rows == 3);
}

TEST_CASE("merge of loss results: losses add, metrics merge, LossResult{} changes no number",
          "[update]") {
  const Rows& rows = three_rows();
  const Normalizer n = Normalizer{6, 3, 3, 2};
  const LossResult a = loss_of(rows[0], n), b = loss_of(rows[1], n);
  LossResult with_kl = b;
  with_kl.kl_loss = 0.25, with_kl.loss += 0.25;
  const LossResult sum = merge(a, with_kl);
  CHECK(sum.loss == a.loss + with_kl.loss);
  CHECK(sum.policy_loss == a.policy_loss + b.policy_loss);
  CHECK(sum.kl_loss == 0.25);
  CHECK(sum.normalizer.given == 2);
  CHECK(sum.metrics.rows == 2);
  CHECK(sum.metrics.surrogate.sum == -3 + 2);
  CHECK(sum.metrics.advantage.n == 4);
  for (const LossResult& r : {a, sum}) {
    CHECK(difference(numbers(merge(r, LossResult{})), numbers(r)) == "");
    CHECK(difference(numbers(merge(LossResult{}, r)), numbers(r)) == "");
  }
  for (const auto member :
       {&Normalizer::tokens, &Normalizer::rows, &Normalizer::non_empty_rows, &Normalizer::given}) {
    LossResult other = b;
    other.normalizer.*member += 1;
    CHECK_THROWS_AS(merge(a, other), gdpo::invalid_input);
    other.metrics.rows = 0;
    CHECK(merge(a, other).normalizer.*member == n.*member);
    CHECK(merge(other, a).normalizer.*member == n.*member);
  }
  CHECK(message_of([&] {
          merge(a, loss_of(rows[1], Normalizer{1, 1, 1}));
        }) ==
        "gdpo::merge: b.normalizer: given 1 tokens, 1 rows, 1 non-empty rows, 0 given; needed: 6 "
        "tokens, 3 rows, 3 non-empty rows, 2 given, the counts of the step, as in a");
}

}  // namespace step_test
