// labels: lanes
// Extremes have documented results: nothing to average, log ratios of 1e4, NaN and infinities among
// the valid tokens.
#include "support/catch.hpp"
#include "support/loss_product.hpp"

namespace extremes_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;
using naive_loss::Settings;

const double infinite = std::numeric_limits<double>::infinity();

bool all_finite(const Outcome& o) {
  for (const double g : o.gradient) {
    if (!std::isfinite(g)) return false;
  }
  return std::isfinite(o.result.loss) && std::isfinite(o.result.policy_loss) &&
         std::isfinite(o.result.kl_loss);
}

/// A batch without mask, segments and weights, in which all log ratios are -1/16.
Data plain(int rows, int width) {
  Random random(static_cast<std::uint64_t>(rows * 100 + width));
  Data d = loss_product::random_tokens(random, rows, width, 0.2, true);
  d.mask.clear(), d.segments.clear(), d.weights.clear(), d.kl_weights.clear(),
      d.row_weights.clear(), d.token_advantages.clear();
  d.advantages.clear();
  for (int i = 0; i < rows; ++i) d.advantages.push_back(1 + 0.5 * i);
  d.old_logp = d.logp;
  for (double& x : d.old_logp) x += 0.0625;
  return d;
}

template <class Check>
void for_named_losses(const Check& check) {
  auto dr = gdpo::dr_grpo_loss;
  dr.aggregate.constant = 100;
  auto dapo = gdpo::dapo_loss;
  dapo.kl.beta = 0.1;
  check(gdpo::grpo_loss), check(dapo), check(dr), check(gdpo::gspo_loss),
      check(gdpo::gspo_token_loss);
}

}  // namespace

TEST_CASE(
    "a row without valid tokens gives nothing and takes nothing but its place in the row count",
    "[loss][empty]") {
  Data d = plain(3, 5);
  for_named_losses([&](const auto& loss) {
    Data with = d;
    with.mask.assign(15, 1);
    for (int t = 0; t < 5; ++t) with.mask[with.at(1, t)] = 0;
    const gdpo::Normalizer n{10, 3, 2, 0};
    const Outcome o = loss_product::call<float>(loss, with, &n);
    Data first = loss_product::rows_of(d, 0, 1), last = loss_product::rows_of(d, 2, 3);
    const Outcome a = loss_product::call<float>(loss, first, &n),
                  b = loss_product::call<float>(loss, last, &n);
    std::vector<double> expected = a.gradient;
    expected.insert(expected.end(), 5, 0.0);
    expected.insert(expected.end(), b.gradient.begin(), b.gradient.end());
    CHECK(difference(o.gradient, expected) == "");
    CHECK(o.result.loss == Approx(a.result.loss + b.result.loss).epsilon(1e-14));
    CHECK(o.result.metrics.empty_rows == 1);
    CHECK(o.result.metrics.rows == 3);
    CHECK(o.result.metrics.completion_length.row_min == 0);
  });
}

TEST_CASE("a batch whose tokens are all masked has loss 0, gradient 0 and no NaN in its metrics",
          "[loss][empty]") {
  Data d = plain(3, 5);
  d.mask.assign(15, 0);
  for_named_losses([&](const auto& loss) {
    const Outcome o = loss_product::call<float>(loss, d);
    CHECK(o.result.loss == 0);
    CHECK(difference(o.gradient, std::vector<double>(15, 0.0)) == "");
    CHECK(o.result.metrics.empty_rows == 3);
    CHECK(o.result.metrics.clip_fraction.mean() == 0);
    CHECK(o.result.metrics.kl.mean() == 0);
    CHECK(o.result.metrics.ratio.row_mean() == 0);
    for (const auto& [key, value] : o.result.metrics.to_map()) {
      INFO(key);
      CHECK(std::isfinite(value));
    }
  });
}

TEST_CASE("no rows, no columns, no memory: loss 0", "[loss][empty]") {
  const auto check = [](const gdpo::TokenBatch<float>& batch, gdpo::TokenOut<float> gradient,
                        gdpo::index_t rows) {
    for_named_losses([&](const auto& loss) {
      const gdpo::Normalizer n = gdpo::count(batch);
      CHECK(n.tokens == 0);
      CHECK(n.rows == static_cast<double>(rows));
      CHECK(loss(batch, n, gradient).loss == 0);
      // A rank without rows in a step that has some.
      CHECK(loss(batch, gdpo::Normalizer{100, 10, 10, 10}, gradient).loss == 0);
      CHECK(loss(batch, n).metrics.rows == rows);
    });
  };
  std::vector<float> none, some(4, 1.0f);
  // The pointer of an empty vector is null.
  for (std::vector<float>* tokens : {&none, &some}) {
    INFO("of " << tokens->size());
    for (const gdpo::index_t rows : {0, 3}) {
      gdpo::TokenBatch<float> batch;
      batch.logp = batch.old_logp = batch.ref_logp =
          gdpo::view(tokens->data(), rows, rows == 0 ? 5 : 0);
      batch.advantages = rows == 0 ? gdpo::view(tokens->data(), 0) : gdpo::view(some.data(), rows);
      check(batch, gdpo::view(tokens->data(), rows, rows == 0 ? 5 : 0), rows);
    }
    const std::vector<std::int32_t> offsets{0, 0, 0};
    gdpo::TokenBatch<float> packed;
    packed.logp = packed.old_logp = packed.ref_logp = gdpo::view(tokens->data(), 0);
    packed.offsets = gdpo::view(offsets);
    packed.advantages = gdpo::view(some.data(), 2);
    check(packed, gdpo::view(tokens->data(), 0), 2);
  }
}

TEST_CASE("log ratios of 1e4 with clamps, and without where the ratio saturates: finite",
          "[loss][huge]") {
  std::uint64_t seed = 0;
  int seen = 0;
  loss_product::for_each_type(-1, [&](Settings s) {
    for (const double shift : {1e4, -1e4}) {
      Random random(++seed);
      Data d = plain(4, 6);
      for (std::size_t k = 0; k < d.logp.size(); ++k) {
        if (random.chance(0.4)) d.old_logp[k] = d.logp[k] - shift;
        if (random.chance(0.4)) d.ref_logp[k] = d.logp[k] - shift;
        if (random.chance(0.4)) d.logp[k] -= 1e4;
      }
      for (double& a : d.advantages) a = random.pick({-1.5, 2.0, 0.0});
      s.level_bounds = {-20, 20};
      for (naive_loss::Kl& kl : s.kl) kl.input = {-20, 20}, kl.output = {-10, 10};
      INFO("seed " << seed << ": " << loss_product::describe(s));
      // Without a clamp the ratio saturates at e^700 = 1e304. A KL term weighted by it, of up to 10
      // times that, could overflow in a sum.
      Settings bounded = s;
      if (s.level == naive_loss::Level::Token && s.map == naive_loss::Map::None) bounded.kl.clear();
      CHECK(all_finite(loss_product::run(bounded, d)));
      ++seen;
    }
  });
  CHECK(seen > 30);
}

TEST_CASE("the named losses stay finite at log ratios of 1e4 and advantages of 1000, in float",
          "[loss][huge]") {
  for (const double shift : {1e4, -1e4, 1e30, -1e30}) {
    for (const double a : {1000.0, -1000.0, 1e-3}) {
      Data d = plain(3, 8);
      d.advantages.assign(3, a);
      for (std::size_t k = 0; k < d.logp.size(); k += 3) d.old_logp[k] = d.logp[k] - shift;
      for (std::size_t k = 1; k < d.logp.size(); k += 3) d.ref_logp[k] = d.logp[k] - 60;
      INFO("log ratio " << shift << ", A " << a);
      for_named_losses(
          [&](const auto& loss) { CHECK(all_finite(loss_product::call<float>(loss, d))); });
      // The upper clip decides, so nothing of the huge ratio is left.
      if (shift > 0 && a > 0) {
        auto dapo = gdpo::dapo_loss;
        const Outcome o = loss_product::call<float>(dapo, d);
        for (std::size_t k = 0; k < d.logp.size(); k += 3) CHECK(o.gradient[k] == 0);
        CHECK(o.result.loss == Approx(-a * (8 * 1.28 + 16 * std::exp(-0.0625)) / 24).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE(
    "NaN at a valid token shows in its loss and gradient, is counted, and stays in its segment",
    "[loss][nan]") {
  const Data clean = plain(3, 4);
  for (const auto member : {&Data::logp, &Data::old_logp, &Data::ref_logp}) {
    Data d = clean;
    (d.*member)[d.at(1, 2)] = std::nan("");
    const Outcome before = loss_product::call<double>(gdpo::grpo_loss, clean),
                  o = loss_product::call<double>(gdpo::grpo_loss, d);
    CHECK(std::isnan(o.result.loss));
    for (std::size_t k = 0; k < 12; ++k)
      CHECK((k == d.at(1, 2) ? std::isnan(o.gradient[k])
                             : same_bits(o.gradient[k], before.gradient[k])));
    const gdpo::LossMetrics& m = o.result.metrics;
    const gdpo::NonFinite& counter = member == &Data::logp       ? m.non_finite.logp
                                     : member == &Data::old_logp ? m.non_finite.old_logp
                                                                 : m.non_finite.ref_logp;
    CHECK(counter.count == 1);
    CHECK(counter.row == 1);
    CHECK(counter.token == 2);
  }
  Data d = clean;
  d.logp[d.at(1, 2)] = std::nan("");
  const Outcome o = loss_product::call<double>(gdpo::gspo_loss, d);
  for (int i = 0; i < 3; ++i) {
    for (int t = 0; t < 4; ++t) CHECK(std::isnan(o.gradient[d.at(i, t)]) == (i == 1));
  }
  d = clean;
  d.advantages[2] = std::nan("");
  const Outcome a = loss_product::call<float>(gdpo::dapo_loss, d);
  for (int t = 0; t < 4; ++t) CHECK(std::isnan(a.gradient[d.at(2, t)]));
  CHECK(a.result.metrics.non_finite.advantages.count == 4);
  CHECK(std::isnan(a.result.metrics.advantage.mean));
}

TEST_CASE("a token that the policy calls impossible gives saturated numbers, no NaN",
          "[loss][nan]") {
  // With logp = -inf the log ratio is -inf and the ratio e^-80; ref - logp is +inf and its k3 is
  // e^80.
  Data d = plain(1, 4);
  d.logp[1] = -infinite;
  const Outcome o = loss_product::call<float>(gdpo::dapo_loss, d);
  CHECK(all_finite(o));
  CHECK(std::fabs(o.gradient[1]) < 1e-30);
  CHECK(o.result.metrics.non_finite.logp.count == 1);
  auto grpo = gdpo::grpo_loss;
  const Outcome with_kl = loss_product::call<float>(grpo, d);
  CHECK(all_finite(with_kl));
  CHECK(with_kl.result.kl_loss > 1e30);
}

TEST_CASE("a log ratio of -inf minus -inf is NaN, in loss and gradient", "[loss][nan]") {
  Data d = plain(1, 4);
  d.logp[1] = d.old_logp[1] = -infinite;
  const Outcome token = loss_product::call<double>(gdpo::dapo_loss, d),
                row = loss_product::call<float>(gdpo::gspo_loss, d);
  CHECK(std::isnan(token.result.loss));
  for (std::size_t k = 0; k < 4; ++k) CHECK(std::isnan(token.gradient[k]) == (k == 1));
  CHECK(std::isnan(row.result.loss));
  for (std::size_t k = 0; k < 4; ++k) CHECK(std::isnan(row.gradient[k]));
}

TEST_CASE("a weight that is not finite counts as 0 and is counted", "[loss][nan]") {
  for (const double bad : {std::nan(""), infinite, -infinite}) {
    Data zero = plain(2, 3);
    zero.weights.assign(6, 1), zero.kl_weights.assign(6, 0.5);
    zero.row_weights.assign(2, 1);
    Data d = zero;
    zero.weights[1] = zero.kl_weights[2] = 0, d.weights[1] = d.kl_weights[2] = bad;
    const Outcome expected = loss_product::call<double>(gdpo::grpo_loss, zero),
                  o = loss_product::call<double>(gdpo::grpo_loss, d);
    CHECK(difference(o.gradient, expected.gradient) == "");
    CHECK(same_bits(o.result.loss, expected.result.loss));
    CHECK(o.result.metrics.non_finite.weights.count == 2);
    CHECK(o.result.metrics.non_finite.weights.token == 1);
    zero = plain(2, 3), d = zero;
    zero.row_weights = {0, 1}, d.row_weights = {bad, 1};
    const Outcome rows = loss_product::call<float>(gdpo::gspo_loss, d);
    CHECK(difference(rows.gradient, loss_product::call<float>(gdpo::gspo_loss, zero).gradient) ==
          "");
    CHECK(rows.result.metrics.non_finite.weights.count == 1);
    CHECK(rows.result.metrics.non_finite.weights.row == 0);
  }
}

}  // namespace extremes_test
