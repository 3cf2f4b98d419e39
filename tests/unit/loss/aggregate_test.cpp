// labels: lanes, sanitizers
// The weight that an aggregate gives to the tokens of a row: every aggregate by hand, and the
// relations between them.
#include "support/catch.hpp"
#include "support/loss_calls.hpp"

namespace aggregate_test {

namespace {

using namespace gdpo::aggregate;
using gdpo::Aggregate, gdpo::Over;
using Mode = Aggregate::Mode;
using loss_product::Data;

const gdpo::Normalizer n{40, 8, 5, 64};

double weight(const Aggregate& a, gdpo::index_t tokens, gdpo::index_t width = 16) {
  return a(gdpo::AggregateArgs{{tokens, width}, n});
}

Data rows_of_lengths(const std::vector<int>& lengths) {
  Random random(1);
  Data d = loss_product::random_tokens(random, static_cast<int>(lengths.size()), 8, 0.1);
  d.segments.clear(), d.weights.clear(), d.kl_weights.clear(), d.row_weights.clear();
  d.mask.assign(d.logp.size(), 0);
  for (int i = 0; i < d.rows; ++i) {
    for (int t = 0; t < lengths[static_cast<std::size_t>(i)]; ++t) d.mask[d.at(i, t)] = 1;
  }
  return d;
}
Aggregate norm_over_width() {
  Aggregate a = seq_mean_token_sum_norm();
  a.padded_width = true;
  return a;
}
loss_product::Outcome run(const Data& d, const Aggregate& aggregate) {
  gdpo::PolicyLoss<> loss;
  loss.aggregate = aggregate;
  return loss_product::call<double>(loss, d);
}

}  // namespace

TEST_CASE("weights by hand", "[aggregate]") {
  CHECK(weight(token_mean(), 3) == 1.0 / 40);
  CHECK(weight(token_mean(Over::Given), 3) == 1.0 / 64);
  CHECK(weight({Mode::TokenMean, Over::Rows, 0.5, 3}, 3) == 3 / 8.5);
  CHECK(weight(seq_mean_token_mean(), 4) == 1.0 / 32);
  CHECK(weight(seq_mean_token_mean(Over::NonEmptyRows), 4) == 1.0 / 20);
  CHECK(weight({Mode::SeqMeanTokenMean, Over::Rows, 0, 2, 1}, 3) == 0.0625);
  CHECK(weight(seq_mean_token_sum(), 4) == 1.0 / 8);
  CHECK(weight({Mode::SeqMeanTokenSum, Over::NonEmptyRows, 0, 4}, 4) == 0.8);
  CHECK(weight(seq_mean_token_sum_norm(100), 4) == 1.0 / 800);
  CHECK(weight(norm_over_width(), 4, 16) == 1.0 / 128);
  CHECK(weight({Mode::SeqMeanTokenSumNorm, Over::NonEmptyRows, 0, 2, 0, 100}, 4) == 2.0 / 500);
  CHECK(weight(token_sum(), 4) == 1);
  CHECK(weight(token_sum(0.25), 4) == 0.25);
  const auto of_group = [](const Aggregate& a) { return a(gdpo::AggregateArgs{{4, 16, 10}, n}); };
  CHECK(of_group(group_mean()) == 1.0 / 640);
  CHECK(of_group(group_mean(Over::Rows)) == 1.0 / 80);
  CHECK(of_group({Mode::GroupMean, Over::Given, 0, 3, 2}) == 3.0 / 64 / 12);
}

TEST_CASE("nothing to divide by: the weight is 0, not infinite", "[aggregate]") {
  const gdpo::Normalizer none;
  const gdpo::AggregateArgs args{{0, 0}, none};
  CHECK(token_mean()(args) == 0);
  CHECK(seq_mean_token_mean()(args) == 0);
  CHECK(group_mean()(args) == 0);
  CHECK(seq_mean_token_sum()(args) == 0);
  CHECK(seq_mean_token_sum_norm(100)(args) == 0);
  CHECK(norm_over_width()(args) == 0);
  CHECK(run(rows_of_lengths({2, 8}), token_sum()).result.over == -1);  // by no count
}

TEST_CASE("rows of one length: token mean, mean of means and the fixed length agree",
          "[aggregate]") {
  // The weight of every token is 1 / 32, a power of two, so nothing is rounded and the bits agree.
  const Data d = rows_of_lengths({8, 8, 8, 8});
  const loss_product::Outcome tokens = run(d, token_mean());
  CHECK(difference(tokens.gradient, run(d, seq_mean_token_mean()).gradient) == "");
  CHECK(difference(tokens.gradient, run(d, seq_mean_token_sum_norm(8)).gradient) == "");
  CHECK(difference(tokens.gradient, run(d, norm_over_width()).gradient) == "");
}

TEST_CASE("how a row's length weighs: not, as one over it, or against a fixed one", "[aggregate]") {
  // A row of 2 and a row of 8 tokens. Every token has ratio 1 and advantage 1, so its derivative is
  // minus its weight.
  Data d = rows_of_lengths({2, 8});
  d.old_logp.clear(), d.token_advantages.clear(), d.advantages = {1, 1};
  const auto check = [&](const Aggregate& aggregate, double of_short, double of_long) {
    gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None> loss;
    loss.aggregate = aggregate;
    const loss_product::Outcome o = loss_product::call<double>(loss, d);
    CHECK(o.gradient[0] == -of_short);
    CHECK(o.gradient[8] == -of_long);
    CHECK(o.result.loss == Approx(-2 * of_short - 8 * of_long).epsilon(1e-15));
  };
  check(token_mean(), 0.1, 0.1);
  check(seq_mean_token_mean(), 0.25, 1.0 / 16);
  check(seq_mean_token_sum(), 0.5, 0.5);
  check(seq_mean_token_sum_norm(16), 1.0 / 32, 1.0 / 32);
  check(norm_over_width(), 1.0 / 16, 1.0 / 16);
  check(token_sum(), 1, 1);
}

TEST_CASE("Over::NonEmptyRows leaves empty rows out of the count, Over::Rows does not",
          "[aggregate]") {
  const Data d = rows_of_lengths({4, 0, 4, 0});
  const loss_product::Outcome rows = run(d, seq_mean_token_sum()),
                              non_empty = run(d, seq_mean_token_sum(Over::NonEmptyRows));
  CHECK(non_empty.result.loss == 2 * rows.result.loss);
  for (std::size_t k = 0; k < rows.gradient.size(); ++k)
    CHECK(non_empty.gradient[k] == 2 * rows.gradient[k]);
}

TEST_CASE(
    "row weights multiply the row's weight; token_sum with them is any aggregate of the caller's",
    "[aggregate]") {
  Data d = rows_of_lengths({8, 4, 2, 1});
  const loss_product::Outcome mean = run(d, seq_mean_token_mean());
  d.row_weights = {1.0 / 32, 1.0 / 16, 1.0 / 8, 1.0 / 4};
  CHECK(difference(run(d, token_sum()).gradient, mean.gradient) == "");
}

TEST_CASE("count: tokens, rows, rows with tokens; counts add", "[aggregate]") {
  const Data d = rows_of_lengths({4, 0, 8, 1});
  const loss_product::Arrays<float> arrays(d);
  gdpo::TokenBatch<float> batch = arrays.batch();
  gdpo::Normalizer a = gdpo::count(batch);
  CHECK(a.tokens == 13);
  CHECK(a.rows == 4);
  CHECK(a.non_empty_rows == 3);
  CHECK(a.given == 0);
  batch.mask = gdpo::TokenView<unsigned char>{};
  CHECK(gdpo::count(batch).tokens == 32);
  a.given = 2;
  const gdpo::Normalizer sum = a + gdpo::Normalizer{1, 2, 3, 4};
  CHECK(sum.tokens == 14);
  CHECK(sum.rows == 6);
  CHECK(sum.non_empty_rows == 6);
  CHECK(sum.given == 6);
}

}  // namespace aggregate_test
