// labels: lanes, sanitizers
// Short rows are computed several at a time. Each gets the bits that it has in a batch of its own.
#include <gdpo/loss.hpp>
#include <random>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace short_rows_test {
namespace {

using gdpo::index_t;

/// Packed rows of 0 to 40 tokens, some of them longer than what is computed at a time.
struct Rows {
  std::vector<float> logp, old_logp, ref_logp, entropies, entropy_weights, gradient;
  std::vector<double> advantages, row_weights;
  std::vector<unsigned char> mask, completion;
  std::vector<std::int64_t> segments;
  std::vector<index_t> offsets{0};

  explicit Rows(std::mt19937& random) {
    const auto below = [&](index_t n) {
      return std::uniform_int_distribution<index_t>(0, n - 1)(random);
    };
    std::normal_distribution<float> normal;
    const index_t rows = 1 + below(40);
    for (index_t i = 0; i < rows; ++i) {
      const index_t length = below(25) == 0 ? below(2500) : below(41);
      advantages.push_back(below(8) == 0 ? 0.0 : static_cast<double>(normal(random)));
      row_weights.push_back(below(12) == 0 ? std::numeric_limits<double>::infinity() : 0.5);
      for (index_t t = 0; t < length; ++t) {
        const bool valid = below(5) > 0;
        const float x = -std::fabs(normal(random)), nan = std::numeric_limits<float>::quiet_NaN();
        logp.push_back(valid && below(400) > 0 ? x : nan);
        old_logp.push_back(valid ? x + 0.1f * normal(random) : nan);
        ref_logp.push_back(x + 0.1f * normal(random));
        entropies.push_back(valid ? std::fabs(normal(random)) : nan);
        entropy_weights.push_back(below(300) > 0 ? normal(random) : nan);
        mask.push_back(valid), completion.push_back(below(2) == 0);
        segments.push_back(t / 5);
      }
      offsets.push_back(offsets.back() + length);
    }
    gradient.resize(logp.size());
  }
  /// Rows begin to end - 1. The offsets begin at 0.
  template <class Tokens>
  gdpo::TokenBatch<float> batch(index_t begin, index_t end, std::vector<index_t>& places,
                                const Tokens& optional) {
    const index_t first = offsets[std::size_t(begin)], n = offsets[std::size_t(end)] - first;
    places.clear();
    for (index_t i = begin; i <= end; ++i) places.push_back(offsets[std::size_t(i)] - first);
    const auto part = [&](auto& values) { return gdpo::view(values.data() + first, n); };
    gdpo::TokenBatch<float> b;
    b.offsets = gdpo::view(places), b.logp = part(logp), b.old_logp = part(old_logp);
    b.ref_logp = part(ref_logp), b.mask = part(mask);
    b.advantages = gdpo::view(advantages.data() + begin, end - begin);
    b.row_weights = gdpo::view(row_weights.data() + begin, end - begin);
    optional(b, part, *this);
    return b;
  }
};

const auto nothing = [](auto&, const auto&, auto&) {};

/// The same bits, or NaN both.
bool same(double a, double b) { return same_bits(a, b) || (std::isnan(a) && std::isnan(b)); }
bool same(const gdpo::NonFinite& a, const gdpo::NonFinite& b) {
  return a.count == b.count && a.row == b.row && a.token == b.token;
}

template <class Loss, class Optional>
void check(const Loss& loss, const Optional& optional) {
  std::mt19937 random(20261129);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    Rows rows(random);
    const auto count = static_cast<index_t>(rows.advantages.size());
    std::vector<index_t> places;
    gdpo::LossWorkspace<float> workspace;
    const auto whole = rows.batch(0, count, places, optional);
    const gdpo::Normalizer n = gdpo::count(whole);
    if (n.tokens == 0) continue;
    const gdpo::LossResult all = loss(gdpo::simd, whole, n, gdpo::view(rows.gradient), workspace);
    double policy_loss = 0, kl_loss = 0, entropy_loss = 0;
    gdpo::NonFinite logp, weights;
    for (index_t i = 0; i < count; ++i) {
      CAPTURE(i);
      const index_t first = rows.offsets[std::size_t(i)],
                    length = rows.offsets[std::size_t(i) + 1] - first;
      if (length == 0) continue;
      const auto one = rows.batch(i, i + 1, places, optional);
      gdpo::Normalizer counts = n;
      counts.counted = {};
      std::vector<float> gradient(static_cast<std::size_t>(length));
      const gdpo::LossResult r = loss(gdpo::simd, one, counts, gdpo::view(gradient), workspace);
      for (index_t t = 0; t < length; ++t)
        REQUIRE(same(gradient[std::size_t(t)], rows.gradient[std::size_t(first + t)]));
      // Rows of at most 128 are added one after the other.
      policy_loss += r.policy_loss, kl_loss += r.kl_loss, entropy_loss += r.entropy_loss;
      const auto add = [i](gdpo::NonFinite& sum, gdpo::NonFinite of_row) {
        if (of_row.count > 0) of_row.row = i;
        sum = gdpo::merge(sum, of_row);
      };
      add(logp, r.metrics.non_finite.logp), add(weights, r.metrics.non_finite.weights);
    }
    REQUIRE(same(all.policy_loss, policy_loss));
    REQUIRE(same(all.kl_loss, kl_loss));
    REQUIRE(same(all.entropy_loss, entropy_loss));
    REQUIRE(same(all.metrics.non_finite.logp, logp));
    REQUIRE(same(all.metrics.non_finite.weights, weights));
  }
}

}  // namespace

TEST_CASE("a short row has the bits that it has alone") {
  check(gdpo::grpo_loss, nothing);
  check(gdpo::with_metrics<gdpo::metrics::Means>(gdpo::dapo_loss), nothing);
  check(gdpo::gspo_loss, nothing);
  check(gdpo::gspo_token_loss, nothing);
  check(gdpo::gmpo_loss, nothing);
}

TEST_CASE("a short row with segments or an entropy bonus has them too") {
  const auto segments = [](auto& b, const auto& part, auto& rows) {
    b.segments = part(rows.segments);
  };
  check(gdpo::gspo_loss, segments);
  check(gdpo::gspo_token_loss, segments);
  auto bonus = gdpo::dapo_loss;
  bonus.entropy.coef = 0.01;
  const auto entropies = [](auto& b, const auto& part, auto& rows) {
    b.entropies = part(rows.entropies);
  };
  check(bonus, entropies);
  check(bonus, [&](auto& b, const auto& part, auto& rows) {
    entropies(b, part, rows), b.entropy_weights = part(rows.entropy_weights);
  });
}

TEST_CASE("entropies are added alike beside a plain loop and in the general one") {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    Rows rows(random);
    std::vector<index_t> places;
    auto batch = rows.batch(0, static_cast<index_t>(rows.advantages.size()), places,
                            [](auto& b, const auto& part, auto& r) {
                              b.entropies = part(r.entropies), b.row_weights = {};
                            });
    const gdpo::Normalizer n = gdpo::count(batch);
    if (n.tokens == 0) continue;
    const gdpo::Metric plain = gdpo::dapo_loss(batch, n).metrics.entropy;
    const std::vector<float> ones(rows.logp.size(), 1.0f);
    batch.weights = gdpo::view(ones);
    const gdpo::Metric general = gdpo::dapo_loss(batch, n).metrics.entropy;
    REQUIRE(same(plain.sum, general.sum));
    REQUIRE(same(plain.min, general.min));
    REQUIRE(same(plain.max, general.max));
    REQUIRE(same(plain.row_sum, general.row_sum));
  }
}

TEST_CASE("a completion mask that is converted leaves the mask of its row as it is") {
  const std::vector<int> mask{0, 1, 1, 0}, completion{1, 0, 0, 1};
  const std::vector<float> logp{-1, -1, -1, -1}, entropies{9, 1, 2, 9}, advantages{1};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 1, 4), batch.entropies = gdpo::view(entropies.data(), 1, 4);
  batch.mask = gdpo::view(mask.data(), 1, 4);
  batch.completion_mask = gdpo::view(completion.data(), 1, 4);
  batch.advantages = gdpo::view(advantages);
  auto loss = gdpo::dapo_loss;
  loss.entropy.coef = 1;
  REQUIRE(loss(batch, gdpo::count(batch)).entropy_loss == -1.5);
}

}  // namespace short_rows_test
