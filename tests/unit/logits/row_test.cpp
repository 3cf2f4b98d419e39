// labels: lanes, sanitizers
// LogitRow: numbers worked out by hand, and the rules of merging.
#include <gdpo/logits.hpp>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace row_test {

namespace {

const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

/// The row of the logits log 1, log 2, log 3, log 4, with probabilities 0.1, 0.2, 0.3, 0.4.
gdpo::LogitRow hand() {
  gdpo::LogitRow row;
  row.max = std::log(4.0);
  row.sum = 2.5;
  row.weighted = 0.25 * std::log(0.25) + 0.5 * std::log(0.5) + 0.75 * std::log(0.75);
  row.target = std::log(3.0);
  return row;
}
bool same(const gdpo::LogitRow& a, const gdpo::LogitRow& b) {
  return same_bits(a.max, b.max) && same_bits(a.sum, b.sum) && same_bits(a.weighted, b.weighted) &&
         (same_bits(a.target, b.target) || (std::isnan(a.target) && std::isnan(b.target)));
}

}  // namespace

TEST_CASE("log-prob, entropy and logsumexp of a row") {
  CHECK(logsumexp(hand()) == Approx(std::log(10.0)).epsilon(tolerance::formula));
  CHECK(logp(hand()) == Approx(std::log(0.3)).epsilon(tolerance::formula));
  const double h =
      -0.1 * std::log(0.1) - 0.2 * std::log(0.2) - 0.3 * std::log(0.3) - 0.4 * std::log(0.4);
  CHECK(entropy(hand()) == Approx(h).epsilon(tolerance::formula));
}

TEST_CASE("a kernel row holds what LogitRow says") {
  std::vector<double> x;
  for (int k = 1; k <= 4; ++k) x.push_back(std::log(k));
  const std::vector<int> target{2};
  gdpo::LogitBatch<double, 2> batch;
  batch.logits = gdpo::view(x.data(), 1, 4);
  batch.targets = gdpo::view(target);
  std::vector<gdpo::LogitRow> row(1);
  gdpo::logit_rows(gdpo::seq, batch, gdpo::view(row));
  CHECK(same_bits(row[0].max, hand().max));
  CHECK(row[0].sum == Approx(2.5).epsilon(tolerance::formula));
  CHECK(row[0].weighted == Approx(hand().weighted).epsilon(tolerance::formula));
  CHECK(same_bits(row[0].target, hand().target));
}

TEST_CASE("merging") {
  const gdpo::LogitRow none, row = hand();
  SECTION("with no entry changes nothing") {
    CHECK(same(merge(row, none), row));
    CHECK(same(merge(none, row), row));
    CHECK(same(merge(none, none), none));
    gdpo::LogitRow target_only;  // a shard that has the target and only -inf
    target_only.target = -inf;
    gdpo::LogitRow rest = row;
    rest.target = no;
    CHECK(same_bits(merge(rest, target_only).target, -inf));
    CHECK(logp(merge(target_only, rest)) == -inf);
  }
  SECTION("adds the sums at the larger reference, in either order") {
    gdpo::LogitRow high = row;  // the same logits plus 1
    high.max += 1;
    high.target = no;
    for (const gdpo::LogitRow& m : {merge(row, high), merge(high, row)}) {
      CHECK(m.max == high.max);
      CHECK(logsumexp(m) ==
            Approx(std::log(10.0) + std::log1p(std::exp(1.0))).epsilon(tolerance::formula));
      CHECK(m.target == row.target);
      // The entropy of a mixture of disjoint parts with weights w is the sum of w (H - log w).
      const double w = 1 / (1 + std::exp(1.0));
      const double h = entropy(row) - w * std::log(w) - (1 - w) * std::log(1 - w);
      CHECK(entropy(m) == Approx(h).epsilon(tolerance::formula));
    }
  }
  SECTION("far apart, the lower one vanishes") {
    gdpo::LogitRow low = row;
    low.max = -1e5;
    CHECK(logsumexp(merge(row, low)) == logsumexp(row));
    CHECK(entropy(merge(low, row)) == entropy(row));
  }
  SECTION("NaN stays") {
    gdpo::LogitRow broken = row;
    broken.sum = no;
    for (const double max : {no, inf, 0.0, 100.0}) {
      broken.max = max;
      CHECK(std::isnan(logsumexp(merge(row, broken))));
      CHECK(std::isnan(logsumexp(merge(broken, row))));
      CHECK(std::isnan(logsumexp(merge(broken, none))));
      CHECK(std::isnan(entropy(merge(row, broken))));
    }
  }
}

TEST_CASE("without entries, without a target") {
  const gdpo::LogitRow none;
  CHECK(logsumexp(none) == -inf);
  CHECK(std::isnan(entropy(none)));
  CHECK(std::isnan(logp(none)));
  gdpo::LogitRow elsewhere = hand();
  elsewhere.target = no;
  CHECK(std::isnan(logp(elsewhere)));
}

}  // namespace row_test
