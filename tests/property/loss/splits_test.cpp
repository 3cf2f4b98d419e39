// labels: lanes
// The loss of a step does not depend on how its rows are cut into micro-batches and ranks, nor on
// how they lie in memory. Gradients have the same bits. Losses agree to 1e-12 of the sum of the
// absolute values that they add.
#include "support/catch.hpp"
#include "support/loss_parts.hpp"
#include "support/loss_product.hpp"
#include "support/tally.hpp"

namespace splits_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;
using naive_loss::Settings;

/// Cuts a batch at random places and computes the parts with the counts of the whole. "" where they
/// agree with the whole.
template <class Run>
std::string split_mismatch(Random& random, const Data& data, const gdpo::Normalizer& normalizer,
                           const Run& run) {
  const Outcome whole = run(data, normalizer);
  Outcome parts;
  double magnitude = 0;
  gdpo::Normalizer counted;
  for (int begin = 0; begin < data.rows;) {
    const int end = begin + 1 + random.below(data.rows - begin);
    const Data part = loss_product::rows_of(data, begin, end);
    counted += loss_product::normalizer_of(naive_loss::count(part));
    const Outcome o = run(part, normalizer);
    parts.gradient.insert(parts.gradient.end(), o.gradient.begin(), o.gradient.end());
    parts.entropy_gradient.insert(parts.entropy_gradient.end(), o.entropy_gradient.begin(),
                                  o.entropy_gradient.end());
    parts.result = merge(parts.result, o.result);
    magnitude += std::fabs(o.result.policy_loss) + std::fabs(o.result.kl_loss) +
                 std::fabs(o.result.entropy_loss);
    begin = end;
  }
  std::string text = difference(whole.gradient, parts.gradient) +
                     difference(whole.entropy_gradient, parts.entropy_gradient);
  if (std::fabs(whole.result.loss - parts.result.loss) > 1e-12 * magnitude) text += " loss";
  if (std::fabs(whole.result.policy_loss - parts.result.policy_loss) > 1e-12 * magnitude)
    text += " policy_loss";
  if (std::fabs(whole.result.kl_loss - parts.result.kl_loss) > 1e-12 * magnitude)
    text += " kl_loss";
  if (std::fabs(whole.result.entropy_loss - parts.result.entropy_loss) > 1e-12 * magnitude)
    text += " entropy_loss";
  if (counted.tokens != normalizer.tokens || counted.rows != normalizer.rows ||
      counted.non_empty_rows != normalizer.non_empty_rows)
    text += " counts";
  return text + loss_product::merged_mismatch(whole.result.metrics, parts.result.metrics);
}

/// "" where packed tokens give the bits of padded ones, with offsets of 32 and of 64 bits.
template <class S, class Loss>
std::string packed_mismatch(const Loss& loss, const Data& data, const std::vector<int>& lengths) {
  const gdpo::Normalizer n = loss_product::normalizer_of(naive_loss::count(data));
  const Outcome padded = loss_product::call<S>(loss, data, &n);
  Outcome expected;
  expected.result = padded.result;
  for (int i = 0; i < data.rows; ++i) {
    for (int t = 0; t < data.width; ++t) {
      const double g = padded.gradient[data.at(i, t)], h = padded.entropy_gradient[data.at(i, t)];
      if (t < lengths[static_cast<std::size_t>(i)])
        expected.gradient.push_back(g), expected.entropy_gradient.push_back(h);
      else if (!same_bits(g, 0) || !same_bits(h, 0))
        return "padding has a gradient";
    }
  }
  const std::string narrow =
      difference_of(expected, loss_product::call_packed<S, std::int32_t>(loss, data, lengths));
  const std::string wide =
      difference_of(expected, loss_product::call_packed<S, std::int64_t>(loss, data, lengths, &n));
  return narrow + wide;
}

using Weighted = gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>;
template <class Level>
using Full = gdpo::PolicyLoss<Level, gdpo::surrogate::Ratio, Weighted>;
// A KL term with a factor and an aggregate of its own.
template <class Level>
using Parts =
    gdpo::PolicyLoss<Level, gdpo::surrogate::Ratio,
                     gdpo::Kls<gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeightedK2,
                                        gdpo::Factors<gdpo::factor::TeacherGate>, gdpo::Aggregate>,
                               Weighted>>;
/// The settings of such a loss.
Settings parts_of(Settings s) {
  s.kl.resize(2);
  s.kl[0].has_own = true, s.kl[0].factor = naive_loss::KlFactor::TeacherGate;
  s.kl[0].own.aggregate = naive_loss::Aggregate::TokenMean;
  s.kl[0].own.over = naive_loss::Over::Tokens;
  return s;
}

}  // namespace

TEST_CASE("any cut into micro-batches gives the gradient of the whole, bit for bit",
          "[loss][splits]") {
  std::uint64_t seed = 0;
  Tally tally;
  for (int round = 0; round < 10; ++round) {
    loss_product::for_each_type(-1, [&](Settings s) {
      Random random(++seed);
      loss_product::random_settings(random, s);
      const Data data = loss_product::random_tokens(random, 9, random.pick({1, 7}), 0.3);
      loss_product::fit(s, data);
      naive_loss::Counts n = naive_loss::count(data);
      if (tally.leaves_out(n.tokens == 0)) return;
      n.given = 12;
      const std::string mismatch =
          split_mismatch(random, data, loss_product::normalizer_of(n),
                         [&](const Data& part, gdpo::Normalizer normalizer) {
                           return loss_product::run(s, part, &normalizer);
                         });
      if (mismatch.empty()) return;
      INFO("seed " << seed << ": " << loss_product::describe(s));
      CHECK(mismatch == "");
    });
  }
  CHECK(tally.share_left_out() < 0.02);
}

TEST_CASE("the same in float, for every level", "[loss][splits]") {
  Tally tally;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Settings s;
    s.kl.resize(1);
    s.aggregate = static_cast<naive_loss::Aggregate>(seed % 6);
    s.over = static_cast<naive_loss::Over>(random.below(3));
    const Data data = loss_product::random_tokens(random, 8, 9, 0.3, true);
    const naive_loss::Counts counts = naive_loss::count(data);
    if (tally.leaves_out(counts.tokens == 0)) continue;
    const auto check = [&](const auto& loss) {
      CHECK(split_mismatch(random, data, loss_product::normalizer_of(counts),
                           [&](const Data& part, gdpo::Normalizer n) {
                             return loss_product::call<float>(loss, part, &n);
                           }) == "");
    };
    check(loss_product::loss_of<Full<gdpo::level::Token<>>>(s));
    check(loss_product::loss_of<Full<gdpo::level::Sequence<>>>(s));
    check(loss_product::loss_of<Full<gdpo::level::SequenceToken<>>>(s));
    check(loss_product::loss_of<Parts<gdpo::level::Token<>>>(parts_of(s)));
    check(loss_product::loss_of<Parts<gdpo::level::Sequence<>>>(parts_of(s)));
  }
  CHECK(tally.share_left_out() < 0.02);
}

TEST_CASE("ranks that average their gradients set scale to their number", "[loss][splits]") {
  // Four ranks with a scale of 4: powers of two round nothing.
  Random random(4);
  Settings s;
  s.kl.resize(1);
  for (int kind = 0; kind < 6; ++kind) {
    s.aggregate = static_cast<naive_loss::Aggregate>(kind);
    const Data data = loss_product::random_tokens(random, 8, 5, 0.3);
    const gdpo::Normalizer n = loss_product::normalizer_of(naive_loss::count(data));
    s.scale = 1;
    const Outcome whole = loss_product::run(s, data, &n);
    s.scale = 4;
    std::vector<double> mean;
    double loss = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Outcome o =
          loss_product::run(s, loss_product::rows_of(data, 2 * rank, 2 * rank + 2), &n);
      for (const double g : o.gradient) mean.push_back(g / 4);
      loss += o.result.loss / 4;
    }
    CHECK(difference(whole.gradient, mean) == "");
    CHECK(loss == Approx(whole.result.loss).epsilon(1e-12));
  }
}

TEST_CASE("packed tokens give the bits of padded ones whose tails are masked", "[loss][packed]") {
  Tally tally;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Settings s;
    s.kl.resize(1);
    loss_product::random_settings(random, s);
    if (s.padded_width) s.padded_width = false, s.constant = 64;
    if (s.over == naive_loss::Over::Given) s.over = naive_loss::Over::Tokens;
    Data data = loss_product::random_tokens(random, 7, 6, 0.3, true);
    loss_product::fit(s, data);
    const std::vector<int> lengths = loss_product::cut_tails(random, data);
    // The padding may hold anything.
    for (std::size_t k = 0; k < data.logp.size(); ++k) {
      const int t = static_cast<int>(k) % data.width;
      if (t >= lengths[k / static_cast<std::size_t>(data.width)])
        data.logp[k] = std::nan(""), data.ref_logp[k] = 1e38;
    }
    if (tally.leaves_out(naive_loss::count(data).tokens == 0)) continue;
    CHECK(packed_mismatch<double>(loss_product::loss_of<Full<gdpo::level::Token<>>>(s), data,
                                  lengths) == "");
    CHECK(packed_mismatch<double>(loss_product::loss_of<Full<gdpo::level::Sequence<>>>(s), data,
                                  lengths) == "");
    CHECK(packed_mismatch<float>(loss_product::loss_of<Full<gdpo::level::Token<>>>(s), data,
                                 lengths) == "");
    CHECK(packed_mismatch<float>(loss_product::loss_of<Full<gdpo::level::Sequence<>>>(s), data,
                                 lengths) == "");
    CHECK(packed_mismatch<float>(loss_product::loss_of<Full<gdpo::level::SequenceToken<>>>(s), data,
                                 lengths) == "");
    CHECK(packed_mismatch<double>(loss_product::loss_of<Parts<gdpo::level::Token<>>>(parts_of(s)),
                                  data, lengths) == "");
    CHECK(packed_mismatch<float>(loss_product::loss_of<Parts<gdpo::level::Sequence<>>>(parts_of(s)),
                                 data, lengths) == "");
  }
  CHECK(tally.share_left_out() < 0.02);
}

TEST_CASE("a row's gradient does not depend on what its neighbors hold", "[loss][packed]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Settings s;
    s.kl.resize(1);
    loss_product::random_settings(random, s);
    if (s.padded_width) s.padded_width = false, s.constant = 64;
    Data data = loss_product::random_tokens(random, 6, 5, 0.3);
    loss_product::fit(s, data);
    data.mask.clear();
    const gdpo::Normalizer n{100, 6, 6, 6};
    std::vector<int> lengths;
    for (int i = 0; i < 6; ++i) lengths.push_back(random.below(6));
    const int changed = random.below(6);
    Data other = data;
    for (int t = 0; t < data.width; ++t) other.logp[data.at(changed, t)] -= 0.7;
    const auto check = [&](const auto& loss) {
      Outcome before = loss_product::call_packed<double, std::int64_t>(loss, data, lengths, &n),
              after = loss_product::call_packed<double, std::int64_t>(loss, other, lengths, &n);
      std::size_t begin = 0;
      for (int i = 0; i < changed; ++i)
        begin += static_cast<std::size_t>(lengths[static_cast<std::size_t>(i)]);
      for (std::size_t k = begin;
           k < begin + static_cast<std::size_t>(lengths[static_cast<std::size_t>(changed)]); ++k)
        before.gradient[k] = after.gradient[k] = 0;
      CHECK(difference(before.gradient, after.gradient) == "");
    };
    check(loss_product::loss_of<Full<gdpo::level::Token<>>>(s));
    check(loss_product::loss_of<Full<gdpo::level::Sequence<>>>(s));
    check(loss_product::loss_of<Full<gdpo::level::SequenceToken<>>>(s));
  }
}

TEST_CASE("a segment's gradient is that of a row of its own", "[loss][packed]") {
  // One row of three segments with gaps in the mask, compared with the same tokens as three rows.
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Settings s;
    s.kl.resize(1);
    loss_product::random_settings(random, s);
    s.aggregate = naive_loss::Aggregate::TokenMean;
    Data data = loss_product::random_tokens(random, 1, 12, 0.3);
    loss_product::fit(s, data);
    if (data.token_advantages.empty()) data.token_advantages.assign(12, data.advantages[0]);
    data.advantages.clear(), data.row_weights.clear(), data.group_tokens.clear();
    data.segments = {4, 4, 4, 4, 9, 9, 9, 9, 2, 2, 2, 2};
    Data rows = data;
    rows.rows = 3, rows.width = 4;
    rows.segments.clear();
    rows.truncated.assign(3, 0);
    const gdpo::Normalizer n{12, 3, 3, 3};
    for (const auto level : {naive_loss::Level::Sequence, naive_loss::Level::SequenceToken}) {
      const auto check = [&](const auto& loss) {
        CHECK(difference(loss_product::call<double>(loss, data, &n).gradient,
                         loss_product::call<double>(loss, rows, &n).gradient) == "");
      };
      if (level == naive_loss::Level::Sequence)
        check(loss_product::loss_of<Full<gdpo::level::Sequence<>>>(s));
      else
        check(loss_product::loss_of<Full<gdpo::level::SequenceToken<>>>(s));
    }
  }
}

}  // namespace splits_test
