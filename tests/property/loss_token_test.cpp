// level Token: every surrogate and KL term of the product, against the formulas.
#include "support/catch.hpp"
#include "support/loss_product.hpp"

loss_product::Outcome loss_product::run_token(const Settings& s, const Data& data, const gdpo::Normaliser* normaliser) {
  return detail::run_level<0, gdpo::level::Token<>>(s, data, normaliser);
}

TEST_CASE("level Token: loss, gradient and metrics are those of the formulas", "[loss][product]") {
  std::uint64_t seed = 0 * 10000;
  for (int round = 0; round < 40; ++round) {
    loss_product::for_each_type(0, [&](naive_loss::Settings s) {
      Random random(++seed);
      loss_product::random_settings(random, s);
      const naive_loss::Data data = loss_product::random_tokens(random, random.pick({1, 3, 6}), random.pick({1, 5, 12}),
                                                                random.pick({1e-3, 0.1, 0.7}));
      loss_product::fit(s, data);
      naive_loss::Counts counts = naive_loss::count(data);
      counts.given = random.pick({1.0, 64.0});
      const double divisors[] = {counts.tokens, counts.rows, counts.non_empty_rows, counts.given};
      if (divisors[static_cast<int>(s.over)] == 0) return;  // no tokens: below, the laws on empty batches
      const gdpo::Normaliser normaliser = loss_product::normaliser_of(counts);
      const std::string mismatch = loss_product::mismatch(s, data, naive_loss::loss(s, data, counts),
                                                          loss_product::run(s, data, &normaliser), tolerance::unit);
      if (mismatch.empty()) return;
      INFO("seed " << seed << ": " << loss_product::describe(s));
      CHECK(mismatch == "");
    });
  }
  SUCCEED();
}
