// labels: lanes
// Laws of advantages_and_returns_into: the definition in long double, identities of the formulas,
// and that neither layout, padding, masked numbers, executions nor splits change a bit.
#include <gdpo/advantage/whiten.hpp>

#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/returns.hpp"
#include "support/tolerance.hpp"

namespace returns_laws_test {

namespace {

using namespace return_cases;
using gdpo::Steps;
using gdpo::returns::Gae, gdpo::returns::RewardToGo;
using K1 = gdpo::Kl<gdpo::kl::K1>;
using K2 = gdpo::Kl<gdpo::kl::K2>;
template <class Returns, class Kl = K1>
using Estimator = gdpo::TokenAdvantage<Returns, Kl>;

constexpr int seeds = few_rounds ? 40 : 200;

Gae random_gae(Random& random, Steps steps) {
  Gae g;
  g.gamma = random.pick({0.0, 0.9, 0.99, 1.0});
  g.lambda = random.pick({0.0, 0.5, 0.95, 1.0});
  g.lambda_returns = random.pick({gdpo::same_lambda, gdpo::same_lambda, 1.0, 0.7});
  g.length_alpha = random.pick({0.0, 0.0, 0.05, 0.5});
  g.steps = steps;
  return g;
}
Steps random_steps(Random& random) { return all_steps[random.below(4)]; }
Data small_data(Random& random) { return random_rows(random, 1 + random.below(19), 40); }

/// A sum of n terms of at most 10 in n roundings of at most 2^-53 n 10 each.
template <class S>
void check_close(const Out<S>& got, const naive::ReturnsResult& wanted, const Data& d) {
  const double n = static_cast<double>(d.width());
  const double bound = n * n * 10 * 0x1p-53 + (sizeof(S) == 4 ? n * 10 * 0x1p-24 : 0.0);
  REQUIRE(got.advantages.size() == wanted.advantages.size());
  for (std::size_t k = 0; k < d.mask.size(); ++k) {
    INFO("token " << k);
    if (d.mask[k] == 0) {
      REQUIRE(same_bits(static_cast<double>(got.advantages[k]), 0));
      REQUIRE(same_bits(static_cast<double>(got.returns[k]), 0));
      continue;
    }
    REQUIRE(std::fabs(static_cast<double>(got.advantages[k] - wanted.advantages[k])) <= bound);
    REQUIRE(std::fabs(static_cast<double>(got.returns[k] - wanted.returns[k])) <= bound);
  }
}

template <class Returns>
naive::ReturnsSettings settings(const Returns& r) {
  naive::ReturnsSettings s;
  s.gamma = r.gamma;
  s.steps = static_cast<naive::StepsOf>(r.steps);
  if constexpr (std::is_same_v<Returns, Gae>) {
    s.lambda = r.lambda;
    s.lambda_returns = std::isnan(r.lambda_returns) ? r.lambda : r.lambda_returns;
    s.length_alpha = r.length_alpha;
  } else {
    s.gae = false;
  }
  return s;
}

}  // namespace

TEST_CASE("returns: GAE is the sum that defines it, for every choice of steps") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed));
    const Data d = small_data(random);
    Estimator<Gae, K2> e{random_gae(random, random_steps(random)), {}, {}, {}};
    e.penalty.coef = random.pick({0.0, 0.1, -2.0});
    if (random.chance(0.3)) e.reward_clip = {-0.5, 0.75};
    const auto wanted = expected(d, settings(e.returns), e.penalty.coef, e.reward_clip,
                                 [](long double x) { return x * x / 2; });
    check_close(packed<double>(gdpo::seq, d, e), wanted, d);
    check_close(packed<float>(gdpo::seq, d, e), wanted, d);
    check_close(packed<double>(gdpo::simd, d, e), wanted, d);
  }
}

TEST_CASE("returns: reward to go is the discounted sum, for every choice of steps") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 1000);
    const Data d = small_data(random);
    Estimator<RewardToGo> e{{random.pick({0.0, 0.9, 1.0}), random_steps(random)}, {}, {}, {}};
    e.penalty.coef = random.pick({0.0, 0.1});
    const auto wanted = expected(d, settings(e.returns), e.penalty.coef, e.reward_clip,
                                 [](long double x) { return x; });
    const auto got = packed<double>(gdpo::seq, d, e);
    check_close(got, wanted, d);
    CHECK(difference(got.advantages, got.returns) == "");
  }
}

TEST_CASE("returns: all executions give the bits of seq") {
  // 1100 and 2100 tokens: tiles of lanes end inside the rows.
  for (int seed = 0; seed < (few_rounds ? 12 : 60); ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 2000);
    const Data d = random_rows(random, 1 + random.below(40), random.pick({5, 70, 1100, 2100}));
    Estimator<Gae, gdpo::Kl<gdpo::kl::K3>> gae{
        random_gae(random, random_steps(random)), {}, {}, {}};
    gae.penalty.coef = random.pick({0.0, 0.1});
    Estimator<RewardToGo> to_go{{0.99, random_steps(random)}, {}, {}, {}};
    Estimator<Gae> whitened{
        random_gae(random, Steps::Valid), {}, {}, gdpo::renorm::token_weighted_batch()};
    const auto check = [&](const auto& estimator, auto zero) {
      using S = decltype(zero);
      const Out<S> wanted = packed<S>(gdpo::seq, d, estimator);
      executors::for_each_target([&](const auto& exec, const std::string& name) {
        INFO(name);
        CHECK(packed<S>(exec, d, estimator) == wanted);
      });
    };
    check(gae, 0.0f), check(gae, 0.0), check(to_go, 0.0f), check(whitened, 0.0f);
  }
}

TEST_CASE("returns: long rows side by side give the bits of seq, wherever they begin in memory") {
  for (int seed = 0; seed < (few_rounds ? 10 : 60); ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 2500);
    const index_t rows = 1 + random.below(20), width = 60 + random.below(1200);
    const auto n = static_cast<std::size_t>(rows * width), left = std::size_t(random.below(17));
    std::vector<float> values(left + n), rewards(left + n), scores(std::size_t(rows), 0.5f);
    std::vector<unsigned char> mask(left + n);
    const bool masked = random.chance(0.7), poisoned = random.chance(0.5);
    const int longest_run = random.pick({2, 40, 600});
    bool valid = random.chance(0.8);
    for (std::size_t k = left, run = 1; k < left + n; ++k, --run) {
      if (run == 0) valid = !valid, run = std::size_t(1 + random.below(longest_run));
      const bool hidden = masked && !valid;
      mask[k] = hidden ? 0 : static_cast<unsigned char>(random.pick({1, 128, 255}));
      values[k] = float(random.uniform()), rewards[k] = float(random.uniform());
      if (hidden && poisoned) values[k] = rewards[k] = random.pick({std::nanf(""), -1e38f});
    }
    Estimator<Gae> gae{random_gae(random, poisoned ? random.pick({Steps::Valid, Steps::Turns})
                                                   : random_steps(random)),
                       {},
                       {},
                       {}};
    if (random.chance(0.3)) gae.renorm = gdpo::renorm::token_weighted_batch();
    const Estimator<RewardToGo> to_go{{0.99, gae.returns.steps}, {}, {}, gae.renorm};
    const bool with_rewards = random.chance(0.5), with_returns = random.chance(0.7),
               in_place = random.chance(0.3);
    const auto run = [&](const auto& exec, const auto& estimator) {
      const auto table = [&](auto& x) { return gdpo::view(x.data() + left, rows, width); };
      std::vector<float> advantages(left + n, 42.0f), returns(left + n, 42.0f), read = rewards;
      gdpo::ReturnBatch<float> batch;
      batch.row_rewards = gdpo::view(scores), batch.values = table(values);
      if (with_rewards) batch.rewards = table(read);
      if (masked) batch.mask = table(mask);
      std::vector<float>& out = in_place && with_rewards ? read : advantages;
      gdpo::ReturnsWorkspace<float> workspace;
      gdpo::TokenOut<float> second;
      if (with_returns) second = table(returns);
      gdpo::advantages_and_returns_into(exec, batch, estimator, table(out), second, workspace);
      return Out<float>{out, returns};
    };
    const auto check = [&](const auto& estimator) {
      const Out<float> wanted = run(gdpo::seq, estimator);
      executors::for_each_target([&](const auto& exec, const std::string& name) {
        INFO(name);
        CHECK(run(exec, estimator) == wanted);
      });
    };
    check(gae), check(to_go);
  }
}

TEST_CASE("returns: layout, padding and storage change no bit") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 3000);
    const Data d = small_data(random);
    const Steps steps = random.pick({Steps::Valid, Steps::Turns});  // the others see padding
    Estimator<Gae> e{random_gae(random, steps), {}, {}, gdpo::renorm::token_weighted_batch()};
    e.penalty.coef = random.pick({0.0, 0.1});
    const Out<float> wanted = packed<float>(gdpo::seq, d, e);
    const Out<double> wanted_double = packed<double>(gdpo::seq, d, e);
    gdpo::ReturnsWorkspace<float> workspace;
    gdpo::ReturnsWorkspace<double> of_double;
    for (const Form form : {Form::Dense, Form::Columns, Form::Reversed, Form::Rank3, Form::Gaps}) {
      INFO("form " << static_cast<int>(form));
      const index_t left = random.below(3);
      CHECK(padded<float, float>(gdpo::seq, d, e, form, left, workspace) == wanted);
      CHECK(padded<float, float>(gdpo::simd, d, e, form, left, workspace) == wanted);
      CHECK(padded<double, float>(gdpo::simd, d, e, form, left, of_double) == wanted_double);
      CHECK(padded<float, float>(gdpo::seq, d, e, form, left, workspace, true) == wanted);
      CHECK(padded<float, float>(gdpo::simd, d, e, form, left, workspace, true) == wanted);
    }
  }
}

TEST_CASE("returns: masked numbers change no bit where they are no steps") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 4000);
    const Data d = small_data(random);
    Data poisoned = d;
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (d.mask[k] != 0) continue;
      const double poison = random.pick({std::nan(""), 1e38, -1e38});
      poisoned.rewards[k] = poisoned.logp[k] = poisoned.ref_logp[k] = poisoned.values[k] = poison;
    }
    for (const Steps steps : {Steps::Valid, Steps::Turns}) {
      Estimator<Gae> e{random_gae(random, steps), {0.1}, {}, {}};
      CHECK(packed<float>(gdpo::seq, poisoned, e) == packed<float>(gdpo::seq, d, e));
      CHECK(packed<float>(gdpo::simd, poisoned, e) == packed<float>(gdpo::seq, d, e));
    }
    // Masked positions are steps there, but their rewards, and without values all else, do not
    // count.
    for (const Steps steps : {Steps::Valid, Steps::RowRewardOnValid, Steps::Turns}) {
      Estimator<RewardToGo> e{{0.9, steps}, {0.1}, {}, {}};
      CHECK(packed<float>(gdpo::seq, poisoned, e) == packed<float>(gdpo::seq, d, e));
      CHECK(packed<float>(gdpo::simd, poisoned, e) == packed<float>(gdpo::seq, d, e));
    }
    Data values_kept = poisoned;
    values_kept.values = d.values;
    Estimator<Gae> e{random_gae(random, Steps::RowRewardOnValid), {0.1}, {}, {}};
    CHECK(packed<float>(gdpo::seq, values_kept, e) == packed<float>(gdpo::seq, d, e));
    CHECK(packed<float>(gdpo::simd, values_kept, e) == packed<float>(gdpo::seq, d, e));
  }
}

TEST_CASE("returns: rows in several calls give the bits of one call") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 5000);
    const Data d = small_data(random);
    const Estimator<Gae> e{random_gae(random, random_steps(random)), {0.1}, {}, {}};
    const auto cut = static_cast<std::size_t>(random.below(static_cast<int>(d.rows()) + 1));
    const auto split = static_cast<std::size_t>(d.offsets()[cut]);
    Out<float> both;
    for (const bool second : {false, true}) {
      const auto part = [&](const auto& v, std::size_t at) {
        using Vector = std::decay_t<decltype(v)>;
        const auto middle = v.begin() + static_cast<std::ptrdiff_t>(at);
        return second ? Vector(middle, v.end()) : Vector(v.begin(), middle);
      };
      const Data half{part(d.lengths, cut),     part(d.rewards, split),  part(d.values, split),
                      part(d.logp, split),      part(d.ref_logp, split), part(d.mask, split),
                      part(d.row_rewards, cut), part(d.bootstrap, cut)};
      const Out<float> one = packed<float>(gdpo::simd, half, e);
      both.advantages.insert(both.advantages.end(), one.advantages.begin(), one.advantages.end());
      both.returns.insert(both.returns.end(), one.returns.begin(), one.returns.end());
    }
    CHECK(both == packed<float>(gdpo::simd, d, e));
  }
}

TEST_CASE("returns: identities of GAE") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 6000);
    Data d = small_data(random);
    const Steps steps = random_steps(random);
    const double gamma = random.pick({0.5, 0.9, 1.0}), lambda = random.pick({0.0, 0.5, 0.9});
    const auto of = [](const Data& data, const auto& returns) {
      return packed<double>(gdpo::seq, data, Estimator<std::decay_t<decltype(returns)>>{returns});
    };
    const auto near = [&](double a, double b) { return std::fabs(a - b) <= 1e-11; };
    const Out<double> to_go = of(d, RewardToGo{gamma, steps});

    // lambda 1 telescopes: A_t = G_t - V_t, and the returns are the reward to go.
    const Out<double> one = of(d, Gae{gamma, 1, gdpo::same_lambda, 0, steps});
    // lambda_returns 1 gives the same returns beside any lambda.
    const Out<double> decoupled = of(d, Gae{gamma, lambda, 1, 0, steps});
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (d.mask[k] == 0) continue;
      REQUIRE(near(one.advantages[k], to_go.advantages[k] - d.values[k]));
      REQUIRE(near(one.returns[k], to_go.advantages[k]));
    }
    CHECK(difference(decoupled.returns, one.returns) == "");
    CHECK(difference(decoupled.advantages,
                     of(d, Gae{gamma, lambda, gdpo::same_lambda, 0, steps}).advantages) == "");

    // Without values, GAE is the reward to go that is discounted by gamma lambda, bit for bit. The
    // bootstrap enters through gamma alone, so it is left out.
    Data no_values = d;
    no_values.values.assign(d.values.size(), 0.0),
        no_values.bootstrap.assign(d.lengths.size(), 0.0);
    const double factor = gdpo::math::mul(gamma, lambda);
    CHECK(difference(of(no_values, Gae{gamma, lambda, gdpo::same_lambda, 0, steps}).advantages,
                     of(no_values, RewardToGo{factor, steps}).advantages) == "");

    // Linear in the rewards: twice the rewards of every kind, twice the reward to go, exactly.
    Data twice = d;
    for (auto* of_all : {&twice.rewards, &twice.row_rewards, &twice.bootstrap, &twice.values})
      for (double& x : *of_all) x *= 2;
    const Out<double> doubled = of(twice, Gae{gamma, lambda, 0.75, 0, steps});
    const Out<double> single = of(d, Gae{gamma, lambda, 0.75, 0, steps});
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      REQUIRE(same_bits(doubled.advantages[k], 2 * single.advantages[k]));
      REQUIRE(same_bits(doubled.returns[k], 2 * single.returns[k]));
    }
  }
}

TEST_CASE("returns: lambda 0 is the error of one step, and gamma 1 without values suffix sums") {
  Random random(7);
  Data d = random_rows(random, 12, 30);
  for (auto& m : d.mask) m = 1;
  const auto td = packed<double>(gdpo::simd, d, Estimator<Gae>{{0.9, 0}});
  const auto sums = packed<double>(gdpo::simd, d, Estimator<RewardToGo>{{1}});
  const auto offsets = d.offsets();
  for (std::size_t i = 0; i < d.lengths.size(); ++i) {
    double suffix = d.bootstrap[i] + d.row_rewards[i];
    for (index_t t = offsets[i + 1] - 1; t >= offsets[i]; --t) {
      const auto k = static_cast<std::size_t>(t);
      const bool last = t == offsets[i + 1] - 1;
      const double r = d.rewards[k] + (last ? d.row_rewards[i] : 0.0);
      const double next = last ? d.bootstrap[i] : d.values[k + 1];
      CHECK(std::fabs(td.advantages[k] - (r + 0.9 * next - d.values[k])) <= 1e-14);
      suffix += d.rewards[k];
      CHECK(sums.advantages[k] == suffix);  // multiples of 2^-8: no rounding
    }
  }
}

TEST_CASE("returns: a row cut in two with the value behind the cut as its bootstrap") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 8000);
    Data whole;
    add_row(random, whole, 2 + random.below(30), 1.0);
    const auto n = whole.mask.size(),
               cut = 1 + static_cast<std::size_t>(random.below(static_cast<int>(n) - 1));
    const double gamma = 0.9, lambda = random.pick({0.0, 0.7, 1.0});
    const Estimator<Gae> e{{gamma, lambda}};
    Data head = whole;
    head.lengths = {static_cast<index_t>(cut)};
    for (auto* v : {&head.rewards, &head.values, &head.logp, &head.ref_logp}) v->resize(cut);
    head.mask.resize(cut);
    head.row_rewards = {0}, head.bootstrap = {whole.values[cut]};
    const auto all = packed<double>(gdpo::simd, whole, e),
               part = packed<double>(gdpo::simd, head, e);
    // The head of the whole also carries the advantage behind the cut, gamma lambda a step.
    double carried = all.advantages[cut];
    for (std::size_t k = cut; k-- > 0;) {
      carried *= gamma * lambda;
      CHECK(std::fabs(part.advantages[k] + carried - all.advantages[k]) <= 1e-12);
      if (lambda == 0) CHECK(same_bits(part.advantages[k], all.advantages[k]));
    }
  }
}

TEST_CASE("returns: a row of two turns is two rows with Steps::Turns, one without its gap else") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 9000);
    Data apart;
    add_row(random, apart, 1 + random.below(9), 1.0),
        add_row(random, apart, 1 + random.below(9), 1.0);
    apart.row_rewards[0] = 0, apart.bootstrap[0] = 0;
    const auto first = apart.lengths[0], gap = index_t{1} + random.below(5);
    Data turns = apart, joined = apart;
    const auto open = [&](auto& v, auto x) {
      v.insert(v.begin() + first, static_cast<std::size_t>(gap), x);
    };
    for (auto* v : {&turns.rewards, &turns.values, &turns.logp, &turns.ref_logp}) open(*v, 1e30);
    open(turns.mask, static_cast<unsigned char>(0));
    turns.lengths = {first + gap + apart.lengths[1]};
    joined.lengths = {first + apart.lengths[1]};
    for (Data* one : {&turns, &joined})
      one->row_rewards = {apart.row_rewards[1]}, one->bootstrap = {apart.bootstrap[1]};
    const auto close = [&](Out<double> out) {
      for (auto* v : {&out.advantages, &out.returns})
        v->erase(v->begin() + first, v->begin() + first + gap);
      return out;
    };
    Gae g = random_gae(random, Steps::Turns);
    g.length_alpha = 0;  // it depends on the tokens of the row
    const auto check = [&](const auto& exec) {
      CHECK(close(packed<double>(exec, turns, Estimator<Gae>{g})) ==
            packed<double>(exec, apart, Estimator<Gae>{g}));
      Gae valid = g;
      valid.steps = Steps::Valid;
      CHECK(close(packed<double>(exec, turns, Estimator<Gae>{valid})) ==
            packed<double>(exec, joined, Estimator<Gae>{valid}));
    };
    check(gdpo::seq), check(gdpo::simd);
  }
}

TEST_CASE("returns: the renormalization is whiten_into, bit for bit") {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(static_cast<std::uint64_t>(seed) + 10000);
    const Data d = random_rows(random, 1 + random.below(19), random.pick({40, 40, 1500}));
    const Gae g = random_gae(random, random_steps(random));
    gdpo::Renorm w = gdpo::renorm::token_weighted_batch();
    if (random.chance(0.5)) w = gdpo::renorm::token_weighted_batch(0, 1e-8, gdpo::EpsAt::ClampVar);
    w.count_eps = random.pick({0.0, 1e-8}), w.keep_mean = random.chance(0.3);
    Out<float> plain = packed<float>(gdpo::simd, d, Estimator<Gae>{g});
    gdpo::whiten_into(gdpo::view(plain.advantages), gdpo::view(d.mask), w,
                      gdpo::view(plain.advantages));
    CHECK(packed<float>(gdpo::simd, d, Estimator<Gae>{g, {}, {}, w}) == plain);
  }
}

TEST_CASE("returns: the chunked form of slime's chunked_gae agrees") {
  // Chunks of 4 steps: within one, a sum of powers; what a chunk hands on is carried by powers.
  Random random(11);
  Data d;
  for (int i = 0; i < 9; ++i) add_row(random, d, 1 + random.below(50), 1.0);
  d.bootstrap.assign(9, 0.0);
  const long double gamma = 0.99L, w = 0.99L * 0.95L;
  const auto got =
      packed<double>(gdpo::simd, d, Estimator<Gae>{{0.99, 0.95, gdpo::same_lambda, 0, Steps::Row}});
  const auto offsets = d.offsets();
  for (std::size_t i = 0; i < 9; ++i) {
    const auto n = static_cast<std::size_t>(d.lengths[i]),
               at = static_cast<std::size_t>(offsets[i]);
    std::vector<long double> delta(n), advantages(n);
    for (std::size_t t = 0; t < n; ++t) {
      delta[t] = static_cast<long double>(d.rewards[at + t]) - d.values[at + t];
      delta[t] += t + 1 < n ? gamma * d.values[at + t + 1] : d.row_rewards[i];
    }
    long double behind = 0;
    for (std::size_t end = n; end > 0;) {
      const std::size_t begin = end > 4 ? end - 4 : 0;
      for (std::size_t t = begin; t < end; ++t) {
        long double power = 1, sum = 0;
        for (std::size_t s = t; s < end; ++s, power *= w) sum += power * delta[s];
        advantages[t] = sum + power * behind;
      }
      behind = advantages[begin], end = begin;
    }
    for (std::size_t t = 0; t < n; ++t)
      CHECK(std::fabs(static_cast<double>(got.advantages[at + t] - advantages[t])) <= 1e-12);
  }
}

}  // namespace returns_laws_test
