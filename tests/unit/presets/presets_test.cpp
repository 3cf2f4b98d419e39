// labels: sanitizers
// The list of presets: each name has one line in it, and everything that is made from the list has
// every line.
#include <cmath>
#include <gdpo/dist/describe.hpp>
#include <gdpo/runtime.hpp>
#include <set>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace presets_test {

namespace {

namespace presets = gdpo::presets;
namespace runtime = gdpo::runtime;

struct Lines {
  std::vector<std::string> names;
  template <class T>
  void operator()(const gdpo::Preset<T>& preset) {
    INFO(preset.name);
    const std::string name = preset.name, option = preset.option, version = preset.version;
    CHECK(!name.empty());
    if (name.find("::") != std::string::npos && version.find('@') != std::string::npos)
      CHECK(!option.empty());
    names.push_back(name);
  }
};
template <class ForEach>
std::vector<std::string> names_of(const ForEach& for_each) {
  Lines lines;
  for_each([&lines](const auto& preset) { lines(preset); });
  CHECK(std::set<std::string>(lines.names.begin(), lines.names.end()).size() == lines.names.size());
  return lines.names;
}

template <class U, class... T>
constexpr int times = (0 + ... + static_cast<int>(std::is_same_v<U, T>));
template <class Variant>
constexpr bool has_each_type_once = false;
template <class... T>
constexpr bool has_each_type_once<std::variant<T...>> = ((times<T, T...> == 1) && ...);

}  // namespace

TEST_CASE("names at run time are those of the list, each once", "[presets][runtime]") {
  CHECK(names_of(presets::for_each_estimator) == runtime::estimator_names());
  CHECK(names_of(presets::for_each_loss) == runtime::loss_names());
  CHECK(names_of(presets::for_each_prepass) == runtime::prepass_names());
  CHECK(names_of(presets::for_each_shaping) == runtime::shaping_names());
  CHECK(names_of(presets::for_each_running) == runtime::running_names());
  CHECK(names_of(presets::for_each_token_advantage) == runtime::token_advantage_names());
  CHECK(names_of(presets::for_each_outcome_advantage) == runtime::outcome_advantage_names());
  CHECK(names_of(presets::for_each_step_advantage) == runtime::step_advantage_names());
  CHECK(names_of(presets::for_each_token_baseline) == runtime::token_baseline_names());
  CHECK(names_of(presets::for_each_value_loss) == runtime::value_loss_names());
  CHECK(names_of(presets::for_each_aggregate).size() == 5);
  CHECK(names_of(presets::for_each_whitening) == runtime::whitening_names());
}

namespace {

/// Checks that each name of a list gives the value of its line. find(name): the function of the
/// runtime, which gives the value or a variant of it.
template <class ForEach, class Find>
void check_values(const ForEach& for_each, const Find& find) {
  for_each([&find](const auto& preset) {
    INFO(preset.name);
    using Value = std::decay_t<decltype(preset.value)>;
    const auto by_name = find(preset.name);
    const Value* value = nullptr;
    if constexpr (std::is_same_v<std::decay_t<decltype(by_name)>, Value>) {
      value = &by_name;
    } else {
      value = std::get_if<Value>(&by_name);
    }
    REQUIRE(value);
    CHECK(gdpo::detail::description(*value) == gdpo::detail::description(preset.value));
  });
}

}  // namespace

TEST_CASE("a name gives the value of its line", "[presets][runtime]") {
  check_values(presets::for_each_estimator, runtime::estimator);
  check_values(presets::for_each_shaping, runtime::shaping);
  check_values(presets::for_each_running, runtime::running);
  check_values(presets::for_each_token_advantage, runtime::token_advantage);
  check_values(presets::for_each_outcome_advantage, runtime::outcome_advantage);
  check_values(presets::for_each_step_advantage, runtime::step_advantage);
  check_values(presets::for_each_token_baseline, runtime::token_baseline);
  check_values(presets::for_each_value_loss, runtime::value_loss);
  check_values(presets::for_each_whitening, runtime::whitening);
  static_assert(
      has_each_type_once<runtime::Estimator> && has_each_type_once<runtime::Loss> &&
      has_each_type_once<runtime::Prepass> && has_each_type_once<runtime::Shaping> &&
      has_each_type_once<runtime::Running> && has_each_type_once<runtime::TokenAdvantage> &&
      has_each_type_once<runtime::OutcomeAdvantage> && has_each_type_once<runtime::StepAdvantage>);
}

TEST_CASE("the names of the critic's side leave to a run what belongs to it",
          "[presets][runtime]") {
  presets::for_each_token_advantage([](const auto& preset) {
    INFO(preset.name);
    const auto& e = preset.value;
    CHECK((e.penalty.coef == 0 || e.returns.gamma == 0));  // of a run, but for distillation
    CHECK(gdpo::math::is_inf(e.reward_clip.hi));
  });
  presets::for_each_outcome_advantage([](const auto& preset) {
    INFO(preset.name);
    const auto& e = preset.value;
    // At every token the row's advantage is the whole of it; the rest belongs to a run.
    CHECK((e.placement == gdpo::Placement::EveryToken) == (e.tokens.returns.gamma == 0));
    CHECK(e.tokens.penalty.coef == 0);
    CHECK(gdpo::math::is_inf(e.tokens.reward_clip.hi));
  });
  presets::for_each_step_advantage([](const auto& preset) {
    INFO(preset.name);
    CHECK((preset.value.omega == 1 && preset.value.gamma == 1));  // of a run
  });
  const auto configured = std::get<gdpo::Gigpo<>>(
      runtime::configured_step_advantage("gigpo omega=0.5 step.scale.eps=1e-3"));
  CHECK((configured.omega == 0.5 && configured.step.scale.eps == 1e-3));
  using gdpo::BaselineTail;
  CHECK(runtime::token_baseline("verl::optimal_token_baseline").tail == BaselineTail::Raw);
  CHECK(runtime::configured_token_baseline("verl::optimal_token_baseline tail=cancel").tail ==
        BaselineTail::Cancel);
  presets::for_each_value_loss([](const auto& preset) {
    INFO(preset.name);
    const runtime::ValueLoss loss = runtime::value_loss(preset.name);
    CHECK(loss.clip == preset.value.clip);
    CHECK(loss.half == preset.value.half);
    CHECK(loss.delta == preset.value.delta);
    CHECK(loss.aggregate.over == preset.value.aggregate.over);
  });
  using Mode = gdpo::Aggregate::Mode;
  CHECK(runtime::value_loss("slime::value_loss").aggregate.mode == Mode::SeqMeanTokenMean);
  CHECK(!runtime::value_loss("slime::value_loss").half);
  CHECK(runtime::value_loss("verl::value_loss").clip == 0.5);
  // The settings in which trainers differ and that no record fixes.
  CHECK(gdpo::nemo_rl::gae.returns.lambda == 0.95);
  CHECK(gdpo::nemo_rl::vapo.returns.lambda_returns == 1);
  CHECK(gdpo::nemo_rl::vapo.returns.length_alpha == 0.05);
  CHECK(gdpo::nemo_rl::gae.penalty.kl.estimator == gdpo::KlEstimator::K3);
  CHECK(gdpo::slime::ppo.returns.steps == gdpo::Steps::Row);
  CHECK(gdpo::trinity::ppo_advantage.returns.steps == gdpo::Steps::Row);
  CHECK(gdpo::openrlhf::gae.returns.steps == gdpo::Steps::RowRewardOnValid);
  CHECK(gdpo::slime::reinforce_plus_plus.returns.steps == gdpo::Steps::RowRewardOnValid);
  std::string names;
  for (const std::string& name : runtime::token_advantage_names())
    names += (names.empty() ? "" : ", ") + name;
  CHECK(message_of([] { runtime::token_advantage("verl::gea"); }) ==
        "gdpo::runtime::token_advantage: name: given 'verl::gea'; needed: one of " + names +
            "; did you mean \"verl::gae\"?");
  CHECK(message_of([] { runtime::value_loss("mse"); }) ==
        "gdpo::runtime::value_loss: name: given 'mse'; needed: one of verl::value_loss, "
        "openrlhf::value_loss, nemo_rl::value_loss, slime::value_loss, areal::value_loss");
}

TEST_CASE("pre-passes that no record has as they are set what their trainers do",
          "[presets][runtime]") {
  using gdpo::Reach, gdpo::prepass::Statistic;
  constexpr double inf = gdpo::math::infinity;
  // What is expected: the statistic, the clamp of the log ratio, the largest weight that is kept,
  // and what the weight multiplies.
  struct Line {
    const char* name;
    Statistic statistic;
    double clamp, most;
    Reach reach;
  };
  const auto equal = [](const gdpo::Bounds& a, double lo, double hi) {
    return a.lo == lo && a.hi == hi;
  };
  for (const Line& line :
       {Line{"trl::token_truncate", Statistic::Token, inf, 3, Reach::Surrogate},
        Line{"trl::sequence_truncate", Statistic::SequenceSum, inf, 3, Reach::Surrogate},
        Line{"ms_swift::token_truncate", Statistic::Token, 20, 2, Reach::SurrogateAndKl},
        Line{"ms_swift::sequence_truncate", Statistic::SequenceMean, 20, 2, Reach::SurrogateAndKl},
        Line{"open_instruct::rho", Statistic::Token, 10, 2, Reach::Surrogate}}) {
    INFO(line.name);
    const auto weight = std::get<gdpo::prepass::Importance>(runtime::prepass(line.name));
    CHECK(weight.statistic == line.statistic);
    // ms-swift bounds the log ratio of each token, and then takes the mean of the row.
    const bool each = line.name == std::string("ms_swift::sequence_truncate");
    CHECK(equal(each ? weight.token_clamp : weight.clamp, -line.clamp, line.clamp));
    CHECK(equal(each ? weight.clamp : weight.token_clamp, -inf, inf));
    const bool trl = line.name[0] == 't';
    CHECK(weight.missing == (trl ? gdpo::prepass::MissingRollout::NoDifference
                                 : gdpo::prepass::MissingRollout::Drop));
    CHECK(equal(weight.clip, -inf, line.most));
    CHECK(weight.count_eps == 0);
    CHECK(weight.reach == line.reach);
  }
  for (const Line& line :
       {Line{"trl::token_mask", Statistic::Token, inf, 3, Reach::Surrogate},
        Line{"trl::sequence_mask", Statistic::SequenceSum, inf, 3, Reach::Surrogate},
        Line{"ms_swift::token_mask", Statistic::Token, 20, 2, Reach::SurrogateAndKl},
        Line{"ms_swift::sequence_mask", Statistic::SequenceMean, 20, 2, Reach::SurrogateAndKl}}) {
    INFO(line.name);
    const auto pass = std::get<gdpo::prepass::MaskedImportance>(runtime::prepass(line.name));
    const gdpo::prepass::Gate& gate = pass.rest.first;
    // ms-swift's weight is that of the token, whatever the mask is of.
    CHECK(pass.first.statistic == (line.name[0] == 't' ? line.statistic : Statistic::Token));
    CHECK(equal(pass.first.clip, -inf, inf));
    CHECK(pass.first.reach == line.reach);
    CHECK(gate.estimator == gdpo::prepass::Estimator::Ratio);
    CHECK(gate.pair == gdpo::prepass::Pair::Mismatch);
    CHECK(gate.when == gdpo::prepass::When::Always);
    CHECK(gate.statistic == line.statistic);
    CHECK(equal(gate.clamp, -line.clamp, line.clamp));
    CHECK(equal({gate.min, gate.max}, -inf, line.most));
    CHECK(gate.reach == line.reach);
  }
  CHECK_THROWS_AS(runtime::prepass("trl::tokens"), gdpo::invalid_input);
}

TEST_CASE("pre-passes of a whole row or batch are set as their trainers are by default",
          "[presets][runtime]") {
  using gdpo::Reach, gdpo::prepass::CovarianceKeep, gdpo::prepass::CovariancePick;
  const auto m2po = std::get<gdpo::prepass::SecondMoment>(runtime::prepass("areal::m2po"));
  CHECK(m2po.threshold == 0.04);
  CHECK(m2po.reach == Reach::Mask);
  struct Line {
    const char* name;
    CovariancePick pick;
    CovarianceKeep keep;
    double share;
    Reach reach;
  };
  for (const Line& line :
       {Line{"verl::clip_cov", CovariancePick::Between, CovarianceKeep::Rest, 0.0002,
             Reach::Surrogate},
        Line{"verl::kl_cov", CovariancePick::Top, CovarianceKeep::Picked, 0.0002, Reach::Kl},
        Line{"skyrl::clip_cov", CovariancePick::Between, CovarianceKeep::Rest, 0.0002,
             Reach::Surrogate},
        Line{"skyrl::kl_cov", CovariancePick::Top, CovarianceKeep::Picked, 0.2, Reach::Kl}}) {
    INFO(line.name);
    const auto picks = std::get<gdpo::prepass::Covariance>(runtime::prepass(line.name));
    CHECK(picks.pick == line.pick);
    CHECK(picks.keep == line.keep);
    CHECK(picks.share == line.share);
    CHECK(picks.min == 1);
    CHECK(picks.max == 5);
    CHECK(picks.low == 0.2);
    CHECK(picks.high == 0.2);
    CHECK(picks.reach == line.reach);
  }
  for (const auto& [name, coef] : {std::pair{"verl::kl_cov", 0.1}, {"skyrl::kl_cov", 1.0}}) {
    std::visit(
        [&, of = coef](const auto& loss) {
          CHECK(loss.kl.beta == of);
          CHECK(loss.kl.estimator == gdpo::KlEstimator::Abs);
          CHECK(loss.kl.against == gdpo::Against::Old);
        },
        runtime::loss(name));
  }
  const auto fipo = std::get<gdpo::prepass::FutureKl>(runtime::prepass("ms_swift::fipo"));
  CHECK(fipo.gamma == std::pow(2.0, -1.0 / 32));
  CHECK(fipo.clip.lo == 1);
  CHECK(fipo.clip.hi == 1.2);
  CHECK(gdpo::math::is_inf(fipo.drop_above));
  CHECK(fipo.safety == 4);
  CHECK(fipo.reach == Reach::Surrogate);
  const auto rlsd = std::get<gdpo::prepass::TeacherRatio>(runtime::prepass("ms_swift::rlsd"));
  CHECK(rlsd.mix == 0.5);
  CHECK(rlsd.clip.lo == 0.8);
  CHECK(rlsd.clip.hi == 1.2);
  CHECK(!rlsd.negative_only);
  CHECK(rlsd.reach == Reach::Surrogate);
  const auto iw_opd = std::get<gdpo::prepass::TeacherPrefix>(runtime::prepass("trl::iw_opd"));
  CHECK(iw_opd.gain == 0.5);
  CHECK(iw_opd.eps == 1e-8);
  CHECK(iw_opd.reach == Reach::Surrogate);
}

TEST_CASE("the mu of CHORD rises in a line and falls with half a cosine", "[presets]") {
  const auto mu = [](double step) { return gdpo::trinity::chord_mu(step, 4, 8, 0.5, 0.1); };
  CHECK(mu(0) == 0);
  CHECK(mu(1) == 0.125);
  CHECK(mu(4) == 0.5);
  CHECK(mu(8) == Approx(0.3).epsilon(1e-15));  // half way down
  for (const double step : {12.0, 13.0, 1e9}) CHECK(mu(step) == 0.1);
  for (double step = 4; step < 12; ++step) CHECK(mu(step) > mu(step + 1));
  // By default neither takes a step.
  CHECK(gdpo::trinity::chord_mu(0, 0, 0, 0.3, 0.2) == 0.2);
  CHECK(gdpo::trinity::mix_scale(0.25, 3, 2, 6) == 0.25);
}

}  // namespace presets_test
