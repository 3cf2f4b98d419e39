// labels: sanitizers
// optimal_token_baseline_into: what it refuses, batches without tokens, outputs in place, and that
// a workspace saves all allocations.
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/value/optimal_token_baseline.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/message.hpp"

namespace token_baseline_test {

namespace {

using gdpo::index_t, gdpo::OptimalTokenBaseline;
using Numbers = std::vector<double>;

/// A batch of two rows of three tokens, and its output.
struct Call {
  Numbers numbers = Numbers(6, 0.5), out = Numbers(6, 42);
  gdpo::TokenBaselineBatch<double> batch;
  gdpo::TokenOut<double> advantages;
  OptimalTokenBaseline settings;

  Call() {
    batch.returns = batch.logp = batch.sum_pi_squared = gdpo::view(numbers.data(), 2, 3);
    advantages = gdpo::view(out.data(), 2, 3);
  }
  Call(const Call&) = delete;
  template <class Groups>
  std::string message(const Groups& groups) {
    const std::string text =
        message_of([&] { gdpo::optimal_token_baseline_into(batch, groups, settings, advantages); });
    if (text != "no error") CHECK(out == Numbers(6, 42));
    return text;
  }
  std::string message() { return message(gdpo::groups_of(2)); }
};
const std::string of = "gdpo::optimal_token_baseline_into: ";

}  // namespace

TEST_CASE("token baseline: what is refused", "[value][errors]") {
  CHECK(Call().message() == "no error");
  {
    Call c;
    c.settings.eps = -1;
    CHECK(c.message() == of + "eps: given -1; needed: a finite number of at least 0");
    c.settings = {}, c.settings.tail = static_cast<gdpo::BaselineTail>(9);
    CHECK(c.message() == of + "tail: given 9, which is no enumerator; needed: one of cancel, raw");
  }
  {
    Call c;
    CHECK(c.message(gdpo::groups_of(4)).find(of + "groups: given 2 rows") == 0);
    CHECK(c.message(gdpo::by_id(std::vector<int>{1, 2, 3})) ==
          of + "groups: given 3 ids; needed: one id for each of the 2 rows");
  }
  const auto without = [](auto member, const char* name, const char* needed) {
    Call c;
    c.batch.*member = {};
    CHECK(c.message() == of + name + ": given no array; needed: " + needed);
  };
  using Batch = gdpo::TokenBaselineBatch<double>;
  without(&Batch::returns, "batch.returns", "the return of each token");
  without(&Batch::logp, "batch.logp", "the log-prob of each token");
  without(&Batch::sum_pi_squared, "batch.sum_pi_squared",
          "the sum of the squared probabilities of the vocabulary at each token");
  {
    Call c;
    c.advantages = {};
    CHECK(c.message() ==
          of + "advantages: given no array; needed: the array that the advantages are written to");
    c.batch = {};
    CHECK(c.message() ==
          of + "advantages: given no array; needed: the array that the advantages are written to");
  }
  {
    Call c;
    c.batch.weights = gdpo::view(c.numbers.data(), 3, 2);
    CHECK(c.message() ==
          of + "batch.weights: given (3, 2); needed: (2, 3), the shape of batch.returns");
    c.batch.weights = gdpo::repeated(gdpo::view(c.numbers.data(), 2));
    CHECK(c.message() ==
          of + "batch.weights: given one number a row; needed: (2, 3), the shape of batch.returns");
    c.batch.weights = {};
    c.advantages = gdpo::view(c.out.data(), {2, 3}, {0, 1});
    CHECK(c.message().find(of + "advantages: given ") == 0);
  }
  {
    Call c;
    const std::vector<index_t> offsets{0, 4, 5};
    c.batch.returns = c.batch.logp = c.batch.sum_pi_squared = gdpo::view(c.numbers);
    c.advantages = gdpo::view(c.out);
    c.batch.offsets = gdpo::view(offsets);
    CHECK(c.message() ==
          of + "batch.offsets: given from 0 to 5; needed: from 0 to 6, the number of tokens");
  }
}

TEST_CASE("token baseline: batches without rows or tokens", "[value]") {
  Call c;
  const double* const null = nullptr;
  c.batch.returns = c.batch.logp = c.batch.sum_pi_squared = gdpo::view(null, 0, 3);
  c.advantages = gdpo::view(static_cast<double*>(nullptr), 0, 3);
  CHECK(c.message() == "no error");
  c.batch.returns = c.batch.logp = c.batch.sum_pi_squared = gdpo::view(null, 2, 0);
  c.advantages = gdpo::view(static_cast<double*>(nullptr), 2, 0);
  CHECK(c.message() == "no error");
  CHECK(c.out == Numbers(6, 42));
}

TEST_CASE("token baseline: over the returns", "[value]") {
  Call c;
  Numbers returns{1, 2, 3, 5, 8, 13};
  c.batch.returns = gdpo::view(returns.data(), 2, 3);
  CHECK(c.message() == "no error");
  c.advantages = gdpo::view(returns.data(), 2, 3);
  CHECK(c.message() == "no error");
  CHECK(returns == c.out);
}

TEST_CASE("token baseline: a workspace is allocated once", "[value]") {
  constexpr index_t rows = 64, width = 600;
  const auto n = static_cast<std::size_t>(rows * width);
  const std::vector<float> numbers(n, 0.5F);
  const std::vector<std::int64_t> mask(n, 1);  // has to be converted
  std::vector<double> returns(n, 1.0);
  std::vector<double> out(n);
  std::vector<int> ids;
  for (int i = 0; i < rows; ++i) ids.push_back(i % 8);
  const auto groups = gdpo::by_id(ids);
  gdpo::TokenBaselineBatch<double> b;
  b.returns = gdpo::view(returns.data(), rows, width);
  b.logp = b.sum_pi_squared = b.weights = gdpo::view(numbers.data(), rows, width);
  b.mask = gdpo::view(mask.data(), rows, width);
  const auto allocations_of = [&](const auto& exec) {
    gdpo::TokenBaselineWorkspace<double> kept;
    return counted::made_again([&] {
      gdpo::optimal_token_baseline_into(exec, b, groups, {}, gdpo::view(out.data(), rows, width),
                                        kept);
    });
  };
  CHECK(allocations_of(gdpo::seq) == 0);
  CHECK(allocations_of(gdpo::simd) == 0);
  CHECK(allocations_of(gdpo::parallel(executors::pool(3))) == 0);
}

}  // namespace token_baseline_test
