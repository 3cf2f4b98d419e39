// labels: sanitizers
// Mistakes in calls of ValueLoss: refused in words that name the caller's arrays, before anything
// is written.
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/value_cases.hpp"

namespace value_loss_errors_test {

namespace {

using namespace value_cases;
using Batch = gdpo::ValueBatch<float>;

/// A valid call of 2 rows of 3 tokens, to be changed.
struct Call {
  std::vector<float> numbers = std::vector<float>(64, 0.5F),
                     gradient = std::vector<float>(64, -7.0F);
  std::vector<double> weights = std::vector<double>(8, 1.0);
  std::vector<unsigned char> mask = std::vector<unsigned char>(64, 1);
  std::vector<index_t> offsets{0, 2, 6};
  gdpo::ValueLoss<> loss;
  gdpo::Normalizer counts;
  Batch batch;
  gdpo::TokenOut<float> out;

  Call() {
    loss.clip = 0.2;
    counts.tokens = 6, counts.rows = counts.non_empty_rows = 2;
    batch.values = batch.old_values = batch.returns = view(numbers.data(), 2, 3);
    batch.mask = view(mask.data(), 2, 3), batch.row_weights = view(weights.data(), 2);
    out = view(gradient.data(), 2, 3);
  }
  template <class Loss>
  std::string message(const Loss& of) {
    const std::string what = message_of([&] {
      gdpo::ValueWorkspace<float> workspace;
      of(gdpo::simd, batch, counts, out, workspace);
    });
    if (what != "no error") {
      for (const float g : gradient) CHECK(g == -7.0F);
    }
    return what;
  }
  std::string message() { return message(loss); }
};
/// The message after `change` has changed a valid call.
template <class Change>
std::string after(const Change& change) {
  Call call;
  change(call);
  return call.message();
}

}  // namespace

TEST_CASE("value loss errors: a valid call", "[value]") { CHECK(Call{}.message() == "no error"); }

TEST_CASE("value loss errors: settings", "[value]") {
  CHECK(after([](Call& c) { c.loss.clip = -0.1; }) ==
        "gdpo::ValueLoss: clip: given -0.10000000000000001; needed: at least 0 "
        "(infinity: no clip)");
  CHECK(after([](Call& c) { c.loss.clip = std::nan(""); }).find("clip: given nan") !=
        std::string::npos);
  CHECK(after([](Call& c) { c.loss.aggregate.count_eps = -1; }) ==
        "gdpo::ValueLoss: aggregate.count_eps: given -1; needed: a finite number of at least 0");
  CHECK(after([](Call& c) {
          c.loss.aggregate.scale = HUGE_VAL;
        }).find("gdpo::ValueLoss: aggregate.scale: given inf") == 0);
  Call packed;
  packed.batch.values = packed.batch.old_values = packed.batch.returns =
      view(packed.numbers.data(), 6);
  packed.batch.mask = {}, packed.batch.offsets = view(packed.offsets);
  packed.out = view(packed.gradient.data(), 6);
  gdpo::ValueLoss<> of_width;
  of_width.aggregate = gdpo::aggregate::seq_mean_token_sum_norm();
  of_width.aggregate.padded_width = true;
  CHECK(packed.message(of_width) ==
        "gdpo::ValueLoss: aggregate.padded_width: given true, with a packed batch; needed: a "
        "constant: packed tokens have no padded width");
  CHECK(packed.message() == "no error");
}

TEST_CASE("value loss errors: missing arrays", "[value]") {
  CHECK(after([](Call& c) { c.batch.values = {}; }) ==
        "gdpo::ValueLoss: batch.values: given no array; needed: the values of the critic that is "
        "trained");
  CHECK(after([](Call& c) { c.batch.returns = {}; }) ==
        "gdpo::ValueLoss: batch.returns: given no array; needed: what the values are trained "
        "towards");
  CHECK(after([](Call& c) { c.batch.old_values = {}; }) ==
        "gdpo::ValueLoss: batch.old_values: given no array; needed: the values at the rollout, "
        "because clip is finite");
  CHECK(after([](Call& c) {
          c.batch.old_values = {};
          c.loss.clip = gdpo::math::infinity;
        }) == "no error");
  CHECK(message_of([] { gdpo::count(Batch{}); }) ==
        "gdpo::count: batch: given no array of tokens and no offsets; needed: a mask, offsets or "
        "log-probs, which say how many tokens the rows have");
}

TEST_CASE("value loss errors: shapes", "[value]") {
  CHECK(after([](Call& c) { c.batch.returns = view(c.numbers.data(), 3, 2); }) ==
        "gdpo::ValueLoss: batch.returns: given (3, 2); needed: (2, 3), the shape of batch.values");
  CHECK(after([](Call& c) { c.batch.old_values = view(c.numbers.data(), 2, 1, 3); }) ==
        "gdpo::ValueLoss: batch.old_values: given (2, 1, 3); needed: (2, 3), the shape of "
        "batch.values");
  // An array whose shape does not fit is refused also where the clip does not read it.
  CHECK(after([](Call& c) {
          c.loss.clip = gdpo::math::infinity;
          c.batch.old_values = view(c.numbers.data(), 2, 4);
        }).find("batch.old_values: given (2, 4)") != std::string::npos);
  CHECK(after([](Call& c) { c.batch.mask = view(c.mask.data(), 2, 2); }) ==
        "gdpo::ValueLoss: batch.mask: given (2, 2); needed: (2, 3), the shape of batch.values");
  CHECK(after([](Call& c) {
          c.batch.row_weights = view(c.weights.data(), 3);
        }).find("gdpo::ValueLoss: batch.row_weights: given 3") == 0);
  CHECK(after([](Call& c) { c.out = view(c.gradient.data(), 2, 2); }) ==
        "gdpo::ValueLoss: gradient: given (2, 2); needed: (2, 3), the shape of batch.values");
  CHECK(after([](Call& c) {
          c.batch.values = c.batch.old_values = c.batch.returns = view(c.numbers.data(), 1, 2, 3);
          c.batch.mask = {}, c.out = {};
          c.batch.row_weights = view(c.weights.data(), 2, 1);
        }) ==
        "gdpo::ValueLoss: batch.row_weights: given (2, 1); needed: (1, 2), the prompts and "
        "completions of batch.values");
  CHECK(message_of([] {
          Call c;
          c.batch.values = {}, c.batch.returns = view(c.numbers.data(), 2, 2);
          gdpo::count(c.batch);
        }) ==
        "gdpo::count: batch.returns: given (2, 2); needed: (2, 3), the shape of "
        "batch.old_values");
}

TEST_CASE("value loss errors: row weights below 0, where the row has valid tokens", "[value]") {
  CHECK(after([](Call& c) { c.weights[1] = -1; }) ==
        "gdpo::ValueLoss: batch.row_weights(1): given -1; needed: a number of at least 0 for a row "
        "with valid tokens");
  CHECK(after([](Call& c) {
          c.weights[1] = -1;
          for (std::size_t t = 3; t < 6; ++t) c.mask[t] = 0;
        }) == "no error");
}

TEST_CASE("value loss errors: offsets", "[value]") {
  const auto packed = [](Call& c) {
    c.batch.values = c.batch.old_values = c.batch.returns = view(c.numbers.data(), 6);
    c.batch.mask = {}, c.out = {};
  };
  CHECK(after(packed) ==
        "gdpo::ValueLoss: batch.offsets: given none, with packed tokens (values has rank 1); "
        "needed: offsets (B + 1)");
  CHECK(after([](Call& c) { c.batch.offsets = view(c.offsets); }) ==
        "gdpo::ValueLoss: batch.offsets: given offsets, with padded tokens (values has rank 2); "
        "needed: none, or tokens of rank 1");
  CHECK(after([&](Call& c) {
          packed(c);
          c.offsets.back() = 5, c.batch.offsets = view(c.offsets);
        }) ==
        "gdpo::ValueLoss: batch.offsets: given from 0 to 5; needed: from 0 to 6, the number of "
        "tokens");
  CHECK(after([&](Call& c) {
          packed(c);
          c.offsets = {0, 7, 6}, c.batch.offsets = view(c.offsets);
        }).find("needed: offsets that never decrease") != std::string::npos);
}

TEST_CASE("value loss errors: counts", "[value]") {
  CHECK(after([](Call& c) { c.counts.tokens = 0; }) ==
        "gdpo::ValueLoss: normalizer.tokens: given 0; needed: the count that the aggregate divides "
        "by, more than 0 for a batch with tokens");
  CHECK(after([](Call& c) { c.counts.rows = -1; }) ==
        "gdpo::ValueLoss: normalizer.rows: given -1; needed: a count: finite, at least 0");
  CHECK(after([](Call& c) { c.counts.tokens = std::nan(""); }).find("normalizer.tokens: given") !=
        std::string::npos);
  CHECK(after([](Call& c) {
          c.loss.aggregate.over = gdpo::Over::Given;
        }).find("normalizer.given") != std::string::npos);
  const std::string fewer = "needed: the counts of the whole step, of all its micro-batches";
  CHECK(after([](Call& c) {
          c.counts.tokens = 5, c.batch.mask = {};
        }).find("gdpo::ValueLoss: normalizer.tokens: given 5, for a loss of 6; " + fewer) == 0);
  Call masked;  // known only after the rows: the gradient is written
  masked.mask[1] = 0, masked.counts.tokens = 4;
  const auto refused = [&](const auto& of) {
    return message_of([&] {
      gdpo::ValueWorkspace<float> workspace;
      of(gdpo::simd, masked.batch, masked.counts, masked.out, workspace);
    });
  };
  CHECK(refused(masked.loss).find("normalizer.tokens: given 4, for a loss of 5; " + fewer) !=
        std::string::npos);
  CHECK(refused(gdpo::with_metrics<gdpo::metrics::None>(masked.loss)) == refused(masked.loss));
  masked.counts.tokens = 5;
  CHECK(refused(masked.loss) == "no error");
  // Without tokens nothing is divided.
  CHECK(after([](Call& c) {
          c.counts.tokens = 0;
          c.mask.assign(64, 0), c.gradient.assign(64, 0);
        }) == "no error");
}

TEST_CASE("value loss errors: results that do not belong to one step", "[value]") {
  gdpo::ValueLossResult a, b;
  a.metrics.rows = b.metrics.rows = 2;
  a.normalizer.tokens = 10, b.normalizer.tokens = 11;
  CHECK(message_of([&] { merge(a, b); }) ==
        "gdpo::merge: b.normalizer: given 11 tokens, 0 rows, 0 non-empty rows, 0 given; needed: 10 "
        "tokens, 0 rows, 0 non-empty rows, 0 given, the counts of the step, as in a");
}

TEST_CASE("offsets of an impossible extent are refused by name", "[value_loss][errors]") {
  const float x[1] = {0};
  const std::int64_t offsets[1] = {0};
  const double weights[1] = {1};
  for (const gdpo::index_t extent :
       {gdpo::index_t{-1}, (std::numeric_limits<gdpo::index_t>::min)()}) {
    gdpo::ValueBatch<float> batch;
    batch.values = gdpo::view(x, gdpo::index_t{0});
    batch.offsets = gdpo::view(offsets, extent);
    batch.row_weights = gdpo::view(weights, 1);
    INFO(extent);
    CHECK(message_of([&] { gdpo::count(batch); }).find("gdpo::count: batch.offsets: given") == 0);
  }
}

}  // namespace value_loss_errors_test
