// labels: sanitizers
// Every mistake that a loss call can refuse, with its message word for word; nothing is written
// then.
#include <gdpo/loss.hpp>

#include "support/catch.hpp"

namespace errors_test {

namespace {

const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

/// Two rows of three tokens, with every array a loss may ask for.
struct Call {
  std::vector<double> tokens = std::vector<double>(6, -1.0), rows{1, -1},
                      gradient = std::vector<double>(6, 42.0);
  std::vector<std::int64_t> offsets{0, 2, 6};
  gdpo::TokenBatch<double> batch;
  gdpo::Normalizer normalizer{6, 2, 2, 2};
  gdpo::TokenOut<double> out;

  Call() {
    batch.logp = batch.old_logp = batch.ref_logp = padded();
    batch.advantages = gdpo::view(rows);
    out = gdpo::view(gradient.data(), 2, 3);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  gdpo::View<const double, 2> padded() const { return gdpo::view(tokens.data(), 2, 3); }
  void pack() {
    batch.logp = batch.old_logp = batch.ref_logp = gdpo::view(tokens);
    batch.offsets = gdpo::view(offsets);
    out = gdpo::view(gradient);
  }

  template <class Loss>
  void fails(const Loss& loss, const std::string& expected) {
    std::string message = "nothing was thrown";
    try {
      loss(batch, normalizer, out);
    } catch (const gdpo::invalid_input& e) {
      message = e.what();
    }
    CHECK(message == expected);
    CHECK(gradient == std::vector<double>(6, 42.0));
  }
};

/// Expects that a change of the loss's settings is refused.
template <class Loss = gdpo::PolicyLoss<>, class Change>
void rejects(const Change& change, const std::string& expected) {
  Loss loss;
  change(loss);
  Call().fails(loss, "gdpo::PolicyLoss: " + expected);
}
/// Expects that a change of the call is refused.
template <class Change>
void refuses(const Change& change, const std::string& expected) {
  Call call;
  change(call);
  call.fails(gdpo::grpo_loss, "gdpo::PolicyLoss: " + expected);
}

using Loss = gdpo::PolicyLoss<>;
using gdpo::map::Clamp;

}  // namespace

TEST_CASE("the call that the others change is right", "[loss][errors]") {
  Call call;
  CHECK(std::isfinite(gdpo::grpo_loss(call.batch, call.normalizer, call.out).loss));
  CHECK(call.gradient != std::vector<double>(6, 42.0));
  Call packed;
  packed.pack();
  CHECK(std::isfinite(gdpo::grpo_loss(packed.batch, packed.normalizer, packed.out).loss));
}

TEST_CASE("settings of the surrogate", "[loss][errors]") {
  const std::string low = "; needed: 0 to 1 (the ratio is clipped to 1 - low), or infinity: off";
  rejects([](Loss& l) { l.surrogate.low = 1.5; }, "surrogate.low: given 1.5" + low);
  rejects([](Loss& l) { l.surrogate.low = -0.5; }, "surrogate.low: given -0.5" + low);
  rejects([](Loss& l) { l.surrogate.low = no; }, "surrogate.low: given nan" + low);
  rejects([](Loss& l) { l.surrogate.high = -0.5; },
          "surrogate.high: given -0.5; needed: at least 0 (infinity: off)");
  rejects([](Loss& l) { l.surrogate.high = no; },
          "surrogate.high: given nan; needed: at least 0 (infinity: off)");
  rejects([](Loss& l) { l.surrogate.delta = 0; },
          "surrogate.delta: given 0; needed: more than 0 (infinity: off)");
  rejects([](Loss& l) { l.surrogate.delta = no; },
          "surrogate.delta: given nan; needed: more than 0 (infinity: off)");
  rejects([](Loss& l) { l.surrogate.dual = 1; },
          "surrogate.dual: given 1; needed: more than 1 (infinity: off)");
  rejects([](Loss& l) { l.surrogate.dual = no; },
          "surrogate.dual: given nan; needed: more than 1 (infinity: off)");
}

TEST_CASE("settings of KL terms, also of one that is off and of the last of several",
          "[loss][errors]") {
  const std::string needed = "; needed: a finite number of at least 0 (0: off)";
  rejects([](Loss& l) { l.kl.beta = -0.5; }, "kl.beta: given -0.5" + needed);
  rejects([](Loss& l) { l.kl.beta = no; }, "kl.beta: given nan" + needed);
  rejects([](Loss& l) { l.kl.beta = inf; }, "kl.beta: given inf" + needed);
  rejects(
      [](Loss& l) {
        l.kl.input = {2, -2};
      },
      "kl.input.lo, kl.input.hi: given 2 and -2; needed: lo < hi (infinite: off)");
  rejects(
      [](Loss& l) {
        l.kl.output = {no, 2};
      },
      "kl.output.lo, kl.output.hi: given nan and 2; needed: lo < hi (infinite: off)");
  rejects(
      [](Loss& l) {
        l.kl.beta = 0, l.kl.output = {1, 1};
      },
      "kl.output.lo, kl.output.hi: given 1 and 1; needed: lo < hi (infinite: off)");
  using Two = gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                               gdpo::Kls<gdpo::Kl<>, gdpo::Kl<>>>;
  rejects<Two>([](Two& l) { l.kl.rest.first.beta = -1; }, "kl.beta: given -1" + needed);
}

TEST_CASE("settings of levels", "[loss][errors]") {
  using Clamped = gdpo::PolicyLoss<gdpo::level::Token<Clamp>>;
  using Sequence = gdpo::PolicyLoss<gdpo::level::Sequence<Clamp>>;
  using Straight = gdpo::PolicyLoss<gdpo::level::SequenceToken<Clamp>>;
  const std::string
      map = "level.map.lo, level.map.hi: given 1 and -1; needed: lo < hi (infinite: off)",
      bounds = "level.bounds.lo, level.bounds.hi: given nan and 1; needed: lo < hi (infinite: off)",
      count_eps = "level.statistic.count_eps: given -1; needed: a finite number of at least 0";
  rejects<Clamped>([](Clamped& l) { l.level.map = {1, -1}; }, map);
  rejects<Sequence>([](Sequence& l) { l.level.map = {1, -1}; }, map);
  rejects<Straight>([](Straight& l) { l.level.map = {1, -1}; }, map);
  rejects<Sequence>([](Sequence& l) { l.level.bounds = {no, 1}; }, bounds);
  rejects<Straight>([](Straight& l) { l.level.bounds = {no, 1}; }, bounds);
  rejects<Sequence>([](Sequence& l) { l.level.statistic.count_eps = -1; }, count_eps);
  rejects<Straight>([](Straight& l) { l.level.statistic.count_eps = -1; }, count_eps);
}

TEST_CASE("settings of aggregates", "[loss][errors]") {
  using namespace gdpo::aggregate;
  const std::string finite = "; needed: a finite number", at_least = finite + " of at least 0";
  const auto shared = [&](auto loss) {
    using L = decltype(loss);
    rejects<L>([](L& l) { l.aggregate.count_eps = -1; },
               "aggregate.count_eps: given -1" + at_least);
    rejects<L>([](L& l) { l.aggregate.count_eps = no; },
               "aggregate.count_eps: given nan" + at_least);
    rejects<L>([](L& l) { l.aggregate.scale = inf; }, "aggregate.scale: given inf" + finite);
    rejects<L>([](L& l) { l.aggregate.scale = no; }, "aggregate.scale: given nan" + finite);
  };
  shared(gdpo::grpo_loss), shared(gdpo::dapo_loss), shared(gdpo::dr_grpo_loss);
  rejects([](Loss& l) { l.aggregate.row_count_eps = -1; },
          "aggregate.row_count_eps: given -1" + at_least);
  rejects([](Loss& l) { l.aggregate = gdpo::aggregate::token_sum(no); },
          "aggregate.scale: given nan" + finite);
  rejects([](Loss& l) { l.aggregate.mode = static_cast<gdpo::Aggregate::Mode>(99); },
          "aggregate.mode: given 99, which is no enumerator; needed: one of seq-mean-token-mean, "
          "token-mean, seq-mean-token-sum, seq-mean-token-sum-norm, token-sum");
  rejects([](Loss& l) { l.aggregate.over = static_cast<gdpo::Over>(-1); },
          "aggregate.over: given -1, which is no enumerator; needed: one of tokens, rows, "
          "non_empty_rows, given");
  const std::string length =
      "; needed: a length in tokens, more than 0, the same for the whole training";
  for (const double constant : {0.0, -3.0, no, inf}) {
    rejects(
        [constant](Loss& l) { l.aggregate = gdpo::aggregate::seq_mean_token_sum_norm(constant); },
        "aggregate.constant: given " + std::string(gdpo::contract::text(constant)) + length);
  }
  Call packed;
  packed.pack();
  Loss dr = gdpo::dr_grpo_loss;
  dr.aggregate.padded_width = true;
  packed.fails(dr,
               "gdpo::PolicyLoss: aggregate.padded_width: given true, with a packed batch; needed: "
               "a constant: packed "
               "tokens have no padded width");
}

TEST_CASE("shapes of token arrays, of the gradient and of columns", "[loss][errors]") {
  const std::string shape = "; needed: (2, 3), the shape of batch.logp";
  const auto wrong = [](const Call& c) { return gdpo::view(c.tokens.data(), 3, 2); };
#define GDPO_X(in_batch, ...)                              \
  if (std::string(#in_batch) != "logp") {                  \
    refuses([&](Call& c) { c.batch.in_batch = wrong(c); }, \
            "batch." #in_batch ": given (3, 2)" + shape);  \
  }
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
  refuses([&](Call& c) { c.batch.mask = wrong(c); }, "batch.mask: given (3, 2)" + shape);
  refuses([&](Call& c) { c.batch.segments = gdpo::view(c.offsets.data(), 1, 3); },
          "batch.segments: given (1, 3)" + shape);
  refuses([&](Call& c) { c.batch.old_logp = gdpo::view(c.tokens); },
          "batch.old_logp: given (6)" + shape);
  refuses([&](Call& c) { c.batch.old_logp = gdpo::view(c.tokens.data(), 1, 2, 3); },
          "batch.old_logp: given (1, 2, 3)" + shape);
  refuses([&](Call& c) { c.out = gdpo::view(c.gradient.data(), 2, 2); },
          "gradient: given (2, 2)" + shape);
  refuses([&](Call& c) { c.out = gdpo::view(c.gradient); }, "gradient: given (6)" + shape);
  refuses([&](Call& c) { c.batch.completion_mask = wrong(c); },
          "batch.completion_mask: given (3, 2)" + shape);
  refuses([&](Call& c) { c.batch.logp = gdpo::view(c.tokens.data(), -2, 3); },
          "batch.logp: given (-2, 3); needed: extents of at least 0");
  const std::string rows = " entries; needed: one for each of the 2 rows";
  refuses([&](Call& c) { c.batch.advantages = gdpo::view(c.tokens.data(), 3); },
          "batch.advantages: given 3" + rows);
  refuses([&](Call& c) { c.batch.row_weights = gdpo::view(c.tokens.data(), 1); },
          "batch.row_weights: given 1" + rows);
  refuses([&](Call& c) { c.batch.truncated = gdpo::view(c.tokens.data(), 6); },
          "batch.truncated: given 6" + rows);
}

TEST_CASE("arrays that are missing, or one too many", "[loss][errors]") {
  const std::string one = "; needed: one of them: an advantage for each row, or for each token";
  refuses([](Call& c) { c.batch.logp = gdpo::TokenView<double>{}; },
          "batch.logp: given no array; needed: the log-probs of the policy being trained");
  refuses([](Call& c) { c.batch.advantages = gdpo::Column{}; },
          "batch.advantages, batch.token_advantages: given neither" + one);
  refuses([](Call& c) { c.batch.token_advantages = c.padded(); },
          "batch.advantages, batch.token_advantages: given both" + one);
  refuses([](Call& c) { c.batch.ref_logp = gdpo::TokenView<double>{}; },
          "batch.ref_logp: given no array; needed: the reference policy's log-probs, which this "
          "loss reads (kl.beta is "
          "not 0)");
  Loss loss;
  loss.kl.against = gdpo::Against::Rollout;
  Call().fails(loss,
               "gdpo::PolicyLoss: batch.rollout_logp: given no array; needed: the sampling "
               "policy's log-probs, which "
               "this loss reads");
  loss.kl.against = gdpo::Against::Teacher;
  Call().fails(loss,
               "gdpo::PolicyLoss: batch.teacher_logp: given no array; needed: the teacher's "
               "log-probs, which this loss reads");
  loss.kl.against = gdpo::Against::Old;
  Call on_policy;
  on_policy.batch.old_logp = gdpo::TokenView<double>{};
  on_policy.fails(loss,
                  "gdpo::PolicyLoss: batch.old_logp: given no array; needed: the old policy's "
                  "log-probs, because a KL "
                  "term is against them");
  loss.kl.beta = 0;
  CHECK(std::isfinite(loss(on_policy.batch, on_policy.normalizer, on_policy.out).loss));
  Call call;
  CHECK(std::isfinite(loss(call.batch, call.normalizer, call.out).loss));
}

TEST_CASE("row weights below 0, where the row has valid tokens", "[loss][errors]") {
  const std::string needed = "; needed: a number of at least 0 for a row with valid tokens";
  std::vector<double> weights{1, -0.5};
  refuses([&](Call& c) { c.batch.row_weights = gdpo::view(weights); },
          "batch.row_weights(1): given -0.5" + needed);
  refuses([&](Call& c) { c.pack(), c.batch.row_weights = gdpo::view(weights); },
          "batch.row_weights(1): given -0.5" + needed);
  std::vector<unsigned char> mask{1, 1, 1, 0, 0, 1};
  refuses(
      [&](Call& c) {
        c.batch.row_weights = gdpo::view(weights), c.batch.mask = gdpo::view(mask.data(), 2, 3);
      },
      "batch.row_weights(1): given -0.5" + needed);
  // The number of a row without valid tokens is never used, and one that is not finite is counted.
  mask[5] = 0;
  for (const double other : {1.0, -std::numeric_limits<double>::infinity()}) {
    Call call;
    weights[0] = other;
    call.batch.row_weights = gdpo::view(weights);
    call.batch.mask = gdpo::view(mask.data(), 2, 3);
    call.normalizer = {3, 2, 1, 2};
    const gdpo::LossResult r = gdpo::grpo_loss(call.batch, call.normalizer, call.out);
    CHECK(r.metrics.non_finite.weights.count == (other < 0 ? 1 : 0));
  }
}

TEST_CASE("offsets", "[loss][errors]") {
  const auto packed = [](std::vector<std::int64_t> offsets, const std::string& expected) {
    Call call;
    call.offsets = std::move(offsets);
    call.pack();
    call.fails(gdpo::grpo_loss, "gdpo::PolicyLoss: batch.offsets: given " + expected);
  };
  packed({0, 4, 7}, "from 0 to 7; needed: from 0 to 6, the number of tokens");
  packed({0, 4, 5}, "from 0 to 5; needed: from 0 to 6, the number of tokens");
  packed({1, 4, 6}, "from 1 to 6; needed: from 0 to 6, the number of tokens");
  packed({0, 9, 6}, "offsets[2] = 6 after offsets[1] = 9; needed: offsets that never decrease");
  packed({0, -1, 6}, "offsets[1] = -1 after offsets[0] = 0; needed: offsets that never decrease");
  refuses([](Call& c) { c.batch.offsets = gdpo::view(c.offsets); },
          "batch.offsets: given offsets, with padded tokens (logp has rank 2); needed: none, or "
          "tokens of rank 1");
  refuses(
      [](Call& c) {
        c.pack();
        c.batch.offsets = gdpo::IndexColumn{};
      },
      "batch.offsets: given none, with packed tokens (logp has rank 1); needed: offsets (B + 1)");
}

TEST_CASE("normalizers", "[loss][errors]") {
  const std::string zero =
      ": given 0; needed: the count that the aggregate divides by, more than 0 for a batch with "
      "tokens";
  const auto with = [&](gdpo::Over over, gdpo::Normalizer n, const std::string& name) {
    Loss loss;
    loss.aggregate.over = over;
    Call call;
    call.normalizer = n;
    call.fails(loss, "gdpo::PolicyLoss: " + name + zero);
  };
  with(gdpo::Over::Tokens, {0, 2, 2, 2}, "normalizer.tokens");
  with(gdpo::Over::Rows, {6, 0, 2, 2}, "normalizer.rows");
  with(gdpo::Over::NonEmptyRows, {6, 2, 0, 2}, "normalizer.non_empty_rows");
  Loss of_given;
  of_given.aggregate.over = gdpo::Over::Given;
  Call without_given;
  without_given.normalizer = {6, 2, 2, 0};
  without_given.fails(
      of_given,
      "gdpo::PolicyLoss: normalizer.given (aggregate.over is Over::Given): given 0; needed: more "
      "than 0: a count that the caller sets, because count() does not know it; in TRL and ms-swift "
      "inputs[\"num_items_in_batch\"], the completion tokens of the step over all processes (on "
      "one process: normalizer.given = normalizer.tokens)");
  refuses([](Call& c) { c.normalizer = {}; }, "normalizer.rows" + zero);
  const std::string needed = "; needed: a count: finite, at least 0";
  refuses([](Call& c) { c.normalizer.tokens = -1; }, "normalizer.tokens: given -1" + needed);
  refuses([](Call& c) { c.normalizer.rows = no; }, "normalizer.rows: given nan" + needed);
  refuses([](Call& c) { c.normalizer.non_empty_rows = inf; },
          "normalizer.non_empty_rows: given inf" + needed);
  refuses([](Call& c) { c.normalizer.given = -0.5; }, "normalizer.given: given -0.5" + needed);
  // A count of 0 is no mistake where all tokens are masked, or where the aggregate does not read
  // that count.
  Call call;
  const std::vector<int> mask(6, 0);
  call.batch.mask = gdpo::view(mask.data(), 2, 3);
  call.normalizer = {};
  CHECK(Loss{}(call.batch, call.normalizer, call.out).loss == 0);
  Call other;
  other.normalizer = {0, 2, 0, 0};
  CHECK(std::isfinite(Loss{}(other.batch, other.normalizer, other.out).loss));
}

TEST_CASE("counts of fewer tokens and rows than the batch holds", "[loss][errors]") {
  const auto with = [](gdpo::Over over, const gdpo::Normalizer& n, const std::vector<int>& mask,
                       bool packed) {
    Call call;
    if (packed) call.pack();
    if (!mask.empty()) {
      call.batch.mask =
          packed ? gdpo::TokenView<unsigned char>(gdpo::view(mask)) : gdpo::view(mask.data(), 2, 3);
    }
    call.normalizer = n;
    Loss loss;
    loss.aggregate.over = over;
    std::string message = "no error";
    try {
      loss(call.batch, call.normalizer, call.out);
    } catch (const gdpo::invalid_input& e) {
      message = e.what();
    }
    // What the shape alone says is known before anything is written.
    if (message != "no error" && mask.empty() && !packed && over != gdpo::Over::NonEmptyRows)
      CHECK(call.gradient == std::vector<double>(6, 42.0));
    return message;
  };
  const std::string name = "gdpo::PolicyLoss: normalizer.",
                    needed =
                        "; needed: the counts of the whole step, of all its micro-batches and "
                        "ranks; a number of your own to divide by stands in "
                        "normalizer.given, with aggregate.over = Over::Given";
  const std::vector<int> four{1, 1, 1, 1, 0, 0}, one_row{1, 1, 0, 0, 0, 0};
  using gdpo::Over;
  for (const bool packed : {false, true}) {
    CHECK(with(Over::Tokens, {5, 9, 9, 9}, {}, packed) ==
          name + "tokens: given 5, for a loss of 6" + needed);
    CHECK(with(Over::Tokens, {3.5, 9, 9, 9}, four, packed) ==
          name + "tokens: given 3.5, for a loss of 4" + needed);
    CHECK(with(Over::Rows, {9, 1, 9, 9}, four, packed) ==
          name + "rows: given 1, for a loss of 2" + needed);
    CHECK(with(Over::NonEmptyRows, {9, 9, 1, 9}, four, packed) ==
          name + "non_empty_rows: given 1, for a loss of 2" + needed);
    // As many and more are those of a step, whatever is masked; so are counts that do not divide.
    CHECK(with(Over::Tokens, {4, 1, 1, 0}, four, packed) == "no error");
    CHECK(with(Over::NonEmptyRows, {9, 9, 1, 9}, one_row, packed) == "no error");
    CHECK(with(Over::Rows, {1, 2, 1, 0}, four, packed) == "no error");
    CHECK(with(Over::Given, {1, 1, 1, 0.25}, four, packed) == "no error");
  }
  Call sum;
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None> of_nothing{
      {}, {}, {}, gdpo::aggregate::token_sum()};
  sum.normalizer = {1, 1, 1, 1};
  CHECK(of_nothing(sum.batch, sum.normalizer, sum.out).over == -1);
}

TEST_CASE("count refuses shapes that do not fit", "[loss][errors]") {
  Call call;
  call.batch.mask = gdpo::view(call.tokens.data(), 3, 2);
  CHECK_THROWS_WITH(
      gdpo::count(call.batch),
      "gdpo::count: batch.mask: given (3, 2); needed: (2, 3), the shape of batch.logp");
}

}  // namespace errors_test
