// labels: lanes
// Every setting of every policy and every array of a batch reaches the numbers: changed alone, it
// changes loss, gradient or metrics.
#include "support/catch.hpp"
#include "support/loss_calls.hpp"

namespace settings_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;

constexpr double infinite = std::numeric_limits<double>::infinity();

/// Counts the settings of a policy: as many values as its braces take. A static_assert below names
/// the number, so that a new setting gets a check of its own.
struct Anything {
  template <class T>
  operator T() const;
};
template <class Policy, class Values, class = void>
constexpr bool takes = false;
template <class Policy, std::size_t... I>
constexpr bool takes<Policy, std::index_sequence<I...>,
                     std::void_t<decltype(Policy{(static_cast<void>(I), Anything{})...})>> = true;
template <class Policy, std::size_t N = 0>
constexpr std::size_t settings() {
  if constexpr (takes<Policy, std::make_index_sequence<N + 1>>) {
    return settings<Policy, N + 1>();
  } else {
    return N;
  }
}

/// A factor that reads the tags of tokens.
struct ByTag {
  static constexpr bool reads_tag = true;
  template <class V>
  V operator()(const gdpo::Token<V>& t) const {
    return t.tag;
  }
};

/// A surrogate that the oracle does not know, with a member that is not among its fields.
struct Unknown {
  double high = 1, left_out = 2;
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("high", s.high, gdpo::at_least(0), "some number");
  }
};

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const std::logic_error& e) {
    return e.what();
  }
  return "no error";
}

/// A batch in which log ratios, distances to the reference and advantages are large enough for
/// every clip and clamp to take effect somewhere.
Data wide_data() {
  Random random(31);
  Data d = loss_product::random_tokens(random, 6, 8, 0.6);
  d.old_logp.clear(), d.token_advantages.clear(), d.advantages.clear(), d.mask.clear(),
      d.segments.clear();
  for (const double x : d.logp) d.old_logp.push_back(x + 1.2 * random.uniform() - 0.6);
  for (int i = 0; i < 6; ++i) d.advantages.push_back(i % 2 ? 1.0 + i : -1.0 - i);
  d.mask.assign(48, 1);
  for (std::size_t k = 4; k < 8; ++k) d.mask[k] = 0;
  for (std::size_t k = 40; k < 48; ++k) d.mask[k] = 0;
  for (int k = 0; k < 48; ++k) d.segments.push_back(k / 4);
  d.weights.assign(48, 0.5), d.kl_weights.assign(48, 0.25), d.row_weights.assign(6, 1.5);
  return d;
}

template <class Loss>
Outcome run(const Loss& loss) {
  static const Data data = wide_data();
  const gdpo::Normalizer n{36, 6, 5, 17};
  return loss_product::call<double>(loss, data, &n);
}

/// Whether a change of a setting reaches both the gradient and the loss.
template <class Loss, class Change>
bool reaches(const Loss& loss, const Change& change) {
  Loss changed = loss;
  change(changed);
  const Outcome a = run(loss), b = run(changed);
  CHECK(std::isfinite(b.result.loss));
  return difference(a.gradient, b.gradient) != "" && !same_bits(a.result.loss, b.result.loss);
}

template <class Level, class Surrogate = gdpo::surrogate::Ratio, class Kl = gdpo::Kl<>,
          class Factor = gdpo::Factors<>>
using Loss = gdpo::PolicyLoss<Level, Surrogate, Kl, gdpo::Aggregate, Factor>;

template <class L>
void check_surrogate(const L& loss) {
  static_assert(settings<decltype(loss.surrogate)>() == 4);
  CHECK(reaches(loss, [](L& l) { l.surrogate.low = 0.02; }));
  CHECK(reaches(loss, [](L& l) { l.surrogate.high = 0.02; }));
  CHECK(reaches(loss, [](L& l) { l.surrogate.delta = 1.05; }));
  CHECK(reaches(loss, [](L& l) { l.surrogate.dual = 1.05; }));
}
template <class L>
void check_kl(const L& loss) {
  static_assert(settings<decltype(loss.kl)>() == 7 && settings<gdpo::Bounds>() == 2);
  CHECK(reaches(loss, [](L& l) { l.kl.beta = 0.3; }));
  CHECK(reaches(loss, [](L& l) { l.kl.against = gdpo::Against::Rollout; }));
  CHECK(reaches(loss, [](L& l) { l.kl.against = gdpo::Against::Teacher; }));
  CHECK(reaches(loss, [](L& l) { l.kl.against = gdpo::Against::Old; }));
  CHECK(reaches(loss, [](L& l) { l.kl.against = gdpo::Against::Data; }));
  // Bounds are checked in the value of the KL term. They also reach the gradients of ScoreFunction
  // and Direct, but not that of StraightThroughK2, by design.
  const auto value = [&](const auto& change) {
    L changed = loss;
    change(changed);
    const Outcome a = run(loss), b = run(changed);
    CHECK(!same_bits(a.result.kl_loss, b.result.kl_loss));
    CHECK(b.result.metrics.kl_bounded.sum > 0);
  };
  value([](L& l) { l.kl.input.lo = -0.1; });
  value([](L& l) { l.kl.input.hi = 0.1; });
  value([](L& l) { l.kl.output.hi = 0.02; });
  value([](L& l) { l.kl.output.lo = 0.01; });
}
/// The settings of a rule reach the gradient, those of a factor and of an aggregate the value too.
template <class Level>
void check_parts_of_kl() {
  using namespace gdpo::kl;
  using gdpo::surrogate::Ratio;
  const auto gradient_by = [](double max_weight) {
    Loss<Level, Ratio, gdpo::Kl<K3, ImportanceWeightedK2>> loss;
    loss.kl.gradient.max_weight = max_weight;
    return run(loss).gradient;
  };
  CHECK(difference(gradient_by(10), gradient_by(1.05)) != "");
  using Bounded = Loss<Level, Ratio, gdpo::Kl<K3, ClippedImportanceWeighted>>;
  CHECK(reaches(Bounded{}, [](Bounded& l) { l.kl.gradient.max_weight = 1.05; }));
  using Gate = gdpo::Factors<gdpo::factor::TeacherGate>;
  using L = Loss<Level, Ratio, gdpo::Kl<K3, Direct, Gate, gdpo::Aggregate>>;
  CHECK(reaches(L{}, [](L& l) { l.kl.factor.first.gate_beta = 1; }));
  CHECK(reaches(L{}, [](L& l) { l.kl.aggregate.scale = 3; }));
  CHECK(reaches(L{}, [](L& l) { l.kl.aggregate = gdpo::aggregate::token_mean(); }));
  using Any = Loss<Level, Ratio, gdpo::AnyKl>;
  const auto with_gate = [](Any& l) { l.kl.factor = gdpo::KlFactor::TeacherGate; };
  Any any;
  CHECK(reaches(any, with_gate));
  with_gate(any);
  CHECK(reaches(any, [](Any& l) { l.kl.gate_beta = 1; }));
  any.kl.gradient = gdpo::KlGradient::ImportanceWeightedK2;
  Any bounded = any;
  bounded.kl.max_weight = 1.05;
  CHECK(difference(run(any).gradient, run(bounded).gradient) != "");
  any.kl.gradient = bounded.kl.gradient = gdpo::KlGradient::ClippedImportanceWeighted;
  CHECK(difference(run(any).gradient, run(bounded).gradient) != "");
}
template <class L>
void check_over(const L& loss) {
  for (const gdpo::Over over :
       {gdpo::Over::Tokens, gdpo::Over::Rows, gdpo::Over::NonEmptyRows, gdpo::Over::Given}) {
    if (over != loss.aggregate.over)
      CHECK(reaches(loss, [over](L& l) { l.aggregate.over = over; }));
  }
  CHECK(reaches(loss, [](L& l) { l.aggregate.count_eps = 0.5; }));
  CHECK(reaches(loss, [](L& l) { l.aggregate.scale = 3; }));
}

}  // namespace

TEST_CASE("every setting of a surrogate reaches loss and gradient, at every level",
          "[loss][settings]") {
  check_surrogate(Loss<gdpo::level::Token<>>{});
  check_surrogate(Loss<gdpo::level::Token<gdpo::map::Clamp>>{});
  check_surrogate(Loss<gdpo::level::Sequence<>>{});
  check_surrogate(Loss<gdpo::level::SequenceToken<>>{});
}

TEST_CASE("every setting of a log ratio, of a likelihood and of their factors reaches the loss",
          "[loss][settings]") {
  using Token = gdpo::level::Token<>;
  using namespace gdpo::surrogate;
  namespace factor = gdpo::factor;
  using Log = Loss<Token, LogRatio>;
  static_assert(settings<LogRatio>() == 1 && settings<Likelihood>() == 1);
  CHECK(reaches(Log{}, [](Log& l) { l.surrogate.epsilon = 0.05; }));
  using Nll = Loss<Token, Likelihood, gdpo::Kl<>, gdpo::Factors<factor::Probability>>;
  static_assert(settings<factor::Probability>() == 1);
  CHECK(reaches(Nll{}, [](Nll& l) { l.surrogate.floor = 1; }));
  CHECK(reaches(Nll{}, [](Nll& l) { l.factor.first.decay = 0.5; }));
  using Gated = Loss<Token, Reinforce, gdpo::Kl<>, gdpo::Factors<factor::SoftGate>>;
  static_assert(settings<factor::SoftGate>() == 2);
  CHECK(reaches(Gated{}, [](Gated& l) { l.factor.first.tau_pos = 2; }));
  CHECK(reaches(Gated{}, [](Gated& l) { l.factor.first.tau_neg = 2; }));
  using Rec = Loss<Token, Reinforce, gdpo::Kl<>, gdpo::Factors<factor::Ring>>;
  static_assert(settings<factor::Ring>() == 7);
  CHECK(reaches(Rec{}, [](Rec& l) { l.factor.first.low = 0.02; }));
  CHECK(reaches(Rec{}, [](Rec& l) { l.factor.first.high = 0.02; }));
  Rec bounded;
  bounded.factor.first.low = bounded.factor.first.high = 0.02;
  CHECK(reaches(bounded, [](Rec& l) { l.factor.first.low_prime = 0.03; }));
  CHECK(reaches(bounded, [](Rec& l) { l.factor.first.high_prime = 0.03; }));
  CHECK(reaches(Rec{}, [](Rec& l) { l.factor.first.min_ratio = 0.5; }));
  CHECK(reaches(Rec{}, [](Rec& l) { l.factor.first.max_ratio = 1.05; }));
  CHECK(reaches(Rec{}, [](Rec& l) { l.factor.first.temp = 2; }));
}

TEST_CASE("every setting of a level reaches loss and gradient", "[loss][settings]") {
  const auto map = [](const auto& loss) {
    using L = std::decay_t<decltype(loss)>;
    static_assert(settings<decltype(loss.level.map)>() == 2);
    CHECK(reaches(loss, [](L& l) { l.level.map.lo = -0.05; }));
    CHECK(reaches(loss, [](L& l) { l.level.map.hi = 0.05; }));
  };
  const auto bounds = [](const auto& loss) {
    using L = std::decay_t<decltype(loss)>;
    static_assert(settings<decltype(loss.level)>() == 3);  // map, statistic, bounds
    CHECK(reaches(loss, [](L& l) { l.level.bounds.lo = -0.02; }));
    CHECK(reaches(loss, [](L& l) { l.level.bounds.hi = 0.02; }));
  };
  const auto count_eps = [](const auto& loss) {
    using L = std::decay_t<decltype(loss)>;
    static_assert(settings<decltype(loss.level.statistic)>() == 1);
    CHECK(reaches(loss, [](L& l) { l.level.statistic.count_eps = 0.5; }));
  };
  using gdpo::map::Clamp;
  map(Loss<gdpo::level::Token<Clamp>>{});
  const Loss<gdpo::level::Sequence<Clamp>> sequence;
  const Loss<gdpo::level::SequenceToken<Clamp>> sequence_token;
  const Loss<gdpo::level::Sequence<Clamp, gdpo::statistic::Sum>> sum;
  map(sequence), map(sequence_token), map(sum);
  bounds(sequence), bounds(sequence_token), bounds(sum);
  count_eps(sequence), count_eps(sequence_token);
}

TEST_CASE("every setting of a KL term reaches the loss, for every estimator and rule",
          "[loss][settings]") {
  using namespace gdpo::kl;
  const auto rules = [](auto estimator) {
    using E = decltype(estimator);
    check_kl(Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<E, Direct>>{});
    check_kl(Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<E, StraightThroughK2>>{});
    check_kl(Loss<gdpo::level::Sequence<>, gdpo::surrogate::Ratio, gdpo::Kl<E, ScoreFunction>>{});
    check_kl(Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<E, ImportanceWeighted>>{});
    check_kl(
        Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<E, ImportanceWeightedK2>>{});
    check_kl(Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                  gdpo::Kl<E, ClippedImportanceWeighted>>{});
  };
  rules(K2{}), rules(K3{}), rules(Abs{});
  check_parts_of_kl<gdpo::level::Token<>>();
  check_parts_of_kl<gdpo::level::Sequence<>>();
  // With rule Direct, K1's gradient is constant wherever the reference is; these rules depend on
  // it.
  check_kl(Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<K1, ScoreFunction>>{});
  check_kl(Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<K1, ImportanceWeighted>>{});
}

TEST_CASE("a setting that the oracle does not know is an error", "[loss][settings]") {
  using naive_loss::Ratio;
  CHECK(error_of([] {
          loss_product::known_as<naive_loss::Surrogate, Unknown>();
        }).find("naive_loss.hpp) does not know settings_test::") != std::string::npos);
  Unknown unknown;
  CHECK(error_of([&unknown] {
          loss_product::set_policy(unknown, naive_loss::Surrogate{});
        }).find("the settings are those of Ratio, the loss has settings_test::") == 0);
  gdpo::surrogate::Ratio ratio;
  const auto all_but_high = [](const auto& f) {
    const Ratio of;
    f("low", of.low), f("delta", of.delta), f("dual", of.dual);
  };
  CHECK(error_of([&] {
          loss_product::for_each_setting(ratio, all_but_high, loss_product::to_library);
        }) ==
        "the oracle (reference/naive_loss.hpp) does not know the setting 'high' of "
        "surrogate::Ratio");
  CHECK(error_of([&] {
          loss_product::for_each_setting(
              unknown,
              [](const auto& f) {
                const double high = 1;
                f("high", high);
              },
              loss_product::to_library);
        }).find("Unknown has a member that is not among its fields") != std::string::npos);
}

TEST_CASE("each of several KL terms has its own settings", "[loss][settings]") {
  using L = Loss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                 gdpo::Kls<gdpo::Kl<>, gdpo::Kl<gdpo::kl::K2, gdpo::kl::Direct>>>;
  const L loss;
  CHECK(reaches(loss, [](L& l) { l.kl.first.beta = 0.3; }));
  CHECK(reaches(loss, [](L& l) { l.kl.rest.first.beta = 0.3; }));
  CHECK(reaches(loss, [](L& l) { l.kl.rest.first.against = gdpo::Against::Teacher; }));
  CHECK(reaches(loss, [](L& l) { l.kl.rest.first.input = {-0.1, 0.1}; }));
}

TEST_CASE("every setting of an aggregate reaches loss and gradient", "[loss][settings]") {
  namespace aggregate = gdpo::aggregate;
  using L = Loss<gdpo::level::Token<>>;
  static_assert(settings<gdpo::Aggregate>() == 7);  // mode, three below, and the last three
  const auto with = [](const gdpo::Aggregate& a) { return L{{}, {}, {}, a}; };
  const L means = with(aggregate::seq_mean_token_mean()),
          norm = with(aggregate::seq_mean_token_sum_norm(100));
  check_over(with(aggregate::token_mean()));
  check_over(means);
  check_over(with(aggregate::seq_mean_token_sum()));
  check_over(norm);
  CHECK(reaches(norm, [](L& l) { l.aggregate.constant = 50; }));
  CHECK(reaches(norm, [](L& l) { l.aggregate.constant = 0, l.aggregate.padded_width = true; }));
  CHECK(reaches(means, [](L& l) { l.aggregate.row_count_eps = 0.5; }));
  CHECK(reaches(means, [](L& l) { l.aggregate.mode = gdpo::Aggregate::Mode::TokenMean; }));
  CHECK(reaches(with(aggregate::token_sum()), [](L& l) { l.aggregate.scale = 3; }));
}

TEST_CASE("every array of a batch reaches the numbers", "[loss][settings]") {
  using Kls = gdpo::Kls<gdpo::Kl<>, gdpo::Kl<gdpo::kl::K2, gdpo::kl::Direct>,
                        gdpo::Kl<gdpo::kl::K3, gdpo::kl::ScoreFunction>>;
  Loss<gdpo::level::Sequence<>, gdpo::surrogate::Ratio, Kls, gdpo::Factors<ByTag>> loss;
  loss.surrogate = {infinite, infinite};
  loss.kl.rest.first.against = gdpo::Against::Rollout;
  loss.kl.rest.rest.first.against = gdpo::Against::Teacher;
  loss.entropy.coef = 0.3;
  Data data = wide_data();
  data.tags.assign(48, 1.5), data.level_log_weights.assign(48, 0.01);
  data.entropy_weights.assign(48, 0.75);
  const gdpo::Normalizer n{36, 6, 5, 17};
  const Outcome before = loss_product::call<double>(loss, data, &n);
  const auto changes = [&](const auto& change) {
    Data d = data;
    change(d);
    const Outcome after = loss_product::call<double>(loss, d, &n);
    return difference(before.gradient, after.gradient) != "" &&
           !same_bits(before.result.loss, after.result.loss);
  };
  for (std::size_t k = 0; k < loss_product::arrays_of_numbers; ++k) {
    INFO("array " << k << " of GDPO_TOKEN_ARRAYS");
    const auto array = loss_product::token_arrays[k];
    Data given = data;
    if (array == &Data::token_advantages)
      given.token_advantages.assign(48, 0.25), given.advantages.clear();
    Data other = given;
    (other.*array)[9] += 0.125;
    const Outcome a = loss_product::call<double>(loss, given, &n),
                  b = loss_product::call<double>(loss, other, &n);
    CHECK(difference(loss_product::numbers(a.result), loss_product::numbers(b.result)) != "");
    // A bonus has a gradient of its own, in which the entropies are not.
    const bool of_bonus = array == &Data::entropies || array == &Data::entropy_weights;
    CHECK((difference(a.gradient, b.gradient) != "") == !of_bonus);
    CHECK((difference(a.entropy_gradient, b.entropy_gradient) != "") ==
          (array == &Data::entropy_weights));
  }
  for (const auto array :
       {&Data::old_logp, &Data::weights, &Data::kl_weights, &Data::level_log_weights}) {
    CHECK(changes([array](Data& d) { (d.*array).clear(); }));
  }
  CHECK(changes([](Data& d) { d.advantages[1] += 0.5; }));
  CHECK(changes([](Data& d) { d.row_weights[1] += 0.5; }));
  CHECK(changes([](Data& d) { d.mask[9] = 0; }));
  CHECK(changes([](Data& d) { d.segments[9] = 77; }));
  CHECK(changes([](Data& d) {
    d.token_advantages.assign(48, 0.25);
    d.advantages.clear();
  }));
  Data d = data;
  d.entropies[9] += 1;
  CHECK(loss_product::call<double>(loss, d, &n).result.metrics.entropy.sum >
        before.result.metrics.entropy.sum);
  d.truncated = {1, 1, 1, 1, 1, 1};
  CHECK(loss_product::call<double>(loss, d, &n).result.metrics.clipped_completions.row_mean() == 1);
}

TEST_CASE("another level, KL or aggregate keeps every other setting", "[loss][settings]") {
  auto dapo = gdpo::dapo_loss;
  dapo.surrogate.high = 0.3;
  dapo.kl.beta = 0.5;
  const auto gspo = gdpo::with_level<gdpo::level::Sequence<>>(dapo);
  CHECK(gspo.surrogate.high == 0.3);
  CHECK(gspo.kl.beta == 0.5);
  CHECK(gspo.aggregate.over == gdpo::Over::Tokens);
  const auto k1 = gdpo::with_kl(dapo, gdpo::Kl<gdpo::kl::K1>{0.25});
  CHECK(k1.kl.beta == 0.25);
  CHECK(k1.surrogate.high == 0.3);
  const auto none = gdpo::with_kl<gdpo::kl::None>(dapo);
  CHECK(run(none).result.kl_loss == 0);
  auto fixed = dapo;
  fixed.aggregate = gdpo::aggregate::seq_mean_token_sum_norm(100);
  CHECK(fixed.aggregate.constant == 100);
  CHECK(fixed.kl.beta == 0.5);
  CHECK(!same_bits(run(fixed).result.loss, run(dapo).result.loss));
}

}  // namespace settings_test
