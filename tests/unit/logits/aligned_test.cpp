// labels: lanes, sanitizers
// Whole sequences: which row predicts which token. The model is sure of every next token, so that
// an alignment that is off by one row would show in every log-prob.
#include <gdpo/logits.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace aligned_test {

namespace {

constexpr int vocabulary = 11;

/// Row i has the logit 9 for the token that follows it in its sequence and 0 for the others. The
/// last row of a sequence has 9 for token 10.
std::vector<float> sure_of_next(const std::vector<int>& ids, const std::vector<std::size_t>& ends) {
  std::vector<float> logits(ids.size() * vocabulary, 0.0f);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool last = std::count(ends.begin(), ends.end(), i + 1) > 0;
    logits[i * vocabulary + static_cast<std::size_t>(last ? 10 : ids[i + 1])] = 9.0f;
  }
  return logits;
}
const float sure = static_cast<float>(-std::log1p((vocabulary - 1) * std::exp(-9.0)));

}  // namespace

TEST_CASE("padded: row t of the logits predicts token t + 1") {
  const std::vector<int> ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 2, 4};
  const std::vector<float> logits = sure_of_next(ids, {4, 8, 12});
  const auto table = gdpo::view(logits.data(), 3, 4, vocabulary);
  const auto batch = gdpo::aligned(table, gdpo::view(ids.data(), 3, 4));
  CHECK(batch.logits.extent[1] == 3);
  for (const float logp : gdpo::token_logprobs(batch).logp)
    CHECK(logp == Approx(sure).margin(1e-6));

  // The mask is per token and 0 for the prompt. The first token of a completion is predicted by the
  // last row of the prompt.
  const std::vector<unsigned char> mask{0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1};
  const std::vector<float> logp =
      gdpo::token_logprobs(
          gdpo::aligned(table, gdpo::view(ids.data(), 3, 4), gdpo::view(mask.data(), 3, 4)))
          .logp;
  const std::vector<bool> predicted{false, true, true, true, true, false, true, true, true};
  for (std::size_t k = 0; k < 9; ++k)
    CHECK(logp[k] == (predicted[k] ? Approx(sure).margin(1e-6) : Approx(0)));
}

TEST_CASE("packed: the last row of a sequence predicts nothing") {
  const std::vector<int> ids{1, 2, 3, 4, 5, 6, 7};
  // The second sequence is empty, and the third has a single token.
  const std::vector<std::int32_t> offsets{0, 3, 3, 4, 7};
  const std::vector<float> logits = sure_of_next(ids, {3, 4, 7});
  const auto table = gdpo::view(logits.data(), 7, vocabulary);
  const std::vector<float> logp =
      gdpo::token_logprobs(gdpo::aligned(table, gdpo::view(ids), gdpo::view(offsets))).logp;
  const std::vector<bool> predicts{true, true, false, false, true, true, false};
  for (std::size_t i = 0; i < 7; ++i)
    CHECK(logp[i] == (predicts[i] ? Approx(sure).margin(1e-6) : Approx(0)));

  // Tokens 2 and 5 do not belong to a completion.
  const std::vector<unsigned char> mask{1, 1, 0, 1, 1, 0, 1};
  const std::vector<float> masked =
      gdpo::token_logprobs(
          gdpo::aligned(table, gdpo::view(ids), gdpo::view(offsets), gdpo::view(mask)))
          .logp;
  const std::vector<bool> left{true, false, false, false, false, true, false};
  for (std::size_t i = 0; i < 7; ++i)
    CHECK(masked[i] == (left[i] ? Approx(sure).margin(1e-6) : Approx(0)));
}

TEST_CASE("padded and packed are the same rows") {
  const std::vector<int> ids{3, 1, 4, 1, 5, 9, 2, 6};
  const std::vector<float> logits = sure_of_next({3, 1, 4, 1, 5, 9, 2, 6}, {4, 8});
  const std::vector<int> offsets{0, 4, 8};
  const auto padded = gdpo::token_logprobs(
      gdpo::aligned(gdpo::view(logits.data(), 2, 4, vocabulary), gdpo::view(ids.data(), 2, 4)));
  const auto packed = gdpo::token_logprobs(gdpo::aligned(gdpo::view(logits.data(), 8, vocabulary),
                                                         gdpo::view(ids), gdpo::view(offsets)));
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t t = 0; t < 3; ++t) CHECK(padded.logp[row * 3 + t] == packed.logp[row * 4 + t]);
    CHECK(packed.logp[row * 4 + 3] == 0);
  }
}

TEST_CASE("sequences of one token, and none") {
  const std::vector<float> logits(3 * vocabulary);
  const std::vector<int> ids{1, 2, 3}, offsets{0, 1, 2, 3};
  CHECK(gdpo::token_logprobs(gdpo::aligned(gdpo::view(logits.data(), 3, 1, vocabulary),
                                           gdpo::view(ids.data(), 3, 1)))
            .logp.empty());
  CHECK(gdpo::token_logprobs(gdpo::aligned(gdpo::view(logits.data(), 3, 0, vocabulary),
                                           gdpo::view(ids.data(), 3, 0)))
            .logp.empty());
  CHECK(gdpo::token_logprobs(gdpo::aligned(gdpo::view(logits.data(), 3, vocabulary),
                                           gdpo::view(ids), gdpo::view(offsets)))
            .logp == std::vector<float>(3));
}

TEST_CASE("shapes that do not fit are refused") {
  const std::vector<float> logits(6 * vocabulary);
  const std::vector<int> ids(6), offsets{0, 6}, wrong{0, 5};
  const std::vector<unsigned char> mask(6);
  const auto padded = gdpo::view(logits.data(), 2, 3, vocabulary);
  const auto packed = gdpo::view(logits.data(), 6, vocabulary);
  CHECK(message_of([&] { gdpo::aligned(padded, gdpo::view(ids.data(), 3, 2)); }) ==
        "gdpo::aligned: input_ids: given (3, 2); needed: (2, 3), the shape of logits without the "
        "vocabulary");
  CHECK(message_of([&] {
          gdpo::aligned(padded, gdpo::view(ids.data(), 2, 3), gdpo::view(mask.data(), 2, 2));
        }) ==
        "gdpo::aligned: mask: given (2, 2); needed: (2, 3), the shape of logits without the "
        "vocabulary");
  CHECK(
      message_of([&] { gdpo::aligned(packed, gdpo::view(ids.data(), 5), gdpo::view(offsets)); }) ==
      "gdpo::aligned: input_ids: given 5 entries; needed: one for each of the 6 rows of logits");
  CHECK(message_of([&] { gdpo::aligned(packed, gdpo::view(ids), gdpo::IndexColumn{}); }) ==
        "gdpo::aligned: offsets: given none; needed: where the sequences begin and end, (B + 1)");
  CHECK(
      message_of([&] {
        gdpo::token_logprobs(gdpo::aligned(packed, gdpo::view(ids), gdpo::view(wrong)));
      }) ==
      "gdpo::token_logprobs: offsets: given from 0 to 5; needed: from 0 to 6, the number of rows");
}

}  // namespace aligned_test
