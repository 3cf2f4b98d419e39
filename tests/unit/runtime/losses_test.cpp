// labels: sanitizers
// Losses by name: every name sets what its trainer sets, levels and aggregates by their strings,
// and the defaults of the papers.
#include <gdpo/runtime.hpp>
#include <set>
#include <tuple>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/loss_calls.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace losses_test {

namespace {

using gdpo::Bounds, gdpo::Over;
namespace runtime = gdpo::runtime;
constexpr double inf = std::numeric_limits<double>::infinity();

using Sum = gdpo::Aggregate::Mode;

using gdpo::Aggregate;
/// Whether two aggregates have the same settings.
bool equal(const Aggregate& a, const Aggregate& b) {
  return a.mode == b.mode && a.over == b.over && a.count_eps == b.count_eps && a.scale == b.scale &&
         a.row_count_eps == b.row_count_eps && a.constant == b.constant &&
         a.padded_width == b.padded_width;
}
bool equal(const Bounds& a, const Bounds& b) { return a.lo == b.lo && a.hi == b.hi; }

using loss_product::describe, loss_product::settings_of;
using naive_loss::Level, naive_loss::Settings;
Settings settings_of(const runtime::Loss& loss) {
  return std::visit([](const auto& l) { return loss_product::settings_of(l); }, loss);
}
void check(const Settings& got, const Settings& expected) {
  CHECK(describe(got) == describe(expected));
}
/// The settings of the trainers and papers, as the oracle has them.
Settings named(const std::string& name) {
  for (const naive_loss::Named& known : naive_loss::named())
    if (name == known.name) return known.settings;
  throw std::logic_error("the oracle does not have " + name);
}

/// Five rows of up to `width` tokens, one of them empty, with the arrays that the named losses
/// read.
struct Batch {
  static constexpr int rows = 5, width = 7;
  std::vector<double> logp, old, ref, rollout, teacher, advantages;
  std::vector<int> mask, offsets;
  gdpo::TokenBatch<double> batch;
  std::vector<double> gradient = std::vector<double>(rows * width);

  Batch(const Batch&) = delete;
  explicit Batch(std::uint64_t seed) {
    Random random(seed);
    for (int i = 0; i < rows; ++i) {
      advantages.push_back(2 * random.uniform() - 1);
      offsets.push_back(i * width);
      for (int t = 0; t < width; ++t) {
        logp.push_back(-2 * random.uniform());
        old.push_back(logp.back() + 0.8 * (random.uniform() - 0.5));
        ref.push_back(logp.back() + 0.8 * (random.uniform() - 0.5));
        rollout.push_back(logp.back() + 0.8 * (random.uniform() - 0.5));
        teacher.push_back(logp.back() + 0.8 * (random.uniform() - 0.5));
        mask.push_back(i != 2 && random.chance(0.8));
      }
    }
    offsets.push_back(rows * width);
    batch.logp = gdpo::view(logp.data(), rows, width),
    batch.old_logp = gdpo::view(old.data(), rows, width);
    batch.ref_logp = gdpo::view(ref.data(), rows, width);
    batch.rollout_logp = gdpo::view(rollout.data(), rows, width);
    batch.teacher_logp = gdpo::view(teacher.data(), rows, width);
    batch.mask = gdpo::view(mask.data(), rows, width);
    batch.advantages = gdpo::view(advantages);
  }
  gdpo::Normalizer count() const {
    gdpo::Normalizer n = gdpo::count(batch);
    n.given = 24;
    return n;
  }
  /// The loss, then its gradient.
  template <class Loss>
  std::vector<double> operator()(const Loss& loss) {
    std::vector<double> all;
    gdpo::LossWorkspace<double> workspace;
    all.push_back(
        loss(gdpo::seq, batch, count(), gdpo::view(gradient.data(), rows, width), workspace).loss);
    all.insert(all.end(), gradient.begin(), gradient.end());
    return all;
  }
  std::vector<double> operator()(const runtime::Loss& loss) {
    return std::visit([this](const auto& l) { return (*this)(l); }, loss);
  }
  std::string error(const runtime::Loss& loss) {
    return message_of([&] { (*this)(loss); });
  }
};

runtime::Loss with_constant(runtime::Loss loss, double constant) {
  std::visit(
      [&](auto& l) {
        if (l.aggregate.mode == Sum::SeqMeanTokenSumNorm) l.aggregate.constant = constant;
      },
      loss);
  return loss;
}

}  // namespace

TEST_CASE("every loss by name sets what its trainer does", "[runtime][loss]") {
  std::set<std::string> checked;
  for (const naive_loss::Named& line : naive_loss::named()) {
    INFO(line.name);
    check(settings_of(runtime::loss(line.name)), line.settings);
    checked.insert(line.name);
  }
  // A preset that is not there must be a trainer's, with a commit in its version: the test
  // conformance.presets compares those with their records.
  gdpo::presets::for_each_loss([&](const auto& preset) {
    INFO(preset.name);
    CHECK((checked.count(preset.name) != 0 ||
           std::string(preset.version).find('@') != std::string::npos));
  });
}

TEST_CASE("every loss by name gives the numbers of its preset", "[runtime][loss]") {
  Batch batch(1);
  int compared = 0;
  const auto same = [&](const char* name, auto loss) {
    INFO(name);
    if (loss.aggregate.mode == Sum::SeqMeanTokenSumNorm) loss.aggregate.constant = 16;
    CHECK(difference(batch(with_constant(runtime::loss(name), 16)), batch(loss)) == "");
    ++compared;
  };
  gdpo::presets::for_each_loss([&](const auto& preset) { same(preset.name, preset.value); });
  CHECK(compared == static_cast<int>(runtime::loss_names().size()));
}

TEST_CASE("every loss by name gives the numbers of the oracle", "[runtime][loss]") {
  int compared = 0;
  for (const naive_loss::Named& line : naive_loss::named()) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Random random(seed);
      loss_product::Data data = loss_product::random_tokens(random, 4, 6, 0.5);
      naive_loss::Counts counts = naive_loss::count(data);
      if (counts.tokens == 0) continue;
      counts.given = 24;
      // Arrays that are optional but for a KL term against them.
      for (auto* other : {&data.old_logp, &data.rollout_logp})
        if (other->empty()) *other = data.ref_logp.empty() ? data.logp : data.ref_logp;
      Settings s = line.settings;
      if (s.aggregate == naive_loss::Aggregate::SeqMeanTokenSumNorm) s.constant = 16;
      const gdpo::Normalizer normalizer = loss_product::normalizer_of(counts);
      INFO(line.name << " seed " << seed);
      std::visit(
          [&](auto loss) {
            loss.aggregate.constant = s.constant;
            if (s.kl[0].beta == 0) s.kl.clear();
            CHECK(loss_product::mismatch(s, data, naive_loss::loss(s, data, counts),
                                         loss_product::call<double>(loss, data, &normalizer),
                                         tolerance::unit) == "");
          },
          runtime::loss(line.name));
      ++compared;
    }
  }
  CHECK(compared > 2 * static_cast<int>(naive_loss::named().size()));
}

TEST_CASE("a level by its name; the loss's own keeps its map and bounds", "[runtime][loss]") {
  const auto with = [](Settings s, Level level) {
    s.level = level, s.map = {}, s.map_bounds = Settings{}.map_bounds, s.level_bounds = {};
    s.statistic = {}, s.statistic_count_eps = 0;
    return s;
  };
  for (const naive_loss::Named& line : naive_loss::named()) {
    for (const auto& [name, level] : {std::pair{"token", Level::Token},
                                      {"sequence", Level::Sequence},
                                      {"sequence_token", Level::SequenceToken}}) {
      INFO(line.name << " " << name);
      check(settings_of(runtime::loss(line.name, name)),
            line.settings.level == level ? line.settings : with(line.settings, level));
    }
    check(settings_of(runtime::loss(line.name, "")), line.settings);
  }
  Batch batch(2);
  CHECK(difference(batch(runtime::loss("trl::grpo", "sequence")),
                   batch(gdpo::with_level<gdpo::level::Sequence<>>(gdpo::trl::grpo_loss))) == "");
  CHECK(difference(batch(runtime::loss("ms_swift::bnpo", "sequence_token")),
                   batch(gdpo::with_level<gdpo::level::SequenceToken<>>(
                       gdpo::ms_swift::bnpo_loss))) == "");
  CHECK(difference(batch(runtime::loss("gspo", "token")),
                   batch(gdpo::with_level<gdpo::level::Token<>>(gdpo::gspo_loss))) == "");
}

TEST_CASE("aggregates by verl's loss_agg_mode: the numbers of the shipped ones",
          "[runtime][loss]") {
  Batch batch(3);
  runtime::Loss by_name = runtime::loss("grpo");
  const auto same = [&](const char* mode, const Aggregate& aggregate) {
    INFO(mode);
    std::visit([&](auto& l) { l.aggregate = runtime::aggregate(mode); }, by_name);
    CHECK(equal(runtime::aggregate(mode), aggregate));
    auto typed = gdpo::grpo_loss;
    typed.aggregate = aggregate;
    CHECK(difference(batch(by_name), batch(typed)) == "");
  };
  same("token-mean", gdpo::aggregate::token_mean());
  same("token-sum", gdpo::aggregate::token_sum());
  same("seq-mean-token-sum", gdpo::aggregate::seq_mean_token_sum(Over::NonEmptyRows));
  same("seq-mean-token-mean", {Sum::SeqMeanTokenMean, Over::NonEmptyRows, 0, 1, 1e-8});
  auto norm_over_width = gdpo::aggregate::seq_mean_token_sum_norm(0, Over::NonEmptyRows);
  norm_over_width.padded_width = true;
  same("seq-mean-token-sum-norm", norm_over_width);

  // Values by hand: with ratio 1 the policy loss is a weighted sum of -A.
  const std::vector<double> logp(6, -1.0), advantages{1, 3, -7};
  const std::vector<int> mask{1, 1, 1, 0, 0, 0};
  gdpo::TokenBatch<double> small;
  small.logp = gdpo::view(logp.data(), 3, 2), small.mask = gdpo::view(mask.data(), 3, 2);
  small.advantages = gdpo::view(advantages);
  const auto value = [&](const char* mode) {
    runtime::Loss loss = runtime::loss("trl::grpo");
    return std::visit(
        [&](auto& l) {
          l.aggregate = runtime::aggregate(mode);
          return l(small, gdpo::count(small)).loss;
        },
        loss);
  };
  CHECK(value("token-mean") == Approx(-5.0 / 3).epsilon(tolerance::formula));
  CHECK(value("token-sum") == Approx(-5).epsilon(tolerance::formula));
  CHECK(value("seq-mean-token-sum") == Approx(-2.5).epsilon(tolerance::formula));
  CHECK(value("seq-mean-token-mean") ==
        Approx(-(2 / (2 + 1e-8) + 3 / (1 + 1e-8)) / 2).epsilon(tolerance::formula));
  CHECK(value("seq-mean-token-sum-norm") == Approx(-1.25).epsilon(tolerance::formula));
}

TEST_CASE("KL terms by verl's kl_loss_type: the numbers of the compiled ones", "[runtime][loss]") {
  Batch batch(6);
  int compared = 0;
  const auto same = [&](const std::string& name, auto kl) {
    INFO(name);
    gdpo::AnyKl base{0.7, gdpo::Against::Old, {-0.3, 0.3}, {-0.05, 0.04}};
    kl.beta = base.beta, kl.against = base.against, kl.input = base.input, kl.output = base.output;
    runtime::Loss by_name = runtime::loss("grpo");
    std::visit([&](auto& l) { l.kl = runtime::kl(name, base); }, by_name);
    CHECK(difference(batch(by_name), batch(gdpo::with_kl(gdpo::grpo_loss, kl))) == "");
    ++compared;
  };
  using gdpo::Kl, gdpo::kl::StraightThroughK2;
  for (const char* k1 : {"kl", "k1"}) same(k1, Kl<gdpo::kl::K1>{});
  for (const char* k2 : {"mse", "k2"}) same(k2, Kl<gdpo::kl::K2>{});
  for (const char* k3 : {"low_var_kl", "k3"}) same(k3, Kl<gdpo::kl::K3>{});
  same("abs", Kl<gdpo::kl::Abs>{});
  same("k1+", Kl<gdpo::kl::K1, StraightThroughK2>{});
  same("low_var_kl+", Kl<gdpo::kl::K3, StraightThroughK2>{});
  same("abs+", Kl<gdpo::kl::Abs, StraightThroughK2>{});
  same("k1*", Kl<gdpo::kl::K1, gdpo::kl::ImportanceWeighted>{});
  same("low_var_kl*", Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>{});
  CHECK(runtime::kl("k3").beta == 0.04);
  CHECK(message_of([] { runtime::kl("k4"); }) ==
        "gdpo::runtime::kl: kl_loss_type: given 'k4'; needed: one of kl, k1, abs, mse, k2, "
        "low_var_kl, k3");
  CHECK(message_of([] { runtime::kl(""); }) != "no error");
  for (const char* none : {"+", "*", "k3+*", "k3*+"})
    CHECK(message_of([none] { runtime::kl(none); }) != "no error");

  // AnyKl with a pair of enum values gives the bits of Kl with the pair of types.
  const auto pair = [&](gdpo::KlEstimator estimator, gdpo::KlGradient gradient, auto kl) {
    INFO(static_cast<int>(estimator) << " " << static_cast<int>(gradient));
    kl.beta = 0.7;
    gdpo::AnyKl any;
    any.beta = 0.7, any.estimator = estimator, any.gradient = gradient;
    CHECK(difference(batch(gdpo::with_kl(gdpo::grpo_loss, any)),
                     batch(gdpo::with_kl(gdpo::grpo_loss, kl))) == "");
    const auto at = [](auto k) {
      auto loss = gdpo::with_kl(gdpo::gspo_loss, k);
      loss.surrogate = {0.2, 0.2};
      return loss;
    };
    CHECK(difference(batch(at(any)), batch(at(kl))) == "");
  };
  const auto gradients = [&](gdpo::KlEstimator e, auto estimator) {
    using E = decltype(estimator);
    pair(e, gdpo::KlGradient::Direct, Kl<E, gdpo::kl::Direct>{});
    pair(e, gdpo::KlGradient::StraightThroughK2, Kl<E, StraightThroughK2>{});
    pair(e, gdpo::KlGradient::ScoreFunction, Kl<E, gdpo::kl::ScoreFunction>{});
    pair(e, gdpo::KlGradient::ImportanceWeighted, Kl<E, gdpo::kl::ImportanceWeighted>{});
    pair(e, gdpo::KlGradient::ImportanceWeightedK2, Kl<E, gdpo::kl::ImportanceWeightedK2>{});
    pair(e, gdpo::KlGradient::ClippedImportanceWeighted,
         Kl<E, gdpo::kl::ClippedImportanceWeighted>{});
  };
  gradients(gdpo::KlEstimator::K1, gdpo::kl::K1{});
  gradients(gdpo::KlEstimator::Abs, gdpo::kl::Abs{});
  gradients(gdpo::KlEstimator::K2, gdpo::kl::K2{});
  gradients(gdpo::KlEstimator::K3, gdpo::kl::K3{});
  gradients(gdpo::KlEstimator::ForwardK1, gdpo::kl::ForwardK1{});
  CHECK(compared == 12);
}

TEST_CASE("the weight of a row by each formula", "[runtime][loss]") {
  gdpo::Normalizer n;
  n.tokens = 7, n.rows = 5, n.non_empty_rows = 3, n.given = 11;
  const std::pair<Over, double> counts[] = {{Over::Tokens, 7.0 + 1e-8},
                                            {Over::Rows, 5.0 + 1e-8},
                                            {Over::NonEmptyRows, 3.0 + 1e-8},
                                            {Over::Given, 11.0 + 1e-8}};
  for (const auto& [over, count] : counts) {
    for (const gdpo::index_t tokens : {1, 6}) {
      const gdpo::AggregateArgs args{{tokens, 9}, n};
      const double share = 4 / count;
      const auto weight = [&, counted = over](Sum mode, double constant, bool padded_width) {
        return Aggregate{mode, counted, 1e-8, 4, 0.5, constant, padded_width}(args);
      };
      CHECK(same_bits(weight(Sum::TokenMean, 0, false), share));
      CHECK(same_bits(weight(Sum::SeqMeanTokenMean, 0, false),
                      share / (static_cast<double>(tokens) + 0.5)));
      CHECK(same_bits(weight(Sum::SeqMeanTokenSum, 0, false), share));
      CHECK(same_bits(weight(Sum::SeqMeanTokenSumNorm, 64, true), share / 64));
      CHECK(same_bits(weight(Sum::SeqMeanTokenSumNorm, 0, true), share / 9));
      CHECK(weight(Sum::TokenSum, 0, false) == 4);
    }
  }
  // Quotients whose count is 0.
  const gdpo::AggregateArgs nothing{{0, 0}, {}}, no_tokens{{0, 0}, n};
  for (const Sum mode : {Sum::TokenMean, Sum::SeqMeanTokenMean, Sum::SeqMeanTokenSum})
    CHECK(Aggregate{mode}(nothing) == 0);
  CHECK(gdpo::aggregate::seq_mean_token_mean()(no_tokens) == 0);
  CHECK(Aggregate{Sum::SeqMeanTokenSumNorm, Over::Rows, 0, 1, 0, 0, true}(no_tokens) == 0);
}

TEST_CASE("what an aggregate checks, it checks behind a name too", "[runtime][loss][errors]") {
  Batch batch(4);
  CHECK(batch.error(runtime::loss("dr_grpo")) ==
        "gdpo::PolicyLoss: aggregate.constant: given 0; needed: a length in tokens, more than 0, "
        "the same for the whole "
        "training");
  CHECK(batch.error(with_constant(runtime::loss("dr_grpo"), 16)) == "no error");

  runtime::Loss loss = runtime::loss("grpo");
  const auto set = [&](const gdpo::Aggregate& a) {
    std::visit([&](auto& l) { l.aggregate = a; }, loss);
  };
  const auto error = [&](const gdpo::Normalizer& n) {
    return message_of([&] { std::visit([&](const auto& l) { l(batch.batch, n); }, loss); });
  };
  const auto nothing = [](const std::string& count) {
    return "gdpo::PolicyLoss: normalizer." + count +
           ": given 0; needed: more than 0 for a batch with tokens: the loss or a term of it "
           "divides by it";
  };
  gdpo::Normalizer n = batch.count();
  n.tokens = 0;
  set(runtime::aggregate("token-mean"));
  CHECK(error(n) == nothing("tokens"));
  set(runtime::aggregate("token-sum"));
  CHECK(error(n) == "no error");
  CHECK(error({}) == "no error");
  for (const char* mode :
       {"seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"}) {
    set(runtime::aggregate(mode));
    CHECK(error(n) == "no error");
    gdpo::Normalizer without = batch.count();
    without.non_empty_rows = 0;
    CHECK(error(without) == nothing("non_empty_rows"));
  }
  set(gdpo::aggregate::token_mean(Over::Given));
  // `given` stays 0 until the caller sets it.
  CHECK_THAT(error(gdpo::count(batch.batch)),
             Catch::Matchers::StartsWith(
                 "gdpo::PolicyLoss: normalizer.given (aggregate.over is Over::Given): given 0"));
  CHECK(error(batch.count()) == "no error");

  // Packed tokens have no padded width.
  batch.batch.logp = gdpo::view(batch.logp), batch.batch.old_logp = gdpo::view(batch.old);
  batch.batch.ref_logp = gdpo::view(batch.ref), batch.batch.mask = gdpo::view(batch.mask);
  batch.batch.offsets = gdpo::view(batch.offsets), batch.batch.rollout_logp = {},
  batch.batch.teacher_logp = {};
  set(runtime::aggregate("seq-mean-token-sum-norm"));
  CHECK(error(batch.count()) ==
        "gdpo::PolicyLoss: aggregate.padded_width: given true, with a packed batch; needed: a "
        "constant: packed tokens "
        "have "
        "no padded width");
  Aggregate scaled = gdpo::verl::seq_mean_token_sum_norm;
  // As verl's loss_scale_factor; the width is not read then.
  scaled.constant = 64;
  set(scaled);
  CHECK(error(batch.count()) == "no error");
  set(runtime::aggregate("seq-mean-token-sum"));
  CHECK(error(batch.count()) == "no error");

  set(gdpo::aggregate::token_sum(inf));
  CHECK(error(batch.count()) ==
        "gdpo::PolicyLoss: aggregate.scale: given inf; needed: a finite number");
}

TEST_CASE("unknown names are refused, and the known ones said", "[runtime][loss][errors]") {
  std::string names;
  for (const std::string& name : runtime::loss_names()) names += (names.empty() ? "" : ", ") + name;
  CHECK(message_of([] { runtime::loss("trl::grpo2"); }) ==
        "gdpo::runtime::loss: name: given 'trl::grpo2'; needed: one of " + names +
            "; did you mean \"trl::grpo\"?");
  for (const char* in_cpp : {"gdpo::trl::dapo", "gdpo::trl::dapo_loss", "trl::dapo_loss"}) {
    CHECK(message_of([&] { runtime::loss(in_cpp); }) ==
          "gdpo::runtime::loss: name: given '" + std::string(in_cpp) +
              "'; needed: 'trl::dapo', as names have neither gdpo:: before nor _loss behind them");
  }
  CHECK(message_of([] {
          runtime::loss("gdpo::gdpo");
        }).find("gdpo::runtime::loss: name: given 'gdpo::gdpo'; needed: one of " + names) == 0);
  CHECK(message_of([] { runtime::loss(""); }) ==
        "gdpo::runtime::loss: name: given ''; needed: one of " + names);
  CHECK(message_of([] { runtime::loss("grpo", "tokens"); }) ==
        "gdpo::runtime::loss: level: given 'tokens'; needed: one of token, sequence, "
        "sequence_token; did you mean \"token\"?");
  CHECK(message_of([] { runtime::aggregate("token_mean"); }) ==
        "gdpo::runtime::aggregate: loss_agg_mode: given 'token_mean'; needed: one of token-mean, "
        "token-sum, "
        "seq-mean-token-sum, seq-mean-token-sum-norm, seq-mean-token-mean; "
        "did you mean \"token-mean\"?");
}

TEST_CASE("the papers' defaults", "[loss]") {
  check(settings_of(gdpo::grpo_loss), named("grpo"));
  check(settings_of(gdpo::dapo_loss), named("dapo"));
  check(settings_of(gdpo::dr_grpo_loss), named("dr_grpo"));
  check(settings_of(gdpo::gspo_loss), named("gspo"));
  check(settings_of(gdpo::gspo_token_loss), named("gspo_token"));
  static_assert(
      std::is_same_v<decltype(gdpo::grpo_loss.kl), gdpo::Kl<gdpo::kl::K3, gdpo::kl::Direct>>);
  static_assert(std::is_same_v<decltype(gdpo::gspo_loss.level.statistic), gdpo::statistic::Mean>);

  // These defaults are those of the named losses; the policies keep their own.
  CHECK(gdpo::surrogate::Ratio{}.high == 0.2);
  CHECK(gdpo::Kl<>{}.beta == 0.04);
  Batch batch(5);
  CHECK(message_of([&] { batch(gdpo::dr_grpo_loss); }) ==
        "gdpo::PolicyLoss: aggregate.constant: given 0; needed: a length in tokens, more than 0, "
        "the same for the whole "
        "training");
}

namespace {
/// A factor with a setting, which must be kept.
struct Half {
  double factor = 0.5;
  template <class V>
  V operator()(const gdpo::Token<V>&) const {
    return gdpo::math::constant<V>(factor);
  }
};
}  // namespace

TEST_CASE("another level or KL term: every other setting is kept", "[loss]") {
  gdpo::PolicyLoss<gdpo::level::Sequence<gdpo::map::Clamp>, gdpo::surrogate::Ratio,
                   gdpo::Kl<gdpo::kl::K2>, gdpo::Aggregate, gdpo::Factors<Half>>
      loss;
  loss.level.bounds = {-0.5, 0.5}, loss.level.map = {-3, 3}, loss.level.statistic.count_eps = 1;
  loss.surrogate = {0.1, 0.3, 5, 2.5};
  loss.kl = {0.7, gdpo::Against::Old, {-1, 1}, {-2, 2}};
  loss.aggregate = {Sum::SeqMeanTokenMean, Over::Tokens, 1e-8, 4, 0.5};
  loss.factor.first.factor = 0.25;
  const auto level_kept = [&](const auto& l) {
    CHECK(equal(l.level.bounds, {-0.5, 0.5}));
    CHECK(l.level.map.hi == 3);
    CHECK(l.level.statistic.count_eps == 1);
  };
  const auto surrogate_kept = [&](const auto& l) {
    CHECK(l.surrogate.low == 0.1);
    CHECK(l.surrogate.high == 0.3);
    CHECK(l.surrogate.delta == 5);
    CHECK(l.surrogate.dual == 2.5);
    CHECK(l.factor.first.factor == 0.25);
  };
  const auto kl_kept = [&](const auto& l) {
    CHECK(l.kl.beta == 0.7);
    CHECK(l.kl.against == gdpo::Against::Old);
    CHECK(equal(l.kl.input, {-1, 1}));
    CHECK(equal(l.kl.output, {-2, 2}));
  };
  const auto aggregate_kept = [&](const auto& l) {
    CHECK(equal(l.aggregate, Aggregate{Sum::SeqMeanTokenMean, Over::Tokens, 1e-8, 4, 0.5}));
  };
  const auto token = gdpo::with_level<gdpo::level::Token<>>(loss);
  surrogate_kept(token), kl_kept(token), aggregate_kept(token);
  gdpo::level::SequenceToken<> given;
  given.bounds = {-1, 1};
  const auto straight = gdpo::with_level(loss, given);
  CHECK(equal(straight.level.bounds, {-1, 1}));
  surrogate_kept(straight), kl_kept(straight), aggregate_kept(straight);
  const auto without = gdpo::with_kl<gdpo::kl::None>(loss);
  level_kept(without), surrogate_kept(without), aggregate_kept(without);
  const auto other = gdpo::with_kl(loss, gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>{0.3});
  CHECK(other.kl.beta == 0.3);
  level_kept(other), surrogate_kept(other), aggregate_kept(other);

  // A named loss keeps its own settings, not those of its policies.
  const auto sequence = gdpo::with_level<gdpo::level::Sequence<>>(gdpo::dapo_loss);
  CHECK(sequence.surrogate.high == 0.28);
  CHECK(sequence.kl.beta == 0);
}

// Named losses are values, not types. A type of gdpo with one of these names would make the tuple
// below ambiguous.
struct GrpoLoss {};
struct DrGrpoLoss {};
struct DapoLoss {};
struct GspoLoss {};
struct GspoTokenLoss {};
namespace no_types_of_gdpo {
using namespace gdpo;
using Ours = std::tuple<GrpoLoss, DrGrpoLoss, DapoLoss, GspoLoss, GspoTokenLoss>;
}  // namespace no_types_of_gdpo

TEST_CASE("a named loss keeps its other settings when one member is set", "[loss]") {
  const auto changed = [](auto loss) {
    loss.surrogate.dual = 3;
    loss.kl.output = {-1, 1};
    return loss;
  };
  const auto expected = [](Settings settings) {
    std::get<naive_loss::Ratio>(settings.surrogate).dual = 3;
    settings.kl[0].output = {-1, 1};
    return settings;
  };
  check(settings_of(changed(gdpo::grpo_loss)), expected(named("grpo")));
  check(settings_of(changed(gdpo::dapo_loss)), expected(named("dapo")));
  check(settings_of(changed(gdpo::dr_grpo_loss)), expected(named("dr_grpo")));
  check(settings_of(changed(gdpo::gspo_loss)), expected(named("gspo")));
  check(settings_of(changed(gdpo::gspo_token_loss)), expected(named("gspo_token")));
}

TEST_CASE("a loss by name whose surrogate is not the clipped ratio: its own settings",
          "[runtime][loss]") {
  // The settings of the chosen policies, and none of those that were not chosen.
  const std::string none = message_of([] { runtime::configured_loss("cispo low=0.1"); });
  CHECK(none.find("given the setting 'low'; needed: one of kl, ") != std::string::npos);
  CHECK(none.find("factor.min_ratio, factor.max_ratio") != std::string::npos);
  const std::string other = message_of([] { runtime::configured_loss("grpo max_ratio=2"); });
  CHECK(other.find("given the setting 'max_ratio'; needed: one of surrogate.low, ") !=
        std::string::npos);
  Batch batch(11);
  const auto refused = [&](const char* line) {
    return batch.error(runtime::configured_loss(line));
  };
  // A number that is set in the value, and not by a line.
  const auto refused_values = [&](double min_ratio, double max_ratio) {
    runtime::Loss loss = runtime::loss("cispo");
    for (const runtime::detail::SettingRef& setting : runtime::detail::setting_refs(loss)) {
      if (setting.name == "factor.min_ratio") *static_cast<double*>(setting.member) = min_ratio;
      if (setting.name == "factor.max_ratio") *static_cast<double*>(setting.member) = max_ratio;
    }
    return batch.error(loss);
  };
  CHECK(refused_values(-1, 2) ==
        "gdpo::PolicyLoss: factor.min_ratio: given -1; needed: a finite number of at least 0");
  CHECK(refused_values(gdpo::math::nan<double>(), 2).find("factor.min_ratio: given nan") !=
        std::string::npos);
  CHECK(refused_values(0, 0) ==
        "gdpo::PolicyLoss: factor.max_ratio: given 0; needed: more than 0 (infinity: off)");
  CHECK(refused("cispo min_ratio=2 max_ratio=1") ==
        "gdpo::PolicyLoss: factor.min_ratio, factor.max_ratio: given 2 and 1; needed: min_ratio of "
        "at most max_ratio");
  // At every level, with every KL term: the numbers of the composition, bit for bit.
  auto cispo = gdpo::cispo_loss;
  cispo.factor.first = {0.9, 1.1};
  const auto by_name = [](std::string line) {
    return runtime::configured_loss("cispo " + line + " min_ratio=0.9 max_ratio=1.1");
  };
  CHECK(difference(batch(by_name("")), batch(cispo)) == "");
  CHECK(difference(batch(by_name("sequence")),
                   batch(gdpo::with_level<gdpo::level::Sequence<>>(cispo))) == "");
  CHECK(difference(batch(by_name("sequence_token kl=k2 beta=0.3")),
                   batch(gdpo::with_level<gdpo::level::SequenceToken<>>(
                       gdpo::with_kl(cispo, gdpo::Kl<gdpo::kl::K2>{0.3})))) == "");
}

TEST_CASE("a composition is an aggregate", "[loss]") {
  const gdpo::PolicyLoss<> braces{{}, {0.1, 0.3}, {0.5}};
  CHECK(braces.surrogate.high == 0.3);
  CHECK(braces.kl.beta == 0.5);
  CHECK(braces.aggregate.over == Over::Rows);
#if defined(__cpp_designated_initializers) && __cplusplus >= 202002L
  const gdpo::PolicyLoss<> loss{.surrogate = {.high = 0.3},
                                .aggregate = {.over = Over::Given, .scale = 2}};
  CHECK(loss.surrogate.low == 0.2);
  CHECK(loss.surrogate.high == 0.3);
  CHECK(loss.kl.beta == 0.04);
  CHECK(equal(loss.aggregate, Aggregate{Sum::SeqMeanTokenMean, Over::Given, 0, 2}));
  const gdpo::prepass::Gate gate{
      .estimator = gdpo::prepass::Estimator::K3, .max = 2, .reach = gdpo::Reach::Mask};
  CHECK(gate.min == -inf);
#endif
}

TEST_CASE("a loss is configured by a line of text", "[loss][runtime]") {
  const auto of = [](const char* line) { return settings_of(runtime::configured_loss(line)); };
  const auto by_name = [](const char* name, const char* level = "") {
    return settings_of(runtime::loss(name, level));
  };
  check(of("trl::dapo"), by_name("trl::dapo"));
  check(of("  dapo   sequence "), by_name("dapo", "sequence"));
  check(of("verl::vanilla"), by_name("verl::vanilla"));

  // Each setting alone, in a loss that has it.
  const auto with = [&](const char* name, const char* level, const auto& set) {
    runtime::Loss loss = runtime::loss(name, level);
    std::visit(set, loss);
    return settings_of(loss);
  };
  check(of("dapo surrogate.low=0.1 surrogate.high=inf surrogate.delta=4 surrogate.dual=3"),
        with("dapo", "", [](auto& l) {
          l.surrogate = gdpo::surrogate::Ratio{0.1, inf, 4, 3};
        }));
  check(of("grpo kl.beta=1e-3 kl.input.lo=-5 kl.input.hi=6 kl.output.lo=-1 kl.output.hi=2"),
        with("grpo", "", [](auto& l) {
          l.kl.beta = 1e-3, l.kl.input = {-5, 6}, l.kl.output = {-1, 2};
        }));
  std::visit(
      [](const auto& l) {
        CHECK(l.kl.beta == 0.5);
        CHECK(l.kl.against == gdpo::Against::Rollout);
        CHECK(l.kl.estimator == gdpo::KlEstimator::K2);
        CHECK(l.kl.gradient == gdpo::KlGradient::StraightThroughK2);
      },
      runtime::configured_loss("grpo kl.beta=0.5 kl.against=rollout kl=mse+"));
  check(of("grpo aggregate=seq-mean-token-sum-norm aggregate.constant=7 aggregate.over=given "
           "aggregate.count_eps=1e-8 aggregate.scale=3"),
        with("grpo", "", [](auto& l) {
          l.aggregate = runtime::aggregate("seq-mean-token-sum-norm");
          l.aggregate.constant = 7, l.aggregate.over = Over::Given;
          l.aggregate.count_eps = 1e-8, l.aggregate.scale = 3;
        }));
  check(of("grpo aggregate.row_count_eps=0.5 aggregate.over=non_empty_rows"),
        with("grpo", "", [](auto& l) {
          l.aggregate.row_count_eps = 0.5, l.aggregate.over = Over::NonEmptyRows;
        }));
  check(of("dr_grpo aggregate.padded_width=true"),
        with("dr_grpo", "", [](auto& l) { l.aggregate.padded_width = true; }));
  check(of("verl::vanilla level.map.lo=-3 level.map.hi=4"), with("verl::vanilla", "", [](auto& l) {
          if constexpr (std::is_same_v<decltype(l.level.map), gdpo::map::Clamp>)
            l.level.map = {-3, 4};
        }));
  const runtime::Loss sequence = runtime::configured_loss(
      "gspo level.bounds.lo=-1 level.bounds.hi=2 "
      "level.statistic.count_eps=1e-8");
  std::visit(
      [](const auto& l) {
        if constexpr (std::decay_t<decltype(l.level)>::of_segment) {
          CHECK(equal(l.level.bounds, {-1, 2}));
          CHECK(l.level.statistic.count_eps == 1e-8);
        } else {
          FAIL("gspo is of segments");
        }
      },
      sequence);

  // As a line comes from a file.
  const auto from_file = runtime::configured_loss("\tdapo\ttoken surrogate.low=0.25\r\n");
  CHECK(std::get<naive_loss::Ratio>(settings_of(from_file).surrogate).low == 0.25);

  const auto refused = [](const char* line) {
    return message_of([line] { runtime::configured_loss(line); });
  };
  CHECK(
      refused("dapo low = 0.1") ==
      "gdpo::runtime::configured_loss: line: given 'low ='; needed: SETTING=VALUE, without blanks "
      "around =");
  CHECK(refused("").find("gdpo::runtime::loss: name: given ''") == 0);
  CHECK(refused("dapo tokens").find("gdpo::runtime::loss: level: given 'tokens'") == 0);
  CHECK(refused("dapo token x") ==
        "gdpo::runtime::configured_loss: line: given 'x'; needed: SETTING=VALUE");
  CHECK(refused("dapo surrogate.low=two") ==
        "gdpo::runtime::configured_loss: surrogate.low: given 'two'; needed: a number");
  CHECK(refused("dapo surrogate.low=0.1x").find("needed: a number") != std::string::npos);
  CHECK(refused("dapo surrogate.low=").find("needed: a number") != std::string::npos);
  CHECK(refused("dapo aggregate.padded_width=1") ==
        "gdpo::runtime::configured_loss: aggregate.padded_width: given '1'; needed: true or false");
  CHECK(refused("dapo aggregate.over=all")
            .find("needed: one of tokens, rows, non_empty_rows, given") != std::string::npos);
  CHECK(refused("dapo kl.against=him").find("needed: one of ref, old, teacher, rollout") !=
        std::string::npos);
  CHECK(refused("dapo kl=k9").find("gdpo::runtime::configured_loss: kl: given 'k9'") == 0);
  const std::string unknown = refused("dapo clip=0.2");
  CHECK(unknown.find("line: given the setting 'clip'; needed: one of surrogate.low, ") !=
        std::string::npos);
  CHECK(unknown.find("level.bounds") == std::string::npos);  // a token has none
}

TEST_CASE("a setting may be called by the end of its name, where no other ends so") {
  const auto same = [](const std::string& short_line, const std::string& line) {
    INFO(short_line);
    check(settings_of(runtime::configured_loss(short_line)),
          settings_of(runtime::configured_loss(line)));
  };
  same("dapo low=0.1 high=0.3 beta=0.5 delta=4 dual=3",
       "dapo surrogate.low=0.1 surrogate.high=0.3 kl.beta=0.5 surrogate.delta=4 "
       "surrogate.dual=3");
  same("dr_grpo constant=7 over=given scale=2 row_count_eps=1 padded_width=true",
       "dr_grpo aggregate.constant=7 aggregate.over=given aggregate.scale=2 "
       "aggregate.row_count_eps=1 aggregate.padded_width=true");
  // One of a token's loss alone.
  same("dapo count_eps=0.5 input.lo=-1", "dapo aggregate.count_eps=0.5 kl.input.lo=-1");
  same("gspo bounds.hi=3", "gspo level.bounds.hi=3");
  same("cispo min_ratio=0.5 max_ratio=2", "cispo factor.min_ratio=0.5 factor.max_ratio=2");
  std::visit(
      [](const auto& l) {
        if constexpr (std::is_same_v<std::decay_t<decltype(l.kl)>, gdpo::AnyKl>)
          CHECK(l.kl.estimator == gdpo::KlEstimator::K1);
        CHECK(l.kl.against == gdpo::Against::Old);
        if constexpr (std::decay_t<decltype(l.level)>::of_segment)
          CHECK(l.level.statistic.count_eps == 0.5);
      },
      runtime::configured_loss("gspo kl=k1 against=old statistic.count_eps=0.5"));

  const auto refused = [](const std::string& line) {
    return message_of([&line] { runtime::configured_loss(line); });
  };
  const std::string line = "gdpo::runtime::configured_loss: line: given the setting ";
  CHECK(refused("gspo count_eps=0.5") ==
        line + "'count_eps'; needed: one of level.statistic.count_eps, aggregate.count_eps");
  CHECK(refused("dapo lo=0.5") == line + "'lo'; needed: one of kl.input.lo, kl.output.lo");
  for (const char* none : {"ow=0.1", ".low=0.1", "urrogate.low=0.1", "surrogate.=0.1", "=0.1",
                           "surrogate=0.1", "surrogate.low.lo=1"}) {
    INFO(none);
    CHECK(refused(std::string("dapo ") + none).find("; needed: one of surrogate.low, surrogate") !=
          std::string::npos);
  }
  // As it was given.
  CHECK(refused("dapo low=two") ==
        "gdpo::runtime::configured_loss: low: given 'two'; needed: a number");
  CHECK(refused("dapo against=him")
            .find("configured_loss: against: given 'him'; needed: one of ref") !=
        std::string::npos);
}

}  // namespace losses_test
