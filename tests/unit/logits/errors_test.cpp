// labels: sanitizers
// Every mistake that the logits functions refuse, with its message word for word; nothing is
// written then.
#include <gdpo/logits.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace errors_test {

namespace {

/// Two padded sequences of two rows with three logits each, and the same four rows packed as one
/// sequence.
struct Call {
  std::vector<float> logits = std::vector<float>(12, 0.5f), logp = std::vector<float>(4, 42.0f),
                     g = std::vector<float>(4, 1.0f);
  std::vector<double> logsumexp = std::vector<double>(4, 42.0);
  std::vector<std::int64_t> targets{0, 1, 2, 0};
  std::vector<unsigned char> mask{1, 1, 1, 1};
  std::vector<int> offsets{0, 4};
  gdpo::LogitBatch<float, 3> padded;
  gdpo::LogitBatch<float, 2> packed;
  gdpo::TokenLogprobsOut out;

  Call() {
    padded.logits = gdpo::view(logits.data(), 2, 2, 3);
    padded.targets = gdpo::view(targets.data(), 2, 2);
    padded.mask = gdpo::view(mask.data(), 2, 2);
    packed.logits = gdpo::view(logits.data(), 4, 3);
    packed.targets = gdpo::view(targets);
    packed.offsets = gdpo::view(offsets);
    out.logp = gdpo::view(logp.data(), 2, 2);
    out.logsumexp = gdpo::view(logsumexp.data(), 2, 2);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  void unchanged() const {
    CHECK(logits == std::vector<float>(12, 0.5f));
    CHECK(logp == std::vector<float>(4, 42.0f));
    CHECK(logsumexp == std::vector<double>(4, 42.0));
  }
};

template <class Change>
void refuses(const Change& change, const std::string& expected) {
  Call call;
  change(call);
  CHECK(message_of([&] { gdpo::token_logprobs_into(gdpo::seq, call.padded, call.out); }) ==
        "gdpo::token_logprobs: " + expected);
  call.unchanged();
}
template <class Change>
void refuses_packed(const Change& change, const std::string& expected) {
  Call call;
  change(call);
  gdpo::TokenLogprobsOut out;
  out.logp = gdpo::view(call.logp);
  CHECK(message_of([&] { gdpo::token_logprobs_into(gdpo::seq, call.packed, out); }) ==
        "gdpo::token_logprobs: " + expected);
  call.unchanged();
}
/// The same for the backward, which would write over the logits.
template <class Change>
void backward_refuses(const Change& change, const std::string& expected) {
  Call call;
  gdpo::TokenLogprobsGrad grad{gdpo::view(call.g.data(), 2, 2), {}};
  gdpo::TokenView<double> logsumexp = gdpo::view(call.logsumexp.data(), 2, 2);
  auto dlogits = gdpo::view(call.logits.data(), 2, 2, 3);
  change(call, grad, logsumexp, dlogits);
  CHECK(message_of([&] {
          gdpo::token_logprobs_backward(gdpo::seq, call.padded, grad, logsumexp, dlogits);
        }) == "gdpo::token_logprobs_backward: " + expected);
  call.unchanged();
}

}  // namespace

TEST_CASE("logits") {
  refuses([](Call& c) { c.padded.logits.data = nullptr; },
          "logits: given no array; needed: (2, 2, 3) numbers");
  refuses([](Call& c) { c.padded.logits.extent[1] = -2; },
          "logits: given (2, -2, 3); needed: extents of at least 0");
  refuses([](Call& c) { c.padded.logits.stride[2] = 2; },
          "logits: given stride 2 between two entries of the vocabulary; needed: 1");
}

TEST_CASE("targets") {
  refuses([](Call& c) { c.padded.targets = {}; },
          "targets: given no array; needed: the token that each row of logits is to predict");
  refuses([](Call& c) { c.padded.targets = gdpo::view(c.targets.data(), 2, 1); },
          "targets: given (2, 1); needed: (2, 2), the shape of logits without the vocabulary");
  refuses([](Call& c) { c.padded.targets = gdpo::view(c.targets); },
          "targets: given (4); needed: (2, 2), the shape of logits without the vocabulary");
  refuses([](Call& c) { c.targets[2] = 3; },
          "targets: given 3 at row (1, 0); needed: a token: from 0 to 2, or mask 0");
  refuses([](Call& c) { c.targets[3] = -100; },
          "targets: given -100 at row (1, 1); needed: a token: from 0 to 2, or mask 0");
  refuses_packed([](Call& c) { c.targets[1] = 7; },
                 "targets: given 7 at row (1); needed: a token: from 0 to 2, or mask 0");
  Call masked;
  masked.targets[2] = -100;
  masked.mask[2] = 0;
  gdpo::token_logprobs_into(gdpo::seq, masked.padded, masked.out);
  CHECK(masked.logp[2] == 0);
  // The last row of a packed sequence predicts nothing, so its target is not read.
  Call last;
  last.targets[3] = -100;
  CHECK(gdpo::token_logprobs(gdpo::seq, last.packed).logp[3] == 0);
}

TEST_CASE("mask, temperature, shards") {
  refuses([](Call& c) { c.padded.mask = gdpo::view(c.mask); },
          "mask: given (4); needed: (2, 2), the shape of logits without the vocabulary");
  for (const auto& [value, text] :
       std::vector<std::pair<double, std::string>>{{0, "0"},
                                                   {-1, "-1"},
                                                   {std::nan(""), "nan"},
                                                   {HUGE_VAL, "inf"},
                                                   {1e-38, "9.9999999999999996e-39"}}) {
    refuses([given = value](Call& c) { c.padded.temperature = given; },
            "temperature: given " + text + "; needed: a number from 1e-37 to 1e37");
  }
  refuses([](Call& c) { c.padded.first_token = 3; },
          "first_token: given 3; needed: 0, the whole vocabulary; of a shard: gdpo::logit_rows");
}

TEST_CASE("offsets of logits") {
  refuses([](Call& c) { c.padded.offsets = gdpo::view(c.offsets); },
          "offsets: given offsets, with logits (B, T, V); needed: none, or logits (N, V)");
  refuses_packed([](Call& c) { c.offsets[1] = 3; },
                 "offsets: given from 0 to 3; needed: from 0 to 4, the number of rows");
  refuses_packed(
      [](Call& c) {
        c.packed.offsets = gdpo::View<int, 1>{c.offsets.data(), {0}, {1}};
      },
      "offsets: given no entry; needed: from 0 to 4, the number of rows");
  refuses_packed(
      [](Call& c) {
        c.offsets = {0, 3, 2, 4};
        c.packed.offsets = gdpo::view(c.offsets);
      },
      "offsets: given offsets[2] = 2 after offsets[1] = 3; needed: offsets that never decrease");
}

TEST_CASE("results") {
  refuses([](Call& c) { c.out.logp = gdpo::view(c.logp); },
          "out.logp: given (4); needed: (2, 2), the shape of logits without the vocabulary");
  refuses([](Call& c) { c.out.entropy = gdpo::view(c.logp); },
          "out.entropy: given (4); needed: (2, 2), the shape of logits without the vocabulary");
  refuses([](Call& c) { c.out.logsumexp = gdpo::view(c.logsumexp); },
          "out.logsumexp: given (4); needed: (2, 2), the shape of logits without the vocabulary");
}

TEST_CASE("rows of shards") {
  Call call;
  std::vector<gdpo::LogitRow> rows(3);
  CHECK(message_of([&] { gdpo::logit_rows(gdpo::seq, call.padded, gdpo::view(rows)); }) ==
        "gdpo::logit_rows: out: given 3 rows; needed: one for each of the 4 rows of logits");
  rows.resize(4);
  call.padded.first_token = -1;
  CHECK(message_of([&] { gdpo::logit_rows(gdpo::seq, call.padded, gdpo::view(rows)); }) ==
        "gdpo::logit_rows: first_token: given -1; needed: at least 0");
  call.padded.first_token = 30;  // targets of another shard
  gdpo::logit_rows(gdpo::seq, call.padded, gdpo::view(rows));
  CHECK(std::isnan(rows[1].target));
  call.targets[1] = -2;
  CHECK(
      message_of([&] { gdpo::logit_rows(gdpo::seq, call.padded, gdpo::view(rows)); }) ==
      "gdpo::logit_rows: targets: given -2 at row (0, 1); needed: a token: at least 0, or mask 0");
}

TEST_CASE("the backward") {
  using Grad = gdpo::TokenLogprobsGrad;
  using Sums = gdpo::TokenView<double>;
  using Table = gdpo::View<float, 3>;
  backward_refuses([](Call&, Grad& g, Sums&, Table&) { g = {}; },
                   "grad: given neither logp nor entropy; needed: one of them, or both");
  backward_refuses([](Call&, Grad&, Sums& s, Table&) { s = {}; },
                   "logsumexp: given no array; needed: that of the forward");
  backward_refuses([](Call&, Grad& g, Sums&, Table&) { g.entropy = g.logp; },
                   "entropy: given no array; needed: that of the forward, with grad.entropy");
  backward_refuses(
      [](Call& c, Grad& g, Sums&, Table&) { g.logp = gdpo::view(c.g); },
      "grad.logp: given (4); needed: (2, 2), the shape of logits without the vocabulary");
  backward_refuses(
      [](Call& c, Grad&, Sums& s, Table&) { s = gdpo::view(c.logsumexp); },
      "logsumexp: given (4); needed: (2, 2), the shape of logits without the vocabulary");
  backward_refuses([](Call&, Grad&, Sums&, Table& d) { d.extent[2] = 2; },
                   "dlogits: given (2, 2, 2); needed: (2, 2, 3), the shape of logits");
  backward_refuses([](Call&, Grad&, Sums&, Table& d) { d.data = nullptr; },
                   "dlogits: given no array; needed: (2, 2, 3) numbers");
  backward_refuses([](Call&, Grad&, Sums&, Table& d) { d.stride[2] = 3; },
                   "dlogits: given stride 3 between two entries of the vocabulary; needed: 1");
  backward_refuses([](Call& c, Grad&, Sums&, Table&) { c.targets[0] = -1; },
                   "targets: given -1 at row (0, 0); needed: a token: at least 0, or mask 0");
  backward_refuses([](Call& c, Grad&, Sums&, Table&) { c.padded.temperature = 0; },
                   "temperature: given 0; needed: a number from 1e-37 to 1e37");
}

}  // namespace errors_test
