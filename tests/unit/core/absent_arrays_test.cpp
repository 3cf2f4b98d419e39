// labels: sanitizers
// What is absent: `{}`. An array that somebody forgot to fill is not: an empty one has the wrong
// shape, and one of the right shape has a null pointer. Taken for absent, a mask would let padding
// in, an old_logp would make the step on-policy, and a gradient would not be written.
#include <gdpo/constraint.hpp>
#include <gdpo/gdpo.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/update.hpp>
#include <gdpo/value.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace absent_arrays_test {

namespace {

using Catch::Matchers::StartsWith;
using gdpo::index_t;
constexpr index_t rows = 4, width = 3;
const std::string null_tokens = ": given a null pointer; needed: (4, 3) elements",
                  no_tokens = ": given (0, 0); needed: (4, 3), the shape of ",
                  null_column = ": given a null pointer; needed: (4) elements",
                  no_column = ": given 0 entries; needed: one for each of the 4 rows";

/// An empty array and one that is null, in the shape of the tokens, of elements of type T.
template <class T>
const gdpo::View<T, 2> empty = gdpo::view(static_cast<T*>(nullptr), 0, 0);
template <class T>
const gdpo::View<T, 2> unfilled = gdpo::view(static_cast<T*>(nullptr), rows, width);
/// The same for columns.
const gdpo::View<float, 1> empty_column = gdpo::view(static_cast<float*>(nullptr), 0),
                           unfilled_column = gdpo::view(static_cast<float*>(nullptr), rows);

/// Numbers for 4 rows of 3 tokens.
struct Numbers {
  std::vector<float> logp = std::vector<float>(rows * width, -1.0f), old_logp = logp,
                     dlogp = std::vector<float>(rows * width, 7.0f), advantages{1, -1, 1, -1};
  std::vector<unsigned char> mask = std::vector<unsigned char>(rows * width, 1);

  gdpo::View<float, 2> tokens(std::vector<float>& of) { return gdpo::view(of.data(), rows, width); }
  gdpo::TokenBatch<float> batch() {
    gdpo::TokenBatch<float> b;
    b.logp = tokens(logp);
    b.advantages = gdpo::view(advantages);
    return b;
  }
};

std::string of_loss(const gdpo::TokenBatch<float>& b, const gdpo::TokenOut<float>& gradient) {
  const gdpo::Normaliser counts = gdpo::count(Numbers().batch());
  return message_of([&] { gdpo::dapo_loss(b, counts, gradient); });
}

}  // namespace

TEST_CASE("every array of a token batch", "[edges]") {
  Numbers n;
  // Each array but logp, empty and null; `{}` is none.
#define GDPO_X(name, ...)                                                                 \
  if (std::string(#name) != "logp") {                                                     \
    INFO(#name);                                                                          \
    gdpo::TokenBatch<float> b = n.batch();                                                \
    b.name = empty<float>;                                                                \
    CHECK_THAT(of_loss(b, {}), StartsWith("gdpo::PolicyLoss: batch." #name + no_tokens)); \
    CHECK_THAT(message_of([&] { gdpo::count(b); }),                                       \
               StartsWith("gdpo::count: batch." #name + no_tokens));                      \
    b.name = unfilled<float>;                                                             \
    CHECK(of_loss(b, {}) == "gdpo::PolicyLoss: batch." #name + null_tokens);              \
    b.name = gdpo::View<float, 2>{};                                                      \
    CHECK(of_loss(b, {}) == "no error");                                                  \
  }
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, type)                                                                \
  {                                                                                       \
    INFO(#name);                                                                          \
    gdpo::TokenBatch<float> b = n.batch();                                                \
    b.name = empty<type>;                                                                 \
    CHECK_THAT(of_loss(b, {}), StartsWith("gdpo::PolicyLoss: batch." #name + no_tokens)); \
    b.name = unfilled<type>;                                                              \
    CHECK(of_loss(b, {}) == "gdpo::PolicyLoss: batch." #name + null_tokens);              \
    b.name = gdpo::View<type, 2>{};                                                       \
    CHECK(of_loss(b, {}) == "no error");                                                  \
  }
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, type)                                                   \
  {                                                                          \
    INFO(#name);                                                             \
    gdpo::TokenBatch<float> b = n.batch();                                   \
    b.name = empty_column;                                                   \
    CHECK(of_loss(b, {}) == "gdpo::PolicyLoss: batch." #name + no_column);   \
    b.name = unfilled_column;                                                \
    CHECK(of_loss(b, {}) == "gdpo::PolicyLoss: batch." #name + null_column); \
  }
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  gdpo::TokenBatch<float> b = n.batch();
  b.logp = unfilled<float>;
  CHECK(of_loss(b, {}) == "gdpo::PolicyLoss: batch.logp" + null_tokens);
  b.logp = gdpo::View<float, 2>{};
  CHECK_THAT(of_loss(b, {}), StartsWith("gdpo::PolicyLoss: batch.logp: given no array"));
}

TEST_CASE("a gradient that has no memory", "[edges]") {
  Numbers n;
  const auto b = n.batch();
  const std::string name = "gdpo::PolicyLoss: gradient";
  CHECK_THAT(of_loss(b, empty<float>), StartsWith(name + no_tokens));
  Eigen::ArrayXXf forgotten;
  CHECK_THAT(of_loss(b, gdpo::view(forgotten)), StartsWith(name + no_tokens));
  CHECK(of_loss(b, unfilled<float>) == name + null_tokens);
  CHECK(of_loss(b, gdpo::View<float, 2>{}) == "no error");
  CHECK(of_loss(b, n.tokens(n.dlogp)) == "no error");
  CHECK(n.dlogp[0] != 7);
}

TEST_CASE("a batch without rows takes arrays without elements", "[edges]") {
  gdpo::TokenBatch<float> b;
  b.logp = gdpo::view(static_cast<float*>(nullptr), 0, width);
  b.mask = gdpo::view(static_cast<unsigned char*>(nullptr), 0, 0);
  b.advantages = empty_column;
  CHECK(of_loss(b, empty<float>) == "no error");
}

TEST_CASE("the arrays of a critic", "[edges]") {
  Numbers n;
  gdpo::ValueBatch<float> v;
  v.values = v.old_values = v.returns = n.tokens(n.logp);
  const auto of_values = [&](const gdpo::TokenOut<float>& gradient) {
    return message_of([&] { gdpo::ValueLoss<>{}(v, gdpo::count(n.batch()), gradient); });
  };
  CHECK(of_values({}) == "no error");
  CHECK_THAT(of_values(unfilled<float>), Catch::Matchers::EndsWith("gradient" + null_tokens));
  v.mask = unfilled<unsigned char>;
  CHECK_THAT(of_values({}), Catch::Matchers::EndsWith("batch.mask" + null_tokens));
  v.mask = empty<unsigned char>;
  CHECK_THAT(of_values({}), Catch::Matchers::ContainsSubstring("batch.mask" + no_tokens));

  gdpo::ReturnBatch<float> r;
  r.rewards = r.values = n.tokens(n.logp);
  const auto of_returns = [&](const gdpo::TokenOut<float>& returns) {
    return message_of([&] {
      gdpo::advantages_and_returns_into(r, gdpo::TokenAdvantage<>{}, n.tokens(n.dlogp), returns);
    });
  };
  CHECK(of_returns({}) == "no error");
  CHECK_THAT(of_returns(unfilled<float>), Catch::Matchers::EndsWith("returns" + null_tokens));
  r.mask = unfilled<unsigned char>;
  CHECK_THAT(of_returns({}), Catch::Matchers::EndsWith("batch.mask" + null_tokens));
  r.mask = {};
  r.bootstrap = unfilled_column;
  CHECK_THAT(of_returns({}), Catch::Matchers::EndsWith("batch.bootstrap" + null_column));
}

TEST_CASE("logits", "[edges]") {
  std::vector<float> table(rows * width * 2, 0.0f);
  std::vector<std::int64_t> ids(rows * width, 1);
  const auto logits = gdpo::view(table.data(), rows, width, 2);
  const auto tokens = gdpo::view(ids.data(), rows, width);
  CHECK(message_of([&] { gdpo::aligned(logits, tokens, unfilled<unsigned char>); }) ==
        "gdpo::aligned: mask" + null_tokens);
  CHECK_THAT(message_of([&] { gdpo::aligned(logits, tokens, empty<unsigned char>); }),
             StartsWith("gdpo::aligned: mask: given (0, 0)"));
  CHECK(message_of([&] { gdpo::aligned(logits, tokens); }) == "no error");
  gdpo::LogitBatch<float, 3> b;
  b.logits = logits;
  b.targets = tokens;
  b.mask = unfilled<unsigned char>;
  const auto of_logits = [&](const gdpo::TokenOut<float>& logp) {
    gdpo::TokenLogprobsOut out;
    out.logp = logp;
    return message_of([&] { gdpo::token_logprobs_into(gdpo::seq, b, out); });
  };
  Numbers n;
  CHECK_THAT(of_logits(n.tokens(n.dlogp)), Catch::Matchers::EndsWith("mask" + null_tokens));
  b.mask = {};
  CHECK(of_logits(n.tokens(n.dlogp)) == "no error");
  CHECK_THAT(of_logits(unfilled<float>), Catch::Matchers::EndsWith("out.logp" + null_tokens));
}

TEST_CASE("columns of rewards, and masks of statistics", "[edges]") {
  Numbers n;
  gdpo::RewardBatch r{gdpo::view(n.advantages), gdpo::groups_of(2)};
  r.tokens = unfilled_column;
  CHECK(message_of([&] { gdpo::advantages(gdpo::seq, r, gdpo::Grpo{}); }) ==
        "gdpo::advantages: batch.tokens" + null_column);
  r.tokens = empty_column;
  CHECK(message_of([&] { gdpo::advantages(gdpo::seq, r, gdpo::Grpo{}); }) ==
        "gdpo::advantages: batch.tokens" + no_column);
  CHECK(message_of([&] { gdpo::masked_mean(n.tokens(n.logp), unfilled<unsigned char>); }) ==
        "gdpo::masked_mean: mask" + null_tokens);
  CHECK_THAT(message_of([&] { gdpo::masked_mean(n.tokens(n.logp), empty<unsigned char>); }),
             StartsWith("gdpo::masked_mean: mask" + no_tokens));
  CHECK(message_of([&] { gdpo::measure(gdpo::view(n.advantages), {}, unfilled_column); }) ==
        "gdpo::measure: valid" + null_column);
}

}  // namespace absent_arrays_test
