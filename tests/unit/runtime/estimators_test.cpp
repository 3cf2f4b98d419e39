// labels: none
// Estimators by name: every name resolves, and each preset sets exactly what its trainer sets.
#include <set>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/product.hpp"

namespace estimators_test {

namespace {

using naive::Baseline;
using naive::EpsAt;
using naive::Renorm;
using naive::Scale;
using naive::Singleton;

struct Line {
  const char* name;
  Baseline baseline;
  Scale scale;
  double eps;
  int ddof;
  bool normalize_first;
  Renorm renorm;
  naive::Spread second;
  naive::Entry entry;
  naive::Row row;
  Singleton singleton;
  EpsAt eps_at = EpsAt::Std;
};

constexpr bool Sum = false, Each = true;
constexpr naive::Entry Skip = naive::Entry::Skip, AsZero = naive::Entry::Zero,
                       Flow = naive::Entry::Propagate;
constexpr naive::Row Exclude = naive::Row::Exclude, Keep = naive::Row::Keep,
                     Unscored = naive::Row::ExcludeUnscored;
const naive::Spread any{}, plain{1, 0, EpsAt::Std, 0, false}, e4{1, 1e-4, EpsAt::Std, 0, false},
    e8{1, 1e-8, EpsAt::Std, 0, false}, whiten{1, 1e-8, EpsAt::Var, 1e-8, false},
    whiten_fork{1, 1e-8, EpsAt::Var, 0, false};

// The settings of the trainers, read from their code: baseline, std or none, eps, ddof, order of
// sum and normalization, second normalization, missing rewards, groups of one.
const Line lines[] = {
    {"gdpo", Baseline::Mean, Scale::Group, 0, 1, Each, Renorm::Batch, plain, Skip, Exclude,
     Singleton::Zero},
    {"grpo", Baseline::Mean, Scale::Group, 0, 1, Sum, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"dr_grpo", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"rloo", Baseline::LeaveOneOut, Scale::None, 0, 1, Sum, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"maxrl", Baseline::Mean, Scale::GroupMean, 0, 1, Sum, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"gdpo_shrunk", Baseline::Mean, Scale::Shrunk, 0, 1, Each, Renorm::Batch, plain, Skip, Exclude,
     Singleton::Zero},
    {"grpo_shrunk", Baseline::Mean, Scale::Shrunk, 0, 1, Sum, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"paper::gdpo", Baseline::Mean, Scale::Group, 0, 1, Each, Renorm::Batch, plain, Skip, Exclude,
     Singleton::Zero},
    {"paper::grpo", Baseline::Mean, Scale::Group, 0, 1, Sum, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"paper::grpo_no_std", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"paper::mo_grpo", Baseline::Mean, Scale::Group, 0, 1, Each, Renorm::None, any, Skip, Exclude,
     Singleton::Zero},
    {"trl::grpo", Baseline::Mean, Scale::Group, 1e-4, 1, Sum, Renorm::None, any, Skip, Unscored,
     Singleton::Zero},
    {"trl::grpo_no_scale", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Skip,
     Unscored, Singleton::Zero},
    {"trl::grpo_batch_scale", Baseline::Mean, Scale::Batch, 1e-4, 1, Sum, Renorm::None, any, Skip,
     Unscored, Singleton::Zero},
    {"trl::gdpo", Baseline::Mean, Scale::Group, 1e-4, 1, Each, Renorm::Batch, e4, Skip, Unscored,
     Singleton::Zero},
    {"verl::grpo", Baseline::Mean, Scale::Group, 1e-6, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Raw},
    {"verl::grpo_no_std", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Raw},
    {"verl::gdpo", Baseline::Mean, Scale::Group, 1e-6, 1, Each, Renorm::Tokens, whiten, Flow, Keep,
     Singleton::Raw},
    {"verl::gdpo_no_std", Baseline::Mean, Scale::None, 0, 1, Each, Renorm::Tokens, whiten, Flow,
     Keep, Singleton::Raw},
    {"verl::rloo", Baseline::LeaveOneOut, Scale::None, 0, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Raw},
    {"verl::rloo_vectorized", Baseline::LeaveOneOut, Scale::None, 0, 1, Sum, Renorm::None, any,
     Flow, Keep, Singleton::Zero},
    {"verl::reinforce_plus_plus_baseline", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::Tokens,
     whiten, Flow, Keep, Singleton::Raw},
    {"verl::opo", Baseline::LengthWeighted, Scale::None, 0, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Raw},
    {"verl::gpg", Baseline::Mean, Scale::NonzeroShare, 0, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Raw},
    {"verl::grpo_passk", Baseline::SecondBest, Scale::Group, 1e-6, 1, Sum, Renorm::None, any, Flow,
     Keep, Singleton::Raw},
    {"verl::grpo_passk_no_std", Baseline::SecondBest, Scale::None, 0, 1, Sum, Renorm::None, any,
     Flow, Keep, Singleton::Raw},
    {"nvlabs::trl_grpo", Baseline::Mean, Scale::Group, 1e-4, 1, Sum, Renorm::None, any, AsZero,
     Keep, Singleton::Zero},
    {"nvlabs::trl_grpo_no_scale", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, AsZero,
     Keep, Singleton::Zero},
    {"nvlabs::trl_gdpo", Baseline::Mean, Scale::Group, 1e-4, 1, Each, Renorm::Batch, e4, AsZero,
     Keep, Singleton::Zero},
    {"nvlabs::trl_grpo_nan_singleton", Baseline::Mean, Scale::Group, 1e-4, 1, Sum, Renorm::None,
     any, AsZero, Keep, Singleton::Nan},
    {"nvlabs::trl_gdpo_nan_singleton", Baseline::Mean, Scale::Group, 1e-4, 1, Each, Renorm::Batch,
     e4, AsZero, Keep, Singleton::Nan},
    {"nvlabs::verl_grpo", Baseline::Mean, Scale::Group, 1e-6, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Raw},
    {"nvlabs::verl_grpo_no_std", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Flow,
     Keep, Singleton::Raw},
    {"nvlabs::verl_grpo_bn", Baseline::Mean, Scale::Group, 1e-6, 1, Sum, Renorm::Tokens,
     whiten_fork, Flow, Keep, Singleton::Raw},
    {"nvlabs::verl_grpo_no_std_bn", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::Tokens,
     whiten_fork, Flow, Keep, Singleton::Raw},
    {"nvlabs::verl_gdpo", Baseline::Mean, Scale::Group, 1e-6, 1, Each, Renorm::Tokens, whiten_fork,
     Flow, Keep, Singleton::Raw},
    {"ms_swift::grpo", Baseline::Mean, Scale::Group, 1e-4, 1, Sum, Renorm::None, any, Skip, Keep,
     Singleton::Zero},
    {"ms_swift::grpo_no_scale", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Skip,
     Keep, Singleton::Zero},
    {"ms_swift::grpo_batch_scale", Baseline::Mean, Scale::Batch, 1e-4, 1, Sum, Renorm::None, any,
     Skip, Keep, Singleton::Zero},
    {"ms_swift::rloo", Baseline::LeaveOneOut, Scale::None, 0, 1, Sum, Renorm::None, any, Skip, Keep,
     Singleton::Zero},
    {"ms_swift::rloo_group_scale", Baseline::LeaveOneOut, Scale::Group, 1e-4, 1, Sum, Renorm::None,
     any, Skip, Keep, Singleton::Zero},
    {"ms_swift::rloo_batch_scale", Baseline::LeaveOneOut, Scale::Batch, 1e-4, 1, Sum, Renorm::None,
     any, Skip, Keep, Singleton::Zero},
    {"ms_swift::reinforce_plus_plus", Baseline::Mean, Scale::BatchCentered, 1e-4, 1, Sum,
     Renorm::None, any, Skip, Keep, Singleton::Zero},
    {"ms_swift::reinforce_plus_plus_group_scale", Baseline::Mean, Scale::Group, 1e-4, 1, Sum,
     Renorm::None, any, Skip, Keep, Singleton::Zero},
    {"ms_swift::reinforce_plus_plus_no_scale", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None,
     any, Skip, Keep, Singleton::Zero},
    {"ms_swift::gdpo", Baseline::Mean, Scale::Group, 1e-8, 1, Each, Renorm::Batch, e8, Skip, Keep,
     Singleton::Zero},
    {"open_instruct::standard", Baseline::Mean, Scale::Group, 1e-8, 0, Sum, Renorm::None, any, Flow,
     Keep, Singleton::Zero},
    {"open_instruct::centered", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Flow,
     Keep, Singleton::Zero},
    {"nemo_rl::grpo", Baseline::LeaveOneOut, Scale::Others, 1e-6, 1, Sum, Renorm::None, any, Flow,
     Keep, Singleton::Zero, EpsAt::StdOrOne},
    {"nemo_rl::grpo_group_mean", Baseline::Mean, Scale::Group, 1e-6, 1, Sum, Renorm::None, any,
     Flow, Keep, Singleton::Zero, EpsAt::StdOrOne},
    {"nemo_rl::grpo_no_std", Baseline::LeaveOneOut, Scale::None, 0, 1, Sum, Renorm::None, any, Flow,
     Keep, Singleton::Zero},
    {"nemo_rl::grpo_group_mean_no_std", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any,
     Flow, Keep, Singleton::Zero},
    {"nemo_rl::gdpo", Baseline::LeaveOneOut, Scale::Others, 1e-6, 1, Each, Renorm::Batch, plain,
     Flow, Keep, Singleton::Zero, EpsAt::StdOrOne},
    {"nemo_rl::gdpo_group_mean", Baseline::Mean, Scale::Group, 1e-6, 1, Each, Renorm::Batch, plain,
     Flow, Keep, Singleton::Zero, EpsAt::StdOrOne},
    {"slime::grpo", Baseline::Mean, Scale::Group, 1e-6, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Zero},
    {"slime::grpo_nan_singleton", Baseline::Mean, Scale::Group, 1e-6, 1, Sum, Renorm::None, any,
     Flow, Keep, Singleton::Nan},
    {"slime::grpo_no_std", Baseline::Mean, Scale::None, 0, 1, Sum, Renorm::None, any, Flow, Keep,
     Singleton::Zero},
    {"trinity::opmd_logavgexp", Baseline::LogMeanExp, Scale::None, 0, 1, Sum, Renorm::None, any,
     Flow, Keep, Singleton::Raw},
    {"textbook::grpo_numpy", Baseline::Mean, Scale::Group, 1e-8, 0, Sum, Renorm::None, any, Skip,
     Exclude, Singleton::Zero},
    {"textbook::grpo_torch", Baseline::Mean, Scale::Group, 1e-8, 1, Sum, Renorm::None, any, Skip,
     Exclude, Singleton::Zero, EpsAt::ClampStd},
    {"per_group::gdpo", Baseline::Mean, Scale::Group, 0, 1, Each, Renorm::PerGroup, plain, Skip,
     Exclude, Singleton::Zero},
};

}  // namespace

TEST_CASE("every preset sets what its trainer does", "[runtime]") {
  std::set<std::string> checked;
  for (const Line& line : lines) {
    INFO(line.name);
    const naive::Settings e = std::visit([](const auto& x) { return product::settings_of(x); },
                                         gdpo::runtime::estimator(line.name));
    checked.insert(line.name);
    CHECK(e.baseline == line.baseline);
    CHECK(e.scale == line.scale);
    if (line.scale != Scale::None) {
      CHECK(e.scale_spread.eps == line.eps);
      CHECK(e.scale_spread.ddof == line.ddof);
      CHECK(e.scale_spread.eps_at == line.eps_at);
    }
    CHECK((e.combine == naive::Combine::NormalizeThenSum) == line.normalize_first);
    CHECK(e.renorm == line.renorm);
    if (line.renorm != Renorm::None) {
      CHECK(e.renorm_spread.ddof == line.second.ddof);
      CHECK(e.renorm_spread.eps == line.second.eps);
      CHECK(e.renorm_spread.eps_at == line.second.eps_at);
      CHECK(e.renorm_spread.count_eps == line.second.count_eps);
      CHECK(!e.renorm_spread.keep_mean);
    }
    CHECK(e.entry == line.entry);
    CHECK(e.row == line.row);
    CHECK(e.singleton == line.singleton);
    std::visit(
        [](const auto& x) {
          CHECK(x.weights.empty());
          CHECK(x.gates.empty());
          CHECK(x.penalty.coef == 0);
        },
        gdpo::runtime::estimator(line.name));
  }
  // A preset without a line here must be a trainer's, with a commit or a release as its version:
  // the test conformance.presets compares those with their records.
  gdpo::presets::for_each_estimator([&](const auto& preset) {
    INFO(preset.name);
    const std::string version = preset.version;
    const bool of_release = version.rfind("arXiv", 0) != 0 && version.find(' ') < version.size() &&
                            version.back() >= '0' && version.back() <= '9';
    CHECK((checked.count(preset.name) != 0 || version.find('@') < version.size() || of_release));
  });
}

namespace {

naive::Data sample() {
  naive::Data d;
  d.rows = 7;
  d.reward_count = 2;
  const double no = std::nan("");
  d.rewards = {1, 0.5, 0, 2, 3, 1, no, 0.25, no, no, 2, 2, 4, 1};
  d.ids = {1, 1, 1, 1, 1, 2, 3};
  d.tokens = {3, 1, 4, 1, 5, 9, 2};
  d.penalty = {1, 2, 0, 3, 1, 0, 2};
  d.valid = {1, 1, 1, 1, 1, 1, 1};
  return d;
}

}  // namespace

TEST_CASE("every setting reaches the numbers", "[settings]") {
  // Each setting changes some result of an estimator that reads it. Over tokens the step subtracts
  // the mean, so that keep_mean has an effect. The batch has missing entries, a row without any
  // reward, and two groups of one.
  naive::Settings base;
  base.renorm = Renorm::Tokens;
  base.renorm_spread = whiten;
  const naive::Data data = sample();
  const auto of = [&](const naive::Settings& e) { return product::advantages(e, data).advantages; };
  const std::vector<double> before = of(base);
  const auto matters = [&](const char* setting, auto change) {
    naive::Settings e = base;
    change(e);
    const std::vector<double> after = of(e);
    bool moved = false;
    for (std::size_t i = 0; i < after.size(); ++i)
      moved = moved || std::abs(after[i] - before[i]) > 1e-9 || std::isnan(after[i]);
    INFO(setting);
    CHECK(moved);
  };
  using S = naive::Settings;
  matters("baseline LeaveOneOut", [](S& e) {
    e.baseline = Baseline::LeaveOneOut;
    e.scale = Scale::Batch;
  });
  matters("baseline None", [](S& e) { e.baseline = Baseline::None; });
  matters("scale None", [](S& e) { e.scale = Scale::None; });
  matters("scale.of Batch", [](S& e) { e.scale = Scale::Batch; });
  matters("scale.of BatchCentered", [](S& e) { e.scale = Scale::BatchCentered; });
  matters("scale.of GroupRms", [](S& e) { e.scale = Scale::GroupRms; });
  matters("scale.of BatchRms", [](S& e) { e.scale = Scale::BatchRms; });
  matters("scale.ddof", [](S& e) { e.scale_spread.ddof = 0; });
  matters("scale.eps", [](S& e) { e.scale_spread.eps = 0.1; });
  matters("scale.eps_at None", [](S& e) { e.scale_spread.eps_at = EpsAt::None; });
  matters("scale.eps_at StdOrOne", [](S& e) {
    e.baseline = Baseline::None;
    e.scale_spread.eps_at = EpsAt::StdOrOne;
  });
  matters("combine", [](S& e) { e.combine = naive::Combine::SumThenNormalize; });
  matters("renorm None", [](S& e) { e.renorm = Renorm::None; });
  matters("renorm Batch", [](S& e) { e.renorm = Renorm::Batch; });
  matters("renorm PerGroup", [](S& e) { e.renorm = Renorm::PerGroup; });
  matters("renorm.ddof", [](S& e) { e.renorm_spread.ddof = 0; });
  matters("renorm.eps", [](S& e) { e.renorm_spread.eps = 0.1; });
  matters("renorm.eps_at",
          [](S& e) { e.renorm_spread.eps_at = EpsAt::Std, e.renorm_spread.eps = 1e-4; });
  matters("renorm.count_eps", [](S& e) { e.renorm_spread.count_eps = 0.5; });
  matters("renorm.keep_mean", [](S& e) { e.renorm_spread.keep_mean = true; });
  matters("missing.entry Zero", [](S& e) { e.entry = AsZero; });
  matters("missing.entry Propagate", [](S& e) { e.entry = Flow; });
  matters("missing.row Keep", [](S& e) { e.row = Keep; });
  matters("singleton Raw", [](S& e) { e.singleton = Singleton::Raw; });
  matters("singleton Nan", [](S& e) { e.singleton = Singleton::Nan; });
  matters("singleton Exclude", [](S& e) { e.singleton = Singleton::Exclude; });
  matters("reward_clip", [](S& e) { e.reward_low = 0.4, e.reward_high = 2; });
  matters("clip", [](S& e) { e.low = -0.5, e.high = 0.5; });
  matters("weights", [](S& e) { e.weights = {1, 0.5}; });
  matters("gates", [](S& e) { e.gates = {{1, 0, 1}}; });
  matters("penalty.coef", [](S& e) { e.penalty_coef = 0.5, e.penalty_reward = 0; });
  const auto differ = [&](const char* setting, auto one, auto other) {
    naive::Settings a = base, b = base;
    one(a), other(b);
    INFO(setting);
    CHECK(of(a) != of(b));
  };
  differ(
      "scale.of GroupOthers", [](S& e) { e.renorm = Renorm::None; },
      [](S& e) { e.renorm = Renorm::None, e.scale = Scale::GroupOthers; });
  differ(
      "penalty.reward", [](S& e) { e.penalty_coef = 0.5, e.penalty_reward = 0; },
      [](S& e) { e.penalty_coef = 0.5, e.penalty_reward = 1; });
  differ(
      "gate.at_least",
      [](S& e) {
        e.gates = {{1, 0, 1}};
      },
      [](S& e) {
        e.gates = {{1, 0, 2}};
      });
  differ(
      "gate.given",
      [](S& e) {
        e.gates = {{1, 0, 1}};
      },
      [](S& e) {
        e.gates = {{1, 1, 1}};
      });
  differ(
      "gate.reward",
      [](S& e) {
        e.gates = {{1, 0, 1}};
      },
      [](S& e) {
        e.gates = {{0, 0, 1}};
      });
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < a; ++b) {
      const auto at = [](int k) {
        return [k](S& e) {
          e.scale_spread.eps = e.renorm_spread.eps = 0.7,
          e.scale_spread.eps_at = static_cast<EpsAt>(k);
        };
      };
      differ("scale.eps_at", at(a), at(b));
    }
  }
  naive::Data unused = data;
  unused.valid[2] = 0;
  CHECK(product::advantages(base, unused).advantages != before);
  naive::Data longer = data;
  longer.tokens[0] = 30;
  CHECK(product::advantages(base, longer).advantages != before);
}

TEST_CASE("a gate lets its reward count from the threshold on", "[gates]") {
  // r_1 counts where r_0 >= 2, also where they are equal. Below 2 r_1 is 0, and where r_0 is
  // missing r_1 is missing too.
  naive::Data d;
  d.reward_count = 2;
  d.rows = 4;
  d.ids = {1, 1, 1, 1};
  d.rewards = {2, 8, 1.999, 8, 3, 6, std::nan(""), 8};
  naive::Settings e = product::settings_of(gdpo::DrGrpo{});
  e.gates = {{1, 0, 2}};
  e.weights = {0, 1};
  const double mean = 14.0 / 3;
  const std::vector<double> a = product::advantages(e, d).advantages,
                            expected{8 - mean, -mean, 6 - mean, 0};
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::abs(a[i] - expected[i]) < 1e-14);
  // A gate on a gated reward compares the number in the array, before any gate.
  e.gates = {{1, 0, 2}, {0, 1, 7}};
  e.weights = {1, 0};
  // r_1 of row 0 fails its own gate, but is 8 in the array.
  d.rewards = {1, 8, 5, 6, 4, 9, 3, 2};
  const std::vector<double> b = product::advantages(e, d).advantages,
                            gated{1 - 1.25, -1.25, 4 - 1.25, -1.25};
  for (std::size_t i = 0; i < 4; ++i) CHECK(b[i] == gated[i]);
}

TEST_CASE("an estimator is configured by a line of text", "[runtime]") {
  namespace runtime = gdpo::runtime;
  const auto line_of = [](const char* line) {
    return std::visit([](const auto& x) { return product::settings_of(x); },
                      runtime::configured_estimator(line));
  };
  naive::Settings e = line_of(
      "  gdpo scale.of=batch_centered  scale.ddof=0 scale.eps=1e-6 scale.eps_at=clamp_var "
      "renorm.ddof=2 renorm.eps=0.5 renorm.eps_at=var renorm.count_eps=1e-8 renorm.keep_mean=true "
      "missing.entry=zero missing.row=keep singleton=raw penalty.coef=0.25 penalty.reward=1 ");
  CHECK(e.scale == Scale::BatchCentered);
  CHECK(e.scale_spread.ddof == 0);
  CHECK(e.scale_spread.eps == 1e-6);
  CHECK(e.scale_spread.eps_at == EpsAt::ClampVar);
  CHECK(e.renorm_spread.ddof == 2);
  CHECK(e.renorm_spread.eps == 0.5);
  CHECK(e.renorm_spread.eps_at == EpsAt::Var);
  CHECK(e.renorm_spread.count_eps == 1e-8);
  CHECK(e.renorm_spread.keep_mean);
  CHECK(e.entry == AsZero);
  CHECK(e.row == Keep);
  CHECK(e.singleton == Singleton::Raw);

  // A renormalization by one word has the settings of that kind; a later one changes them.
  e = line_of("gdpo renorm.eps=0.5 renorm=tokens");
  CHECK(e.renorm == Renorm::Tokens);
  CHECK(e.renorm_spread.eps == 1e-8);
  CHECK(e.renorm_spread.eps_at == EpsAt::Var);
  e = line_of("rloo renorm=batch renorm.eps=0.5 keep_mean=true");
  CHECK(e.renorm == Renorm::Batch);
  CHECK(e.renorm_spread.ddof == 1);
  CHECK(e.renorm_spread.eps == 0.5);
  CHECK(e.renorm_spread.keep_mean);
  e = line_of("verl::gdpo renorm.over=group");
  CHECK(e.renorm == Renorm::PerGroup);
  CHECK(e.renorm_spread.count_eps == 1e-8);
  CHECK(line_of("gdpo renorm=group").renorm == Renorm::PerGroup);
  CHECK(line_of("gdpo renorm=none").renorm == Renorm::None);

  const auto with = [](const char* line, const auto& check) {
    std::visit(check, runtime::configured_estimator(line));
  };
  with("gdpo_shrunk scale.prior_dof=3 scale.equal_groups=include scale.eps_at=std_or_one",
       [](const auto& x) {
         if constexpr (std::is_same_v<std::decay_t<decltype(x.scale)>, gdpo::scale::ShrunkStd>) {
           CHECK(x.scale.prior_dof == 3);
           CHECK(x.scale.equal_groups == gdpo::EqualGroups::Include);
           CHECK(x.scale.eps_at == gdpo::EpsAt::StdOrOne);
         } else {
           FAIL("gdpo_shrunk has ShrunkStd");
         }
       });
  with(
      "grpo missing.entry=reject missing.row=exclude singleton=error penalty.coef=0.25 "
      "penalty.reward=1",
      [](const auto& x) {
        CHECK(x.penalty.coef == 0.25);
        CHECK(x.penalty.reward == 1);
        CHECK(x.missing.entry == gdpo::MissingEntry::Reject);
        CHECK(x.missing.row == gdpo::MissingRow::Exclude);
        CHECK(x.singleton == gdpo::Singleton::Error);
      });

  // A name alone, in every estimator: its own settings; and each setting that it lists can be set.
  for (const std::string& name : runtime::estimator_names()) {
    INFO(name);
    const auto named = runtime::estimator(name);
    CHECK(runtime::configured_estimator(name).index() == named.index());
    CHECK(product::describe(line_of(name.c_str())) ==
          product::describe(
              std::visit([](const auto& x) { return product::settings_of(x); }, named)));
    CHECK_NOTHROW(runtime::configured_estimator(name + " singleton=nan missing.entry=skip"));
  }

  const auto refused = [](const char* line) {
    return message_of([line] { runtime::configured_estimator(line); });
  };
  const std::string of = "gdpo::runtime::configured_estimator: ";
  std::string known;
  for (const std::string& name : runtime::estimator_names())
    known += (known.empty() ? "" : ", ") + name;
  CHECK(refused("") == "gdpo::runtime::estimator: name: given ''; needed: one of " + known);
  CHECK(
      refused("gdpo::trl::gdpo") ==
      "gdpo::runtime::estimator: name: given 'gdpo::trl::gdpo'; needed: 'trl::gdpo', as names have "
      "neither gdpo:: before nor _loss behind them");
  // What stands in no trainer's namespace is a type in C++, which the message says.
  const auto is_type = [&](const std::string& name, const std::string& type, auto estimator) {
    CHECK(std::holds_alternative<decltype(estimator)>(runtime::estimator(name)));
    for (const std::string& given : {"gdpo::" + name, type}) {
      CHECK(refused(given.c_str()) == "gdpo::runtime::estimator: name: given '" + given +
                                          "'; needed: '" + name + "', the name of the type " +
                                          type);
    }
    return 1;
  };
  std::ptrdiff_t types = is_type("gdpo", "gdpo::Gdpo", gdpo::Gdpo{});
  types += is_type("grpo", "gdpo::Grpo", gdpo::Grpo{});
  types += is_type("dr_grpo", "gdpo::DrGrpo", gdpo::DrGrpo{});
  types += is_type("rloo", "gdpo::Rloo", gdpo::Rloo{});
  types += is_type("maxrl", "gdpo::MaxRl", gdpo::MaxRl{});
  types += is_type("gdpo_shrunk", "gdpo::ShrunkGdpo", gdpo::ShrunkGdpo{});
  types += is_type("grpo_shrunk", "gdpo::ShrunkGrpo", gdpo::ShrunkGrpo{});
  const auto& names = runtime::estimator_names();
  CHECK(types == std::count_if(names.begin(), names.end(), [](const std::string& name) {
          return name.find("::") == std::string::npos;
        }));
  CHECK(refused("gdpo sequence") == of + "line: given 'sequence'; needed: SETTING=VALUE");
  CHECK(refused("gdpo scale.ddof=0.5") == of + "scale.ddof: given '0.5'; needed: an integer");
  CHECK(refused("gdpo scale.of=all").find("needed: one of group, batch, batch_centered, within") !=
        std::string::npos);
  CHECK(refused("gdpo missing.entry=drop")
            .find(of + "missing.entry: given 'drop'; needed: one of skip, zero, ") == 0);
  CHECK(refused("gdpo renorm=rows")
            .find(of + "renorm: given 'rows'; needed: one of none, batch, group, tokens, "
                       "verl::masked_whiten, ") == 0);
  // RLOO has no scale to be set, and without a renormalization only what that runs over.
  CHECK(refused("rloo scale.eps=1") ==
        of + "line: given the setting 'scale.eps'; needed: one of renorm, renorm.over, "
             "missing, missing.entry, missing.row, missing.infinite, missing.unused, singleton, "
             "penalty.coef, penalty.reward, reward_clip, reward_clip.lo, reward_clip.hi, clip, "
             "clip.lo, clip.hi");
  CHECK(refused("rloo renorm.eps=1").find(of + "line: given the setting 'renorm.eps'") == 0);
  // The end of a name, where no other setting of this estimator ends so.
  CHECK(refused("trl::gdpo eps=1") ==
        of + "line: given the setting 'eps'; needed: one of scale.eps, renorm.eps");
  CHECK(refused("grpo eps=two") == of + "eps: given 'two'; needed: a number");
  std::visit([](const auto& x) { CHECK(x.penalty.coef == 0.25); },
             runtime::configured_estimator("gdpo coef=0.25"));
  const auto eps_of = [](const char* line) {
    return std::visit([](const auto& x) { return product::settings_of(x); },
                      runtime::configured_estimator(line))
        .scale_spread.eps;
  };
  CHECK(eps_of("trl::grpo eps=0.25") == 0.25);
}

}  // namespace estimators_test
