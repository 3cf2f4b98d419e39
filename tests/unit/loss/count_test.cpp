// labels: sanitizers
// Counts before the forward pass, from masks and offsets alone, on the host and on a device; and
// the order prepare, count, loss, which calls do not let anybody get wrong.
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/value.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/generators.hpp"
#include "support/host_only.hpp"
#include "support/message.hpp"

namespace count_test {

namespace {

using gdpo::Normalizer;
using Bytes = std::vector<unsigned char>;

std::string text(const Normalizer& n) {
  return gdpo::contract::text(n.tokens) + std::string(" tokens, ") + gdpo::contract::text(n.rows) +
         " rows, " + gdpo::contract::text(n.non_empty_rows) + " not empty";
}
const auto text_of = [](double tokens, double rows, double non_empty) {
  return text(Normalizer{tokens, rows, non_empty});
};

/// What count_into() leaves on a device for a batch whose arrays are there.
template <class... Batch>
Normalizer on_device(const Batch&... batch) {
  OnDevice<Normalizer> n(std::vector<Normalizer>(1));
  TestScratch scratch(gdpo::cuda::scratch_bytes(batch...));
  gdpo::cuda::count_into(test_device(3), batch..., n.data(), scratch());
  return n.host()[0];
}

/// Rows of 3, 0, 4 and 1 tokens, some of them masked: padded to a width of 4, and packed.
struct Rows {
  Bytes padded{1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1}, packed{1, 0, 1, 1, 1, 1, 1, 0};
  std::vector<std::int32_t> offsets{0, 3, 3, 7, 8};
};

}  // namespace

TEST_CASE("a mask or offsets say how much is counted, without log-probs", "[count]") {
  const Rows rows;
  gdpo::TokenBatch<float> b;
  b.mask = gdpo::view(rows.padded.data(), 4, 4);
  CHECK(text(gdpo::count(b)) == text_of(9, 4, 3));
  b.mask = gdpo::view(rows.padded.data(), 2, 2, 4);  // (prompts, completions, tokens)
  CHECK(text(gdpo::count(b)) == text_of(9, 4, 3));
  gdpo::TokenBatch<double> p;
  p.offsets = gdpo::view(rows.offsets);
  CHECK(text(gdpo::count(p)) == text_of(8, 4, 3));
  p.mask = gdpo::view(rows.packed);
  CHECK(text(gdpo::count(p)) == text_of(6, 4, 2));
  // Any array of tokens gives the shape: here there is no mask, so that every token counts.
  const std::vector<float> entropies(12, 0.5f);
  gdpo::TokenBatch<float> e;
  e.entropies = gdpo::view(entropies.data(), 3, 4);
  CHECK(text(gdpo::count(e)) == text_of(12, 3, 3));
  // They are the counts of the batch with its log-probs.
  const std::vector<float> logp(16, -1.0f);
  b.logp = gdpo::view(logp.data(), 2, 2, 4);
  CHECK(text(gdpo::count(b)) == text_of(9, 4, 3));
}

TEST_CASE("the completion mask of whole sequences is counted before there are logits",
          "[count][logits]") {
  // The first token of a sequence is not predicted, whatever its mask.
  const Bytes mask{1, 1, 0, 1, 0, 0, 0, 1};
  const auto padded = gdpo::aligned(gdpo::view(mask.data(), 2, 4));
  CHECK(text(gdpo::count(padded)) == text_of(3, 2, 2));
  const std::vector<int> offsets{0, 3, 3, 8}, ids{0, 1, 2, 0, 1, 2, 0, 1};
  const auto packed = gdpo::aligned(gdpo::view(mask), gdpo::view(offsets));
  CHECK(text(gdpo::count(packed)) == text_of(2, 3, 2));
  // The counts are those of the batch with its logits.
  const std::vector<float> table(8 * 3);
  CHECK(text(gdpo::count(gdpo::aligned(gdpo::view(table.data(), 2, 4, 3),
                                       gdpo::view(ids.data(), 2, 4),
                                       gdpo::view(mask.data(), 2, 4)))) == text_of(3, 2, 2));
  CHECK(text(gdpo::count(gdpo::aligned(gdpo::view(table.data(), 8, 3), gdpo::view(ids),
                                       gdpo::view(offsets), gdpo::view(mask)))) ==
        text_of(2, 3, 2));
  // A mask of the batch, such as that of a pre-pass, is joined.
  const Bytes left{1, 1, 1, 0, 0, 0};
  gdpo::TokenBatch<float> batch;
  batch.mask = gdpo::view(left.data(), 2, 3);
  CHECK(text(gdpo::count(padded, batch)) == text_of(2, 2, 1));
  // Without a mask of logits, that of the batch, the targets or the offsets give the rows.
  CHECK(text(gdpo::count(gdpo::LogitBatch<float, 3>{}, batch)) == text_of(3, 2, 1));
  gdpo::LogitBatch<float, 2> of_targets;
  of_targets.targets = gdpo::view(ids);
  of_targets.offsets = gdpo::view(offsets);
  CHECK(text(gdpo::count(of_targets)) == text_of(6, 3, 2));
  of_targets.targets = {};
  CHECK(text(gdpo::count(of_targets)) == text_of(6, 3, 2));
  CHECK(message_of([] { gdpo::count(gdpo::LogitBatch<float, 3>{}); }) ==
        "gdpo::count: logits, mask, targets, batch.mask: given none; needed: one of them, which "
        "says how many rows there are");
  CHECK(message_of([&] { gdpo::aligned(gdpo::view(mask), gdpo::IndexColumn{}); }) ==
        "gdpo::aligned: offsets: given none; needed: where the sequences begin and end, (B + 1)");
  CHECK(message_of([] { gdpo::aligned(gdpo::view(static_cast<const int*>(nullptr), 2, 4)); }) ==
        "gdpo::aligned: mask: given a null pointer; needed: (2, 4) elements");
}

TEST_CASE("on a device: counts before the forward pass", "[count][cuda]") {
  const Rows rows;
  OnDevice<unsigned char> padded(rows.padded), packed(rows.packed);
  OnDevice<std::int32_t> offsets(rows.offsets);
  gdpo::TokenBatch<float> b;
  b.mask = gdpo::view(padded.data(), 4, 4);
  CHECK(text(on_device(b)) == text_of(9, 4, 3));
  gdpo::TokenBatch<float> p;
  p.offsets = gdpo::view(offsets.data(), 5);
  CHECK(text(on_device(p)) == text_of(8, 4, 3));
  p.mask = gdpo::view(packed.data(), 8);
  CHECK(text(on_device(p)) == text_of(6, 4, 2));

  const gdpo::TokenBatch<float> none;
  CHECK(text(on_device(gdpo::aligned(gdpo::view(padded.data(), 4, 4)), none)) ==
        text(gdpo::count(gdpo::aligned(gdpo::view(rows.padded.data(), 4, 4)))));
  CHECK(text(on_device(gdpo::aligned(gdpo::view(packed.data(), 8), gdpo::view(offsets.data(), 5)),
                       none)) ==
        text(gdpo::count(gdpo::aligned(gdpo::view(rows.packed), gdpo::view(rows.offsets)))));
  // The host cannot read the offsets, so that they alone do not say how many rows there are.
  gdpo::LogitBatch<float, 2> of_offsets;
  of_offsets.offsets = gdpo::view(offsets.data(), 5);
  CHECK_THAT(message_of([&] { gdpo::cuda::scratch_bytes(of_offsets, none); }),
             Catch::Matchers::StartsWith("gdpo::cuda::scratch_bytes: logits, mask, targets"));
}

TEST_CASE("a step is prepared and counted before its forward pass", "[count][prepass]") {
  const Rows rows;
  const std::vector<int> truncated{1, 0, 0, 0};
  gdpo::TokenBatch<float> b;
  b.mask = gdpo::view(rows.padded.data(), 4, 4);
  gdpo::PrepassMemory<float> memory;
  gdpo::TokenBatch<float> prepared =
      gdpo::prepare(b, memory, gdpo::prepass::Overlong{gdpo::view(truncated)});
  const Normalizer n = gdpo::count(prepared);
  CHECK(text(n) == text_of(7, 4, 2));
  gdpo::PrepassMemory<float> of_offsets;
  gdpo::TokenBatch<float> packed;
  packed.offsets = gdpo::view(rows.offsets);
  CHECK(text(gdpo::count(
            gdpo::prepare(packed, of_offsets, gdpo::prepass::Overlong{gdpo::view(truncated)}))) ==
        text_of(5, 4, 2));

  const std::vector<float> logp(16, -1.0f), old_logp(16, -1.25f), advantages{1, 2, -1, 0.5f};
  const auto complete = [&](gdpo::TokenBatch<float> batch) {
    batch.logp = gdpo::view(logp.data(), 4, 4), batch.old_logp = gdpo::view(old_logp.data(), 4, 4);
    batch.advantages = gdpo::view(advantages);
    return batch;
  };
  gdpo::PrepassMemory<float> another;
  const auto later =
      gdpo::prepare(complete(b), another, gdpo::prepass::Overlong{gdpo::view(truncated)});
  CHECK(gdpo::dapo_loss(complete(prepared), n).loss ==
        gdpo::dapo_loss(later, gdpo::count(later)).loss);
  // Pre-passes that read log-probs say so.
  const std::string needed =
      "gdpo::prepare: batch.logp: given no array; needed: the log-probs of the policy being "
      "trained, because of prepass::";
  b.rollout_logp = gdpo::view(old_logp.data(), 4, 4);
  CHECK(message_of([&] { gdpo::prepare(b, memory, gdpo::prepass::Importance{}); }) ==
        needed + "Importance without batch.old_logp");
  gdpo::prepass::Gate gate;
  CHECK(message_of([&] { gdpo::prepare(b, memory, gate); }) ==
        needed + "Gate without batch.old_logp");
  b.old_logp = gdpo::view(logp.data(), 4, 4);
  CHECK(message_of([&] { gdpo::prepare(b, memory, gate, gdpo::prepass::Importance{}); }) ==
        "no error");
  gate.pair = gdpo::prepass::Pair::Update;
  CHECK(message_of([&] { gdpo::prepare(b, memory, gate); }) == needed + "Gate on this pair");
}

TEST_CASE("counts from before prepare() are refused, sums and counts by hand are not",
          "[count][prepass]") {
  const std::vector<float> logp(6, -1.0f), advantages{1, -0.5f};
  const std::vector<int> none_truncated{0, 0}, truncated{0, 1};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 2, 3);
  batch.advantages = gdpo::view(advantages);
  gdpo::PrepassMemory<float> memory;
  const auto loss = [](const auto& of, const gdpo::TokenBatch<float>& b, const Normalizer& n) {
    return message_of([&] { of(b, n); });
  };
  const std::string refused =
      "gdpo::PolicyLoss: normalizer: given counts from before prepare() changed the mask; needed: "
      "the counts of the prepared batch (prepare, count, loss), or a sum if these are meant: "
      "gdpo::Normalizer{} + counts";
  // Whether the pre-pass dropped something or not: the mistake shows in the first step.
  for (const auto* flags : {&none_truncated, &truncated}) {
    const Normalizer before = gdpo::count(batch);
    const auto prepared = gdpo::prepare(batch, memory, gdpo::prepass::Overlong{gdpo::view(*flags)});
    const Normalizer after = gdpo::count(prepared);
    CHECK(loss(gdpo::dapo_loss, prepared, before) == refused);
    auto of_rows = gdpo::grpo_loss;  // divides by the rows, whose number no pre-pass changes
    of_rows.kl.beta = 0;
    CHECK(loss(of_rows, prepared, before) == "no error");
    const gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None> of_nothing{
        {}, {}, {}, gdpo::aggregate::token_sum()};
    CHECK(loss(of_nothing, prepared, before) == "no error");
    CHECK(loss(gdpo::dapo_loss, prepared, after) == "no error");
    CHECK(loss(gdpo::dapo_loss, batch, before) == "no error");
    // The counts of a step are those of no single batch.
    CHECK(loss(gdpo::dapo_loss, prepared, before + before) == "no error");
    CHECK(loss(gdpo::dapo_loss, prepared, Normalizer{} + before) == "no error");
    Normalizer sum;
    sum += before;
    CHECK(loss(gdpo::dapo_loss, prepared, sum) == "no error");
    CHECK(loss(gdpo::dapo_loss, prepared, Normalizer{6, 2, 2}) == "no error");
    Normalizer by_ranks = before;  // added in place, as MPI_Allreduce does
    by_ranks.tokens += 100;
    CHECK(loss(gdpo::dapo_loss, prepared, by_ranks) == "no error");
    by_ranks = before;
    by_ranks.rows = 7;
    CHECK(loss(gdpo::dapo_loss, prepared, by_ranks) == "no error");
    // A count of the caller's own is not one of the batch.
    Normalizer own = before;
    own.given = 12;
    auto of_given = gdpo::dapo_loss;
    of_given.aggregate.over = gdpo::Over::Given;
    CHECK(loss(of_given, prepared, own) == "no error");
    // Prepared twice, counted in between.
    gdpo::PrepassMemory<float> second;
    const auto twice = gdpo::prepare(prepared, second, gdpo::prepass::Overlong{gdpo::view(*flags)});
    CHECK(loss(gdpo::dapo_loss, twice, after) == refused);
    CHECK(loss(gdpo::dapo_loss, twice, gdpo::count(twice)) == "no error");
  }
  // Weights change no count.
  const Normalizer before = gdpo::count(batch);
  batch.rollout_logp = gdpo::view(logp.data(), 2, 3);
  const auto weighed = gdpo::prepare(batch, memory, gdpo::prepass::Importance{});
  CHECK(loss(gdpo::dapo_loss, weighed, before) == "no error");
}

TEST_CASE("the same from logits and on a device", "[count][prepass][logits][cuda]") {
  const Bytes mask{1, 1, 0, 1, 1, 1};
  const std::vector<int> ids{0, 1, 2, 0, 1, 1}, truncated{0, 1};
  std::vector<float> table(18, 0.5f);
  const std::vector<float> advantages{1, -0.5f};
  const auto logits = gdpo::aligned(gdpo::view(table.data(), 2, 3, 3), gdpo::view(ids.data(), 2, 3),
                                    gdpo::view(mask.data(), 2, 3));
  gdpo::TokenBatch<float> batch;
  batch.mask = logits.mask;
  batch.advantages = gdpo::view(advantages);
  gdpo::PrepassMemory<float> memory;
  const Normalizer before = gdpo::count(logits, batch);
  const auto prepared =
      gdpo::prepare(batch, memory, gdpo::prepass::Overlong{gdpo::view(truncated)});
  const gdpo::View<float, 3> dlogits = gdpo::view(table.data(), {2, 2, 3}, {9, 3, 1});
  const auto from_logits = [&](const Normalizer& n) {
    return message_of(
        [&] { gdpo::policy_loss_from_logits(gdpo::dapo_loss, logits, prepared, n, dlogits); });
  };
  CHECK_THAT(from_logits(before), Catch::Matchers::Contains("counts from before prepare()"));
  CHECK(from_logits(gdpo::count(logits, prepared)) == "no error");

  // On a device the counts that the host knows are checked; those in its memory cannot be.
  gdpo::LossResult result;
  std::vector<float> logp(4, -1.0f);
  auto b = prepared;
  b.logp = gdpo::view(logp.data(), 2, 2);
  std::vector<double> bytes(1000);
  const gdpo::cuda::Scratch scratch{bytes.data(), bytes.size() * sizeof(double)};
  const auto on_grid = [&](const gdpo::cuda::DeviceNormalizer& n) {
    return message_of([&] {
      gdpo::dapo_loss(SimulatedGrid{1}, b, n, gdpo::TokenOut<float>{}, &result, scratch);
    });
  };
  CHECK_THAT(on_grid(before), Catch::Matchers::Contains("counts from before prepare()"));
  CHECK(on_grid(&before) == "no error");
  CHECK(on_grid(gdpo::count(prepared)) == "no error");
}

TEST_CASE("a prepared batch whose memory was used again is refused", "[count][prepass]") {
  const std::vector<float> logp(6, -1.0f), advantages{1, -0.5f};
  const std::vector<int> truncated{0, 1};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 2, 3);
  batch.advantages = gdpo::view(advantages);
  const gdpo::prepass::Overlong overlong{gdpo::view(truncated)};
  gdpo::PrepassMemory<float> memory;
  const auto first = gdpo::prepare(batch, memory, overlong);
  const Normalizer n = gdpo::count(first);
  // Moving the memory moves no array.
  std::vector<gdpo::PrepassMemory<float>> kept;
  kept.push_back(std::move(memory));
  CHECK(message_of([&] { gdpo::dapo_loss(first, n); }) == "no error");
  // A pre-pass that is off writes nothing.
  gdpo::prepare(batch, kept[0], gdpo::prepass::DegenerateGroups{});
  CHECK(message_of([&] { gdpo::dapo_loss(first, n); }) == "no error");
  const auto second = gdpo::prepare(batch, kept[0], overlong);
  const std::string refused =
      "batch: given a prepared batch whose PrepassMemory has prepared another one since; needed: a "
      "PrepassMemory for each prepared batch that is in use";
  CHECK(message_of([&] { gdpo::dapo_loss(first, n); }) == "gdpo::PolicyLoss: " + refused);
  CHECK(message_of([&] { gdpo::count(first); }) == "gdpo::count: " + refused);
  CHECK(message_of([&] { gdpo::prepare(first, kept[0]); }) == "gdpo::prepare: " + refused);
  CHECK(message_of([&] { gdpo::dapo_loss(second, gdpo::count(second)); }) == "no error");
}

TEST_CASE("a batch prepared in two memories is watched in the last of them", "[count][prepass]") {
  const std::vector<float> logp(8, -1.0f), advantages{1, -0.5f};
  const std::vector<int> truncated{0, 1}, none{0, 0};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 2, 4);
  batch.advantages = gdpo::view(advantages);
  gdpo::PrepassMemory<float> a, b;
  gdpo::prepass::Overlong weighs{gdpo::view(truncated)};
  weighs.reach = gdpo::Reach::SurrogateAndKl;
  const auto first = gdpo::prepare(batch, a, gdpo::prepass::Overlong{gdpo::view(truncated)});
  const auto second = gdpo::prepare(first, b, weighs);
  // The first memory may be used again: what it held has moved.
  gdpo::prepare(batch, a, gdpo::prepass::Overlong{gdpo::view(none)});
  CHECK(gdpo::count(second).tokens == 4);
  CHECK(gdpo::dapo_loss(second, gdpo::count(second)).metrics.completion_length.row_sum == 8);
  gdpo::prepare(batch, b, weighs);
  CHECK_THAT(message_of([&] { gdpo::count(second); }),
             Catch::Matchers::StartsWith("gdpo::count: batch: given a prepared batch whose"));
  // From logits the memory is looked at before its arrays are read.
  const Bytes small_mask{1, 1, 1, 1, 1, 1}, large_mask(60, 1);
  gdpo::TokenBatch<float> small, large;
  small.mask = gdpo::view(small_mask.data(), 2, 3),
  large.mask = gdpo::view(large_mask.data(), 2, 30);
  gdpo::PrepassMemory<float> memory;
  const gdpo::prepass::Overlong drop{gdpo::view(truncated)};
  const auto old = gdpo::prepare(small, memory, drop);
  gdpo::prepare(large, memory, drop);
  CHECK_THAT(message_of([&] { gdpo::count(gdpo::LogitBatch<float, 3>{}, old); }),
             Catch::Matchers::StartsWith("gdpo::count: batch: given a prepared batch whose"));
}

TEST_CASE("arrays without elements do not give a batch its shape", "[count]") {
  const Bytes mask(8, 1);
  const std::vector<float> empty;
  gdpo::TokenBatch<float> batch;
  batch.mask = gdpo::view(mask.data(), 2, 4);
  batch.ref_logp = gdpo::view(empty.data(), 0, 4);
  CHECK(gdpo::count(batch).tokens == 8);
  batch.mask = {};
  CHECK(gdpo::count(batch).rows == 0);
}

TEST_CASE("the shifted mask of packed sequences ends with its array", "[count][logits]") {
  // In memory of exactly its size, so that a sanitizer sees a read behind it.
  const std::unique_ptr<unsigned char[]> mask(new unsigned char[6]{1, 1, 1, 1, 1, 1});
  const std::vector<int> offsets{0, 2, 6}, truncated{0, 1};
  const auto logits = gdpo::aligned(gdpo::view(mask.get(), 6), gdpo::view(offsets));
  CHECK(logits.mask.extent(0) == 5);
  CHECK(gdpo::count(logits).tokens == 4);
  gdpo::TokenBatch<float> batch;
  batch.offsets = gdpo::view(offsets);
  gdpo::PrepassMemory<float> memory;
  const gdpo::prepass::Overlong drop{gdpo::view(truncated)};
  CHECK(gdpo::count(logits, gdpo::prepare(batch, memory, drop)).tokens == 1);
  batch.mask = logits.mask;
  CHECK(
      message_of([&] { gdpo::prepare(batch, memory, drop); }) ==
      "gdpo::prepare: batch.offsets: given from 0 to 6; needed: from 0 to 5, the number of tokens");
  // Only offsets allow it, and offsets have a sound number of entries.
  gdpo::LogitBatch<float, 2> wrong = logits;
  wrong.offsets = {};
  CHECK(message_of([&] { gdpo::count(wrong); }) ==
        "gdpo::count: mask: given (5); needed: (6), the shape of logits without the vocabulary");
  wrong.offsets = gdpo::view(offsets.data(), -1);
  CHECK(message_of([&] { gdpo::count(wrong); }) ==
        "gdpo::count: offsets: given (-1); needed: extents of at least 0");
}

TEST_CASE("labels are no mask", "[loss][count]") {
  const std::string needed =
      "; needed: 0 where a token does not count, and not 0 where it does: of labels, where they "
      "differ from -100";
  const auto message = [](const auto& labels, bool packed) {
    const std::vector<std::int64_t> offsets{0, 3, 6};
    gdpo::TokenBatch<float> batch;
    if (packed) {
      batch.mask = gdpo::view(labels), batch.offsets = gdpo::view(offsets);
    } else {
      batch.mask = gdpo::view(labels.data(), 2, 3);
    }
    return message_of([&] { gdpo::count(batch); });
  };
  for (const bool packed : {false, true}) {
    // Prompts have the label -100, and so does padding.
    CHECK(message(std::vector<std::int64_t>{-100, 7, 9, -100, 4, 2}, packed) ==
          "gdpo::count: batch.mask: given -100 at row 0, token 0" + needed);
    CHECK(message(std::vector<int>{5, 7, 9, 5, 4, -100}, packed) ==
          "gdpo::count: batch.mask: given -100 at row 1, token 2" + needed);
    CHECK(message(std::vector<float>{-100, 7, 9, 5, 4, 1}, packed) ==
          "gdpo::count: batch.mask: given -100 at row 0, token 0" + needed);
    CHECK(message(std::vector<std::int64_t>{-1, 7, 0, -99, 4, 0}, packed) == "no error");
    CHECK(message(std::vector<unsigned char>{156, 7, 0, 156, 4, 0}, packed) == "no error");
  }
  // The same for the other masks and calls on the host.
  const std::vector<int> labels{-100, 7, 9, -100, 4, 2};
  const std::vector<float> logp(6, -1.0F), advantages(2, 1.0F);
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 2, 3), batch.advantages = gdpo::view(advantages);
  batch.completion_mask = gdpo::view(labels.data(), 2, 3);
  const auto begins = [](const std::string& what, const std::string& with) {
    INFO(what);
    CHECK(what.find(with) == 0);
  };
  begins(message_of([&] {
           gdpo::dapo_loss(batch, Normalizer{6, 2, 2});
         }),
         "gdpo::PolicyLoss: batch.completion_mask: given -100 at row 0");
  gdpo::ValueBatch<float> values;
  values.values = values.returns = batch.logp, values.mask = gdpo::view(labels.data(), 2, 3);
  begins(message_of([&] { gdpo::count(values); }), "gdpo::count: batch.mask: given -100 at row 0");
  gdpo::ReturnBatch<float> returns;
  returns.rewards = batch.logp, returns.mask = values.mask;
  std::vector<float> out(6);
  begins(message_of([&] {
           gdpo::advantages_and_returns_into(returns,
                                             gdpo::TokenAdvantage<gdpo::returns::RewardToGo>{},
                                             gdpo::view(out.data(), 2, 3));
         }),
         "gdpo::advantages_and_returns_into: batch.mask: given -100 at row 0");
  gdpo::TokenBatch<float> masked;
  masked.mask = values.mask;
  begins(message_of([&] { gdpo::count(gdpo::LogitBatch<float, 3>{}, masked); }),
         "gdpo::count: batch.mask: given -100 at row 0");
}

}  // namespace count_test
