// labels: lanes
// Surrogates and factors chosen at run time that declare what they read: the bits of the same ones
// chosen by type, the same errors for arrays that are absent, and none where the choice reads none.
#include <gdpo/loss/any_surrogate.hpp>

#include "support/catch.hpp"
#include "support/loss_archetypes.hpp"
#include "support/loss_calls.hpp"
#include "support/message.hpp"

namespace any_surrogate_test {

namespace {

namespace math = gdpo::math;
using archetype::ByTag, archetype::OfTheRow;
using gdpo::Factors, gdpo::surrogate::Ratio, gdpo::surrogate::Reinforce;
using loss_product::Data, loss_product::Outcome;

/// A surrogate that reads a teacher and the row's mean advantage: -(A - mean)(log p - teacher).
struct Distilled {
  static constexpr bool reads_teacher = true, reads_row_advantage = true;
  double share = 0.5;
  template <class V>
  gdpo::Term<V> operator()(const gdpo::Token<V>& t) const {
    const V a = t.advantage - math::mul(math::constant<V>(share), t.row_advantage);
    return {math::mul(-a, t.logp - t.teacher_logp), math::constant<V>(0.0), -a};
  }
};
/// One whose derivative is that of the ratio alone, and -0 where A is 0.
struct Plain {
  static constexpr bool ratio_only = true;
  template <class V>
  gdpo::Term<V> operator()(const gdpo::Token<V>& t) const {
    const V value = math::mul(-t.advantage, t.ratio);
    return {value, value, math::constant<V>(0.0)};
  }
};
/// A factor that reads the distance to the sampling policy.
struct Sampled {
  static constexpr bool reads_rollout = true;
  double most = 1.5;
  template <class V>
  V operator()(const gdpo::Token<V>& t) const {
    return (math::min)(math::exp_parts(t.old_logp - t.rollout_logp).exp, math::constant<V>(most));
  }
};

using AnySurrogate = gdpo::AnySurrogate<Ratio, Reinforce, Distilled, Plain>;
using AnyFactors = gdpo::AnyFactors<Factors<>, Factors<ByTag>, Factors<OfTheRow>, Factors<Sampled>,
                                    Factors<Sampled, ByTag>>;

/// The loss by type, and with surrogate and factors chosen at run time.
template <class Level, class S, class F>
using ByType = gdpo::PolicyLoss<Level, S, gdpo::kl::None, gdpo::Aggregate, F>;
template <class Level>
using Chosen = gdpo::PolicyLoss<Level, AnySurrogate, gdpo::kl::None, gdpo::Aggregate, AnyFactors>;

template <class S, class Exec, class Loss>
Outcome call(const Exec& exec, const Loss& loss, const Data& data) {
  const loss_product::Arrays<S> arrays(data);
  const gdpo::TokenBatch<S> batch = arrays.batch();
  std::vector<S> gradient(data.logp.size(), S(-77));
  gdpo::LossWorkspace<S> workspace;
  Outcome o;
  o.result = loss(exec, batch, gdpo::count(batch),
                  gdpo::view(gradient.data(), data.rows, data.width), workspace);
  o.gradient.assign(gradient.begin(), gradient.end());
  return o;
}

Data tokens_of(std::uint64_t seed) {
  Random random(seed);
  Data d = loss_product::random_tokens(random, 4, 37, 0.5);
  for (std::size_t k = 0; k < d.logp.size(); ++k) d.tags.push_back(random.pick({0.0, 1.0, 0.5}));
  return d;
}

/// Calls f(surrogate, factors) for each pair.
template <class F>
void for_each_pair(const F& f) {
  const auto with = [&f](const auto& surrogate) {
    f(surrogate, Factors<>{}), f(surrogate, Factors<ByTag>{}), f(surrogate, Factors<OfTheRow>{});
    f(surrogate, Factors<Sampled>{{1.2}, {}}), f(surrogate, Factors<Sampled, ByTag>{});
  };
  with(Ratio{0.1, 0.3}), with(Reinforce{}), with(Distilled{0.7}), with(Plain{});
}

template <class Level>
void check_bits() {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Data data = tokens_of(seed);
    if (naive_loss::count(data).tokens == 0) continue;
    for_each_pair([&](const auto& surrogate, const auto& factors) {
      using S = std::decay_t<decltype(surrogate)>;
      using F = std::decay_t<decltype(factors)>;
      INFO("seed " << seed << " " << (gdpo::detail::type_name<ByType<Level, S, F>>()));
      const ByType<Level, S, F> by_type{{}, surrogate, {}, {}, factors};
      const Chosen<Level> chosen{{}, surrogate, {}, {}, factors};
      CHECK(loss_product::difference_of(call<double>(gdpo::seq, chosen, data),
                                        call<double>(gdpo::seq, by_type, data)) == "");
      CHECK(loss_product::difference_of(call<float>(gdpo::simd, chosen, data),
                                        call<float>(gdpo::simd, by_type, data)) == "");
    });
  }
}

const std::pair<const char*, std::vector<double> Data::*> optional_arrays[] = {
    {"batch.ref_logp", &Data::ref_logp},
    {"batch.rollout_logp", &Data::rollout_logp},
    {"batch.teacher_logp", &Data::teacher_logp},
    {"batch.tags", &Data::tags}};

}  // namespace

TEST_CASE("a choice at run time that reads arrays: the bits of the type", "[loss]") {
  check_bits<gdpo::level::Token<>>();
  check_bits<gdpo::level::SequenceToken<>>();
  check_bits<gdpo::level::Sequence<gdpo::map::Clamp>>();
}

TEST_CASE("a choice at run time needs the arrays of its policies, and no others", "[loss]") {
  using Level = gdpo::level::Token<>;
  const Data all = tokens_of(1);
  int refused = 0, taken = 0;
  for_each_pair([&](const auto& surrogate, const auto& factors) {
    using S = std::decay_t<decltype(surrogate)>;
    using F = std::decay_t<decltype(factors)>;
    const ByType<Level, S, F> by_type{{}, surrogate, {}, {}, factors};
    const Chosen<Level> chosen{{}, surrogate, {}, {}, factors};
    const Outcome with_all = call<double>(gdpo::seq, chosen, all);
    for (const auto& [name, array] : optional_arrays) {
      INFO((gdpo::detail::type_name<ByType<Level, S, F>>()) << " " << name);
      Data data = all;
      (data.*array).clear();
      const std::string of_type = message_of([&] { call<double>(gdpo::seq, by_type, data); }),
                        got = message_of([&] { call<double>(gdpo::seq, chosen, data); });
      CHECK(got == of_type);
      if (got != "no error") {
        CHECK(got.find(std::string("gdpo::PolicyLoss: ") + name + ": given no array; needed: ") ==
              0);
        ++refused;
        continue;
      }
      // An array that the choice does not read may hold anything.
      (data.*array).assign(data.logp.size(), math::nan());
      CHECK(loss_product::difference_of(call<double>(gdpo::seq, chosen, data), with_all) == "");
      ++taken;
    }
  });
  // Per surrogate: none, tags, ref and rollout, rollout, rollout and tags; Distilled also teacher.
  CHECK(refused == 4 * 6 + 5);
  CHECK(taken == 4 * 5 * 4 - refused);
}

}  // namespace any_surrogate_test
