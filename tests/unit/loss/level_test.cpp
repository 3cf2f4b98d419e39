// labels: lanes, sanitizers
// Maps, statistics and levels: single tokens by hand; against the oracle, the compositions that
// property/loss_product leaves out; and the relations between the levels.
#include "support/catch.hpp"
#include "support/loss_calls.hpp"

namespace level_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;

gdpo::Token<double> token(double log_ratio) {
  gdpo::Token<double> t{};
  t.token_log_ratio = log_ratio;
  return t;
}

template <class Level>
void check_against_oracle(naive_loss::Level level, naive_loss::Map map,
                          naive_loss::Statistic statistic) {
  using Kl = gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>;
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive_loss::Settings s;
    s.level = level, s.map = map, s.statistic = statistic;
    s.kl.resize(1);
    s.kl[0].rule = naive_loss::Rule::ImportanceWeighted;
    loss_product::random_settings(random, s);
    s.over = naive_loss::Over::Rows;
    const Data data = loss_product::random_tokens(random, 3, 7, 0.2);
    loss_product::fit(s, data);
    if (naive_loss::count(data).tokens == 0) continue;
    using Loss = gdpo::PolicyLoss<Level, gdpo::surrogate::Ratio, Kl>;
    CHECK(loss_product::mismatch(s, data, naive_loss::loss(s, data),
                                 loss_product::call<double>(loss_product::loss_of<Loss>(s), data),
                                 tolerance::unit) == "");
    ++compared;
  }
  CHECK(compared > 100);
}

Data plain(std::uint64_t seed, int rows, int width) {
  Random random(seed);
  Data d = loss_product::random_tokens(random, rows, width, 0.2);
  d.old_logp.clear();
  for (const double x : d.logp) d.old_logp.push_back(x + 0.1 * random.uniform());
  d.mask.clear(), d.segments.clear(), d.weights.clear(), d.kl_weights.clear(),
      d.row_weights.clear(), d.token_advantages.clear();
  d.advantages.clear();
  for (int i = 0; i < rows; ++i) d.advantages.push_back(random.uniform() - 0.5);
  return d;
}

}  // namespace

TEST_CASE("maps: the value, and where the gradient passes", "[level]") {
  const auto none = gdpo::map::None{}(token(-3));
  CHECK(none.log_ratio == -3);
  CHECK(none.pass == 1);
  const gdpo::map::Clamp clamp{-1, 2};
  const double inputs[] = {-1.5, -1, 0, 2, 2.5}, values[] = {-1, -1, 0, 2, 2},
               passes[] = {0, 1, 1, 1, 0};
  for (int k = 0; k < 5; ++k) {
    CHECK(clamp(token(inputs[k])).log_ratio == values[k]);
    CHECK(clamp(token(inputs[k])).pass == passes[k]);
  }
  const auto nan = clamp(token(std::nan("")));
  CHECK(std::isnan(nan.log_ratio));
  CHECK(nan.pass == 1);
}

TEST_CASE("statistics: value and a token's share", "[level]") {
  const gdpo::statistic::Mean mean, with_eps{0.5};
  CHECK(mean({6, 3}) == 2);
  CHECK(mean.share(3) == 1.0 / 3);
  CHECK(with_eps({6, 3.5}) == 1.5);
  CHECK(with_eps.share(1.5) == 0.5);
  CHECK(mean({0, 0}) == 0);
  CHECK(mean.share(0) == 0);
  CHECK(gdpo::statistic::Sum{}({6, 3}) == 6);
  CHECK(gdpo::statistic::Sum{}.share(3) == 1);
}

TEST_CASE("sequence levels with clamped tokens and sums, against the formulas", "[level]") {
  using gdpo::map::Clamp;
  using naive_loss::Level;
  using naive_loss::Map;
  using naive_loss::Statistic;
  check_against_oracle<gdpo::level::Sequence<Clamp>>(Level::Sequence, Map::Clamp, Statistic::Mean);
  check_against_oracle<gdpo::level::Sequence<Clamp, gdpo::statistic::Sum>>(
      Level::Sequence, Map::Clamp, Statistic::Sum);
  check_against_oracle<gdpo::level::Sequence<gdpo::map::None, gdpo::statistic::Sum>>(
      Level::Sequence, Map::None, Statistic::Sum);
  check_against_oracle<gdpo::level::SequenceToken<Clamp>>(Level::SequenceToken, Map::Clamp,
                                                          Statistic::Mean);
  check_against_oracle<gdpo::level::SequenceToken<Clamp, gdpo::statistic::Sum>>(
      Level::SequenceToken, Map::Clamp, Statistic::Sum);
}

TEST_CASE("a sequence ratio by hand: two tokens, the mean of their log ratios", "[level]") {
  Data d;
  d.rows = 1, d.width = 3;
  d.logp = {-1, -2, 50}, d.old_logp = {-1.5, -2.25, -50};
  d.mask = {1, 1, 0};
  d.advantages = {2};
  gdpo::PolicyLoss<gdpo::level::Sequence<>, gdpo::surrogate::Ratio, gdpo::kl::None> loss{
      {}, {}, {}, gdpo::aggregate::token_sum()};
  loss.surrogate = {1, 10};
  const double ratio = std::exp(0.375);
  const Outcome o = loss_product::call<double>(loss, d);
  CHECK(o.result.loss == Approx(2 * -2 * ratio).epsilon(1e-15));
  // Each of the two terms has half its derivative.
  CHECK(o.gradient[0] == Approx(-2 * ratio).epsilon(1e-15));
  CHECK(o.gradient[1] == o.gradient[0]);
  CHECK(o.gradient[2] == 0);
  CHECK(o.result.metrics.ratio.min == o.result.metrics.ratio.max);
}

TEST_CASE("at the bounds of a sequence ratio the gradient passes, beyond them it stops",
          "[level]") {
  Data d;
  d.rows = 1, d.width = 2;
  d.logp = {-1, -1}, d.advantages = {1};
  const auto run = [&](auto loss, double log_ratio) {
    d.old_logp = {-1 - log_ratio, -1 - log_ratio};
    loss.level.bounds = {-0.5, 0.25};
    loss.surrogate = {1, 10};
    return loss_product::call<double>(loss, d);
  };
  const auto check = [&](const auto& loss) {
    for (const double inside : {-0.5, 0.0, 0.25}) CHECK(run(loss, inside).gradient[0] != 0);
    for (const double outside : {-0.75, 0.5}) {
      const Outcome o = run(loss, outside);
      CHECK(all_zero(o.gradient));
      CHECK(o.result.metrics.ratio.max ==
            Approx(std::exp(outside < 0 ? -0.5 : 0.25)).epsilon(1e-15));
      CHECK(o.result.metrics.log_ratio_bounded.sum == 2);
    }
  };
  check(gdpo::PolicyLoss<gdpo::level::Sequence<>, gdpo::surrogate::Ratio, gdpo::kl::None>{});
  check(gdpo::PolicyLoss<gdpo::level::SequenceToken<>, gdpo::surrogate::Ratio, gdpo::kl::None>{});
}

TEST_CASE("with one advantage a row, Sequence and SequenceToken have one gradient", "[level]") {
  // Sequence takes the mean over the 9 tokens of a row and SequenceToken does not: they differ by a
  // few roundings of gradients of about 0.01.
  const Data d = plain(3, 5, 9);
  gdpo::PolicyLoss<gdpo::level::Sequence<>, gdpo::surrogate::Ratio, gdpo::kl::None> sequence;
  gdpo::PolicyLoss<gdpo::level::SequenceToken<>, gdpo::surrogate::Ratio, gdpo::kl::None> token;
  const Outcome a = loss_product::call<double>(sequence, d),
                b = loss_product::call<double>(token, d);
  CHECK(deviation(a.gradient, b.gradient, 1e-16) == "");
  CHECK(a.result.loss == b.result.loss);
}

TEST_CASE("rows of one token: all levels are one", "[level]") {
  const Data d = plain(4, 12, 1);
  const auto run = [&](auto loss) {
    loss.surrogate = {0.2, 0.2};
    loss.aggregate = {};
    return loss_product::call<double>(loss, d);
  };
  using Kl = gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>;
  const Outcome token = run(gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, Kl>{}),
                sequence =
                    run(gdpo::PolicyLoss<gdpo::level::Sequence<>, gdpo::surrogate::Ratio, Kl>{}),
                straight = run(
                    gdpo::PolicyLoss<gdpo::level::SequenceToken<>, gdpo::surrogate::Ratio, Kl>{});
  CHECK(deviation(sequence.gradient, token.gradient, 4e-16) == "");
  CHECK(deviation(straight.gradient, token.gradient, 4e-16) == "");
  CHECK(sequence.result.loss == Approx(token.result.loss).epsilon(1e-14));
}

TEST_CASE("segments that are single tokens make a Sequence level a Token level", "[level]") {
  Data d = plain(5, 4, 6);
  for (int k = 0; k < 24; ++k) d.segments.push_back(k % 2);
  const Outcome sequence =
      loss_product::call<double>(gdpo::PolicyLoss<gdpo::level::Sequence<>>{}, d);
  d.segments.clear();
  const Outcome token = loss_product::call<double>(gdpo::PolicyLoss<>{}, d);
  CHECK(deviation(sequence.gradient, token.gradient, 4e-16) == "");
}

TEST_CASE("a segment goes on behind masked tokens, whatever id they carry", "[level]") {
  Data d = plain(6, 1, 6);
  d.mask = {0, 1, 1, 0, 1, 1};
  const auto run = [&](std::vector<long long> ids) {
    d.segments = std::move(ids);
    return loss_product::call<double>(gdpo::PolicyLoss<gdpo::level::Sequence<>>{}, d);
  };
  const Outcome one = run({5, 5, 5, 5, 5, 5});
  CHECK(loss_product::difference_of(run({1, 5, 5, 9, 5, 5}), one) == "");
  d.segments.clear();
  const Outcome row = loss_product::call<double>(gdpo::PolicyLoss<gdpo::level::Sequence<>>{}, d);
  CHECK(difference(row.gradient, one.gradient) == "");
  CHECK(same_bits(row.result.loss, one.result.loss));
  CHECK(loss_product::difference_of(run({5, 5, 5, 5, 6, 6}), one) != "");
}

TEST_CASE(
    "GSPO with per-token advantages: Sequence shares the sum, SequenceToken keeps each its own",
    "[level]") {
  Data d = plain(7, 1, 4);
  d.advantages.clear();
  d.token_advantages = {1, 0, -2, 0.5};
  gdpo::PolicyLoss<gdpo::level::Sequence<>, gdpo::surrogate::Ratio, gdpo::kl::None> sequence{
      {}, {}, {}, gdpo::aggregate::token_sum()};
  gdpo::PolicyLoss<gdpo::level::SequenceToken<>, gdpo::surrogate::Ratio, gdpo::kl::None> token{
      {}, {}, {}, gdpo::aggregate::token_sum()};
  sequence.surrogate = token.surrogate = {1, 10};
  const Outcome a = loss_product::call<double>(sequence, d),
                b = loss_product::call<double>(token, d);
  const double ratio = a.result.metrics.ratio.max;
  for (std::size_t t = 0; t < 4; ++t) {
    CHECK(a.gradient[t] == Approx(0.5 / 4 * ratio).epsilon(1e-14));
    CHECK(b.gradient[t] == Approx(-d.token_advantages[t] * ratio).epsilon(1e-14));
  }
}

}  // namespace level_test
