// labels: lanes
// Laws of OutcomeAdvantage: the two calls by hand in every bit, whatever the execution, the layout,
// the order of the rows and the numbers under the mask.
#include <gdpo/advantage/whiten.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/value/outcome_call.hpp>

#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/returns.hpp"
#include "support/thread_ranks.hpp"
#include "support/tolerance.hpp"

namespace outcome_laws_test {

namespace {

using namespace return_cases;
using gdpo::OutcomeAdvantage, gdpo::Placement;
using K3 = gdpo::Kl<gdpo::kl::K3>;
template <class Returns>
using Tokens = gdpo::TokenAdvantage<Returns, K3>;
using ToGo = Tokens<gdpo::returns::RewardToGo>;
using Gae = Tokens<gdpo::returns::Gae>;
using Values = std::vector<double>;

constexpr int seeds = few_rounds ? 30 : 150;

/// Rows of a Data, of whose groups each has four; `scores` are their rewards.
struct Outcomes {
  Data d;
  Values scores;
  std::vector<std::int64_t> ids;

  Outcomes(Random& random, int groups, int longest) : d(random_rows(random, 4 * groups, longest)) {
    for (index_t i = 0; i < d.rows(); ++i) {
      scores.push_back(random.below(64) / 16.0 - 2);
      ids.push_back(i / 4);
    }
  }
  Outcomes() = default;
  /// Some of the rows, in this order.
  Outcomes take(const std::vector<std::size_t>& rows) const {
    const std::vector<index_t> offsets = d.offsets();
    Outcomes some;
    for (const std::size_t i : rows) {
      some.scores.push_back(scores[i]), some.ids.push_back(ids[i]);
      some.d.lengths.push_back(d.lengths[i]), some.d.row_rewards.push_back(d.row_rewards[i]);
      some.d.bootstrap.push_back(d.bootstrap[i]);
      const auto copy = [&](const auto& all, auto& to) {
        to.insert(to.end(), all.begin() + offsets[i], all.begin() + offsets[i + 1]);
      };
      copy(d.rewards, some.d.rewards), copy(d.values, some.d.values);
      copy(d.logp, some.d.logp), copy(d.ref_logp, some.d.ref_logp), copy(d.mask, some.d.mask);
    }
    return some;
  }
};

/// The packed arrays of S, and where the outputs go.
template <class S>
struct Packed {
  std::vector<S> rewards, values, logp, ref_logp;
  std::vector<index_t> offsets;
  Out<S> out;
  gdpo::ReturnBatch<S> batch;

  Packed(const Data& d, bool with_rewards)
      : rewards(stored<S>(d.rewards)),
        values(stored<S>(d.values)),
        logp(stored<S>(d.logp)),
        ref_logp(stored<S>(d.ref_logp)),
        offsets(d.offsets()) {
    if (with_rewards) batch.rewards = gdpo::view(rewards);
    batch.values = gdpo::view(values), batch.logp = gdpo::view(logp);
    batch.ref_logp = gdpo::view(ref_logp), batch.mask = gdpo::view(d.mask);
    batch.offsets = gdpo::view(offsets), batch.bootstrap = gdpo::view(d.bootstrap);
    out.advantages.assign(d.mask.size(), S(42)), out.returns = out.advantages;
  }
};

bool has_rewards(Placement placement) { return placement == Placement::LastStep; }

template <class S, class Exec, class Estimator>
Out<S> at_once(const Exec& exec, const Outcomes& o, const Estimator& e) {
  Packed<S> p(o.d, has_rewards(e.placement));
  const gdpo::RewardBatch rewards{gdpo::view(o.scores), gdpo::by_id(o.ids)};
  gdpo::OutcomeWorkspace<S> workspace;
  gdpo::advantages_and_returns_into(exec, rewards, p.batch, e, gdpo::view(p.out.advantages),
                                    gdpo::view(p.out.returns), workspace);
  return p.out;
}

/// The two calls, with a token's own copy of the advantage of its row.
template <class S, class Estimator>
Out<S> by_hand(const Outcomes& o, const Estimator& e) {
  Packed<S> p(o.d, has_rewards(e.placement));
  const gdpo::RewardBatch rewards{gdpo::view(o.scores), gdpo::by_id(o.ids)};
  const Values of_rows = gdpo::advantages(gdpo::seq, rewards, e.rows);
  std::vector<S> of_tokens;
  if (e.placement == Placement::LastStep) {
    p.batch.row_rewards = gdpo::view(of_rows);
  } else {
    for (std::size_t i = 0; i < of_rows.size(); ++i)
      of_tokens.insert(of_tokens.end(), static_cast<std::size_t>(o.d.lengths[i]),
                       static_cast<S>(of_rows[i]));
    p.batch.rewards = gdpo::view(of_tokens);
  }
  gdpo::ReturnsWorkspace<S> workspace;
  gdpo::advantages_and_returns_into(gdpo::seq, p.batch, e.tokens, gdpo::view(p.out.advantages),
                                    gdpo::view(p.out.returns), workspace);
  return p.out;
}

template <class Rows, class T>
OutcomeAdvantage<Rows, T> random_estimator(Random& random) {
  OutcomeAdvantage<Rows, T> e;
  e.placement = random.pick({Placement::LastStep, Placement::EveryToken});
  e.rows.weights = {random.pick({0.5, 1.0, -2.0})};
  e.tokens.returns.gamma = random.pick({0.0, 0.9, 1.0});
  e.tokens.returns.steps = all_steps[random.below(4)];
  e.tokens.penalty.coef = random.pick({0.0, 0.1});
  if (random.chance(0.3)) e.tokens.reward_clip = {-0.5, 0.75};
  if (random.chance(0.5)) e.tokens.renorm = gdpo::renorm::token_weighted_batch();
  return e;
}

/// Calls f with estimators of several types.
template <class F>
void for_each_estimator(Random& random, const F& f) {
  f(random_estimator<gdpo::Rloo, ToGo>(random));
  f(random_estimator<gdpo::Grpo, Gae>(random));
  f(random_estimator<gdpo::Gdpo, ToGo>(random));
}

}  // namespace

TEST_CASE("outcomes: one call gives the bits of the two calls, on every execution") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed));
    const Outcomes o(random, 1 + random.below(6), random.pick({5, 70, 1100}));
    const auto check = [&](const auto& e, auto zero) {
      using S = decltype(zero);
      const Out<S> wanted = by_hand<S>(o, e);
      CHECK(at_once<S>(gdpo::seq, o, e) == wanted);
      executors::for_each_target([&](const auto& exec, const std::string& name) {
        INFO(name);
        CHECK(at_once<S>(exec, o, e) == wanted);
      });
    };
    if (seed % 10 == 0) {
      for_each_estimator(random, [&](const auto& e) { check(e, 0.0f), check(e, 0.0); });
    } else {
      for_each_estimator(random, [&](const auto& e) {
        CHECK(at_once<float>(gdpo::simd, o, e) == by_hand<float>(o, e));
        CHECK(at_once<double>(gdpo::seq, o, e) == by_hand<double>(o, e));
      });
    }
  }
}

TEST_CASE("outcomes: padded rows have the bits of packed ones") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 1000);
    const Outcomes o(random, 1 + random.below(5), 30);
    for_each_estimator(random, [&](auto e) {
      e.tokens.returns.steps = random.pick({gdpo::Steps::Valid, gdpo::Steps::Turns});
      const Out<float> wanted = at_once<float>(gdpo::seq, o, e);
      const index_t rows = o.d.rows(), width = o.d.width() + 2;
      const auto size = static_cast<std::size_t>(rows * width);
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> rewards(size, nan), values(size, nan), logp(size, nan), ref(size, nan);
      std::vector<float> advantages(size, 42), returns(size, 42);
      std::vector<unsigned char> mask(size, 0);
      const auto each = [&](const auto& f) {
        std::size_t k = 0;
        for (index_t i = 0; i < rows; ++i)
          for (index_t t = 0; t < o.d.lengths[static_cast<std::size_t>(i)]; ++t)
            f(static_cast<std::size_t>(i * width + t + 1), k++);
      };
      each([&](std::size_t place, std::size_t k) {
        rewards[place] = static_cast<float>(o.d.rewards[k]), mask[place] = o.d.mask[k];
        values[place] = static_cast<float>(o.d.values[k]);
        logp[place] = static_cast<float>(o.d.logp[k]);
        ref[place] = static_cast<float>(o.d.ref_logp[k]);
      });
      gdpo::ReturnBatch<float> b;
      const auto tokens = [&](auto& x) { return gdpo::view(x.data(), rows, width); };
      if (has_rewards(e.placement)) b.rewards = tokens(rewards);
      b.values = tokens(values), b.logp = tokens(logp), b.ref_logp = tokens(ref);
      b.mask = tokens(mask), b.bootstrap = gdpo::view(o.d.bootstrap);
      const gdpo::RewardBatch scores{gdpo::view(o.scores), gdpo::by_id(o.ids)};
      gdpo::advantages_and_returns_into(scores, b, e, tokens(advantages), tokens(returns));
      Out<float> got;
      each([&](std::size_t place, std::size_t) {
        got.advantages.push_back(advantages[place]), got.returns.push_back(returns[place]);
        advantages[place] = returns[place] = 0;
      });
      CHECK(got == wanted);
      const std::vector<float> zeros(size, 0);  // padding is exactly 0
      CHECK(Out<float>{advantages, returns} == Out<float>{zeros, zeros});
    });
  }
}

TEST_CASE("outcomes: masked numbers change no bit") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 2000);
    const Outcomes o(random, 1 + random.below(5), 30);
    Outcomes poisoned = o;
    for (std::size_t k = 0; k < o.d.mask.size(); ++k) {
      if (o.d.mask[k] != 0) continue;
      const double poison = random.pick({std::nan(""), 1e38, -1e38});
      poisoned.d.rewards[k] = poisoned.d.values[k] = poisoned.d.logp[k] = poison;
      poisoned.d.ref_logp[k] = poison;
    }
    for_each_estimator(random, [&](auto e) {
      e.tokens.returns.steps = random.pick({gdpo::Steps::Valid, gdpo::Steps::Turns});
      CHECK(at_once<float>(gdpo::seq, poisoned, e) == at_once<float>(gdpo::seq, o, e));
      CHECK(at_once<float>(gdpo::simd, poisoned, e) == at_once<float>(gdpo::seq, o, e));
    });
  }
}

TEST_CASE("outcomes: rows in another order get the same bits, without whitening") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 3000);
    const Outcomes o(random, 1 + random.below(5), 30);
    const auto rows = static_cast<std::size_t>(o.d.rows());
    const std::vector<index_t> offsets = o.d.offsets();
    std::vector<std::size_t> backwards;
    for (std::size_t i = rows; i-- > 0;) backwards.push_back(i);
    const Outcomes reversed = o.take(backwards);
    for_each_estimator(random, [&](auto e) {
      e.rows.renorm = {}, e.tokens.renorm = {};
      const Out<double> there = at_once<double>(gdpo::simd, o, e);
      const Out<double> back = at_once<double>(gdpo::simd, reversed, e);
      Out<double> wanted;
      for (std::size_t i = rows; i-- > 0;) {
        const auto copy = [&](const Values& all, Values& to) {
          to.insert(to.end(), all.begin() + offsets[i], all.begin() + offsets[i + 1]);
        };
        copy(there.advantages, wanted.advantages), copy(there.returns, wanted.returns);
      }
      CHECK(back == wanted);
    });
  }
}

TEST_CASE("outcomes: a discount of 0 keeps the advantage of the row at every token") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 4000);
    const Outcomes o(random, 1 + random.below(5), 30);
    OutcomeAdvantage<gdpo::Rloo, ToGo> e;
    e.placement = Placement::EveryToken, e.tokens.returns.gamma = 0;
    const Out<double> got = at_once<double>(gdpo::simd, o, e);
    const gdpo::RewardBatch rewards{gdpo::view(o.scores), gdpo::by_id(o.ids)};
    const Values of_rows = gdpo::advantages(gdpo::seq, rewards, e.rows);
    std::size_t k = 0;
    for (std::size_t i = 0; i < of_rows.size(); ++i) {
      for (index_t t = 0; t < o.d.lengths[i]; ++t, ++k)
        REQUIRE(got.advantages[k] == (o.d.mask[k] != 0 ? of_rows[i] : 0));
    }
  }
}

TEST_CASE("outcomes over ranks: rewards are gathered, tokens stay, moments are merged", "[dist]") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 5000);
    const Outcomes o(random, 1 + random.below(5), 30);
    const std::vector<index_t> offsets = o.d.offsets();
    const auto ranks = static_cast<std::size_t>(1 + random.below(4));
    std::vector<std::vector<std::size_t>> own(ranks);
    for (std::size_t i = 0; i < o.scores.size(); ++i)
      own[static_cast<std::size_t>(random.below(static_cast<int>(ranks)))].push_back(i);
    for_each_estimator(random, [&](const auto& e) {
      const Out<double> whole = at_once<double>(gdpo::seq, o, e);
      std::vector<Out<double>> got(ranks);
      CHECK(test::on_ranks(static_cast<int>(ranks), [&](const test::ThreadRank& comm) {
              const auto r = static_cast<std::size_t>(comm.rank());
              const Outcomes part = o.take(own[r]);
              std::vector<int> keys;
              for (const std::size_t i : own[r]) keys.push_back(static_cast<int>(i));
              Packed<double> p(part.d, has_rewards(e.placement));
              const gdpo::RewardBatch rewards{gdpo::view(part.scores), gdpo::by_id(part.ids)};
              const auto all = gdpo::dist::gather_rows(comm, rewards, gdpo::view(keys));
              const Values mine = all.own(gdpo::advantages(gdpo::simd, all.batch(), e.rows));
              if (e.placement == Placement::LastStep) {
                p.batch.row_rewards = gdpo::view(mine);
              } else {
                p.batch.rewards = gdpo::repeated(gdpo::view(mine));
              }
              auto tokens = e.tokens;
              tokens.renorm = gdpo::renorm::none();
              const auto out = gdpo::view(p.out.advantages);
              gdpo::advantages_and_returns_into(p.batch, tokens, out, gdpo::view(p.out.returns));
              if (e.tokens.renorm.over != gdpo::RenormOver::None) {
                const auto mask = gdpo::view(std::as_const(part.d.mask));
                gdpo::whiten_into(out, mask, e.tokens.renorm,
                                  gdpo::dist::all_merge(comm, gdpo::masked_moments(out, mask)),
                                  out);
              }
              got[r] = p.out;
            }) == std::vector<std::string>(ranks));
      const bool whitened = e.tokens.renorm.over != gdpo::RenormOver::None;
      for (std::size_t r = 0; r < ranks; ++r) {
        std::size_t k = 0;
        for (const std::size_t i : own[r]) {
          for (index_t t = offsets[i]; t < offsets[i + 1]; ++t, ++k) {
            const auto at = static_cast<std::size_t>(t);
            REQUIRE(got[r].returns[k] == whole.returns[at]);
            // Whitened ones are below 40 here: at most 600 tokens, of a std of 1.
            REQUIRE(std::fabs(got[r].advantages[k] - whole.advantages[at]) <=
                    (whitened ? 40 * tolerance::merge : 0));
          }
        }
      }
    });
  }
}

}  // namespace outcome_laws_test
