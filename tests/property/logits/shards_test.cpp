// labels: lanes
// A vocabulary in shards: the rows of the shards merge to the row of the whole, whatever the split,
// and the gradients of the shards are the columns of the gradient of the whole.
#include <reference/naive_logits.hpp>

#include "support/catch.hpp"
#include "support/logits.hpp"

namespace shards_test {

namespace {

using logit_cases::Kind;

/// The shard with the columns first .. last - 1.
gdpo::LogitBatch<float, 2> columns(const std::vector<float>& x, int rows, int vocabulary, int first,
                                   int last, const std::vector<int>& targets) {
  gdpo::LogitBatch<float, 2> shard;
  shard.logits = {x.data() + first, {rows, last - first}, {vocabulary, 1}};
  shard.targets = gdpo::view(targets);
  shard.temperature = 0.8;
  shard.first_token = first;
  return shard;
}

}  // namespace

TEST_CASE("the rows of shards merge to the row of the whole") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const int rows = static_cast<int>(std::size(logit_cases::all_kinds)),
              vocabulary = 2 + random.below(9000);
    std::vector<float> x;
    std::vector<int> targets;
    for (const Kind kind : logit_cases::all_kinds) {
      const std::vector<float> row = logit_cases::row(random, kind, vocabulary);
      x.insert(x.end(), row.begin(), row.end());
      targets.push_back(random.below(vocabulary));
    }
    std::vector<int> cuts{0, vocabulary};  // 1 to 9 shards, some of them empty
    for (int k = random.below(9); k > 0; --k) cuts.push_back(random.below(vocabulary + 1));
    std::sort(cuts.begin(), cuts.end());
    INFO("seed " << seed << ", vocabulary " << vocabulary << ", shards " << cuts.size() - 1);

    const gdpo::TokenLogprobs whole =
        gdpo::token_logprobs(columns(x, rows, vocabulary, 0, vocabulary, targets));
    std::vector<gdpo::LogitRow> merged(static_cast<std::size_t>(rows)), part(merged.size());
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
      gdpo::logit_rows(gdpo::simd, columns(x, rows, vocabulary, cuts[s], cuts[s + 1], targets),
                       gdpo::view(part));
      for (std::size_t i = 0; i < merged.size(); ++i) merged[i] = gdpo::merge(merged[i], part[i]);
    }
    std::vector<double> logsumexp;
    for (std::size_t i = 0; i < merged.size(); ++i) {
      INFO("row " << i);
      logsumexp.push_back(gdpo::logsumexp(merged[i]));
      // The logsumexp of both is within 5e-7 of the exact value (logits_oracle_test.cpp); results
      // in float are rounded once more.
      CHECK(std::fabs(logsumexp[i] - whole.logsumexp[i]) <= 1e-6);
      CHECK(std::fabs(gdpo::entropy(merged[i]) - static_cast<double>(whole.entropy[i])) <= 4e-6);
      const double logp = gdpo::logp(merged[i]);
      if (std::isinf(whole.logp[i])) {
        CHECK(logp < -1e300);
      } else {
        CHECK(std::fabs(logp - static_cast<double>(whole.logp[i])) <=
              1e-6 + std::fabs(logp) * 0x1p-24);
      }
    }

    // From the same logsumexp, the gradients of the shards have the bits of the columns of the
    // whole.
    const std::vector<float> g(merged.size(), 0.5f), g_entropy(merged.size(), 0.25f);
    std::vector<float> all(x.size()), by_shard(x.size(), 42.0f);
    const auto backward = [&](int first, int last, std::vector<float>& to) {
      gdpo::token_logprobs_backward(
          gdpo::simd, columns(x, rows, vocabulary, first, last, targets),
          {gdpo::view(g), gdpo::view(g_entropy)}, gdpo::view(logsumexp), gdpo::view(whole.entropy),
          gdpo::View<float, 2>{to.data() + first, {rows, last - first}, {vocabulary, 1}});
    };
    backward(0, vocabulary, all);
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) backward(cuts[s], cuts[s + 1], by_shard);
    CHECK(all == by_shard);
  }
}

}  // namespace shards_test
