// labels: none
// Simulated steps of every loss by name: policies over a small vocabulary, tokens sampled from the
// old one, an update of the usual size. gdpo::diagnose finds nothing in a healthy step, and one
// mistake at a time, made in the same steps, each by its name.
#include <gdpo/diagnose.hpp>
#include <gdpo/runtime.hpp>
#include <random>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace healthy_runs_test {

namespace {

using gdpo::index_t;
constexpr index_t rows = 32, width = 100, group = 8, vocabulary = 24;
const double inf = std::numeric_limits<double>::infinity();

/// How the policy has moved since the rollout.
struct Update {
  double noise = 0;      ///< Std of what is added to each logit.
  double pulled = 0;     ///< Times the advantage, added to the logit of the sampled token.
  bool upwards = false;  ///< All advantages are positive.
};

/// A step: 4 prompts with 8 completions each, of 20 to 100 tokens.
struct Step {
  std::vector<double> logp, old_logp, ref_logp, rollout_logp, teacher_logp, entropies;
  std::vector<double> advantages, rewards, row_weights = std::vector<double>(rows, 1.0);
  std::vector<unsigned char> mask;
  std::vector<int> truncated = std::vector<int>(rows, 0);
  gdpo::GroupReport report;

  Step(unsigned seed, const Update& update) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    for (index_t i = 0; i < rows; ++i)
      rewards.push_back(uniform(random) < 0.4 || i % group == 0 ? 1 : i % group == 1 ? 0 : 0.25);
    advantages =
        gdpo::advantages(gdpo::view(rewards), gdpo::groups_of(group), gdpo::Grpo{}, &report);
    for (double& a : advantages) a = update.upwards ? std::abs(a) : a;
    std::vector<double> old(vocabulary), policy(vocabulary), ref(vocabulary), teacher(vocabulary);
    for (index_t i = 0; i < rows; ++i) {
      const index_t length = 20 + static_cast<index_t>(uniform(random) * 81);
      truncated[static_cast<std::size_t>(i)] = length == width;
      for (index_t t = 0; t < width; ++t) {
        for (double& x : old) x = 2.5 * normal(random);
        const std::size_t token = sampled(old, uniform(random));
        for (std::size_t v = 0; v < old.size(); ++v) {
          const double of_update = normal(random), of_ref = normal(random);
          policy[v] = old[v] + update.noise * of_update;
          ref[v] = old[v] + 0.1 * of_ref, teacher[v] = old[v] + 0.3 * normal(random);
        }
        policy[token] += update.pulled * advantages[static_cast<std::size_t>(i)];
        mask.push_back(t < length);
        logp.push_back(log_prob(policy, token)), old_logp.push_back(log_prob(old, token));
        ref_logp.push_back(log_prob(ref, token)), teacher_logp.push_back(log_prob(teacher, token));
        rollout_logp.push_back(old_logp.back() + 0.005 * normal(random));
        entropies.push_back(entropy(policy));
      }
    }
  }
  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    const auto tokens = [](const auto& x) { return gdpo::view(x.data(), rows, width); };
    b.logp = tokens(logp), b.old_logp = tokens(old_logp), b.ref_logp = tokens(ref_logp);
    b.rollout_logp = tokens(rollout_logp), b.teacher_logp = tokens(teacher_logp);
    b.entropies = tokens(entropies), b.mask = tokens(mask);
    b.advantages = gdpo::view(advantages), b.row_weights = gdpo::view(row_weights);
    b.truncated = gdpo::view(truncated);
    return b;
  }

 private:
  static double logsumexp(const std::vector<double>& logits) {
    double sum = 0;
    for (const double x : logits) sum += std::exp(x);
    return std::log(sum);
  }
  static double log_prob(const std::vector<double>& logits, std::size_t token) {
    return logits[token] - logsumexp(logits);
  }
  static double entropy(const std::vector<double>& logits) {
    const double all = logsumexp(logits);
    double mean = 0;
    for (const double x : logits) mean += x * std::exp(x - all);
    return all - mean;
  }
  static std::size_t sampled(const std::vector<double>& logits, double left) {
    left *= std::exp(logsumexp(logits));
    std::size_t token = 0;
    for (; token + 1 < logits.size(); ++token) {
      left -= std::exp(logits[token]);
      if (left < 0) break;
    }
    return token;
  }
};

gdpo::runtime::Loss loss_of(const std::string& name) {
  gdpo::runtime::Loss loss = gdpo::runtime::loss(name);
  std::visit(
      [](auto& l) {
        using Mode = gdpo::Aggregate::Mode;
        if (l.aggregate.mode == Mode::SeqMeanTokenSumNorm && !l.aggregate.reads_width())
          l.aggregate.constant = width;
      },
      loss);
  return loss;
}
gdpo::Normalizer counts_of(const Step& step) {
  gdpo::Normalizer n = gdpo::count(step.batch());
  n.given = n.tokens;
  return n;
}
gdpo::LossResult result_of(const std::string& name, const Step& step, const gdpo::Normalizer& n) {
  return std::visit([&](const auto& l) { return l(step.batch(), n); }, loss_of(name));
}
gdpo::LossResult result_of(const std::string& name, const Step& step) {
  return result_of(name, step, counts_of(step));
}
bool has_kl(const std::string& name) {
  return std::visit([](const auto& l) { return l.kl.beta != 0; }, loss_of(name));
}

std::string names_of(const std::vector<gdpo::Finding>& findings) {
  std::string names;
  for (const gdpo::Finding& f : findings)
    names += (names.empty() ? "" : ", ") + f.name + (f.subject.empty() ? "" : " " + f.subject);
  return names;
}
/// Whether one of the findings is called so.
bool finds(const std::vector<gdpo::Finding>& findings, const std::string& name) {
  UNSCOPED_INFO("found: " + names_of(findings));
  for (const gdpo::Finding& f : findings) {
    if (name == f.name + (f.subject.empty() ? "" : " " + f.subject)) return true;
  }
  return false;
}

gdpo::DiagnoseSettings settings(bool first_step) {
  gdpo::DiagnoseSettings s;
  s.first_step = first_step, s.later_step = !first_step, s.whole_step = true;
  s.log_ratio_surrogate = true;  // that of trinity::sppo is
  return s;
}
const gdpo::DiagnoseSettings first = settings(true), later = settings(false);

template <class F>
void for_each_loss(const F& f) {
  for (const std::string& name : gdpo::runtime::loss_names()) {
    INFO(name);
    f(name);
  }
}

/// Whether a setting of a loss has this value.
bool has_setting(const std::string& name, const char* setting, const char* value) {
  for (const auto& s : gdpo::runtime::settings(gdpo::runtime::loss(name)))
    if (s.name == setting) return s.value == value;
  return false;
}
/// Whether a loss has the setting.
bool knows_setting(const std::string& name, const char* setting) {
  for (const auto& s : gdpo::runtime::settings(gdpo::runtime::loss(name)))
    if (s.name == setting) return true;
  return false;
}
/// Whether a loss is CISPO without a lower bound of the ratio.
bool clips_from_above_alone(const std::string& name) {
  return has_setting(name, "factor.min_ratio", "0");
}
/// Whether a loss has no bound of the ratio.
bool clips_nothing(const std::string& name) {
  if (knows_setting(name, "surrogate.epsilon"))
    return has_setting(name, "surrogate.epsilon", "inf");
  if (knows_setting(name, "factor.low_prime"))
    return has_setting(name, "factor.low", "inf") && has_setting(name, "factor.high", "inf");
  const bool bounded_factor =
      !has_setting(name, "factor.max_ratio", "inf") && knows_setting(name, "factor.max_ratio");
  if (!knows_setting(name, "surrogate.low")) return !bounded_factor;
  const bool from_below =
      !has_setting(name, "surrogate.low", "inf") && !has_setting(name, "surrogate.low", "1");
  return !from_below && has_setting(name, "surrogate.high", "inf");
}
/// Whether the KL term of a loss is on and against the old policy, as that of KL-Cov.
bool is_against_old(const std::string& name) {
  return has_kl(name) && has_setting(name, "kl.against", "old");
}
/// Whether it is against the reference policy.
bool is_against_ref(const std::string& name) { return has_setting(name, "kl.against", "ref"); }

}  // namespace

TEST_CASE("nothing is found in healthy steps of any loss", "[diagnose][healthy]") {
  // The size of updates: a token's ratio is off 1 by 0.2 % to 8 %, typically.
  const Update updates[] = {{0.002, 0}, {0.01, 0.005}, {0.05, 0.03}, {0.08, 0}, {0.02, 0.06}};
  unsigned seed = 1;
  for (const Update& update : updates) {
    const Step step(seed++, update), sampled(seed++, Update{});
    INFO("noise " << update.noise << ", pulled " << update.pulled);
    for_each_loss([&](const std::string& name) {
      const gdpo::LossResult r = result_of(name, step);
      CHECK(names_of(gdpo::diagnose(r, step.report, later)) == "");
      CHECK(names_of(gdpo::diagnose(r, step.report)) == "");
      CHECK(names_of(gdpo::diagnose(r.metrics)) == "");
      CHECK(names_of(gdpo::diagnose(result_of(name, sampled), sampled.report, first)) == "");
    });
  }
}

TEST_CASE("healthy steps of other kinds: filtered, on-policy, nearly certain, in parts",
          "[diagnose][healthy]") {
  const Step drawn_better(31, {0.02, 0.05}), eager(35, {0.02, 0.2, true}), drawn_on_policy(32, {}),
      step(34, {0.03, 0.01});
  for_each_loss([&](const std::string& name) {
    // Only completions that are better than their group are kept, and the policy learns them.
    Step better = drawn_better;
    for (index_t i = 0; i < rows; ++i) {
      const bool kept = better.advantages[static_cast<std::size_t>(i)] > 0;
      for (index_t t = 0; t < width && !kept; ++t)
        better.mask[static_cast<std::size_t>(i * width + t)] = 0;
    }
    CHECK(names_of(gdpo::diagnose(result_of(name, better), better.report, later)) == "");
    // Far from the rollout, but in the direction of the advantages.
    CHECK_FALSE(finds(gdpo::diagnose(result_of(name, eager), later), "swapped_logp"));
    // A trainer that makes one step a rollout, and does not say so.
    Step on_policy = drawn_on_policy;
    on_policy.old_logp = on_policy.logp;
    CHECK(names_of(gdpo::diagnose(result_of(name, on_policy), on_policy.report)) ==
          (is_against_old(name) ? "kl_zero" : ""));
    // Log-probs near 0 in 16 bits, where rounding makes some of them positive.
    Step certain = step;
    std::mt19937 random(5);
    std::uniform_real_distribution<double> rounding(-0.06, 0.06);
    for (auto* array : {&certain.logp, &certain.old_logp, &certain.ref_logp})
      for (double& x : *array) x = rounding(random);
    CHECK(names_of(gdpo::diagnose(result_of(name, certain), certain.report)) == "");
    // Counts of a step of four micro-batches, seen by one of them and then by all.
    gdpo::Normalizer n = counts_of(step);
    n = n + n + n + n;
    const gdpo::LossResult part = result_of(name, step, n);
    CHECK(names_of(gdpo::diagnose(part, step.report)) == "");
    CHECK(names_of(gdpo::diagnose(merge(merge(part, part), merge(part, part)), later)) == "");
  });
}

TEST_CASE("each mistake with log-probs is found in any loss", "[diagnose][healthy]") {
  const Step usual(41, {0.03, 0.02}), moved(42, {0.5, 0.02}), far_off(43, {0.8, 0});
  for_each_loss([&](const std::string& name) {
    Step probabilities = usual;
    for (auto* array : {&probabilities.logp, &probabilities.old_logp, &probabilities.ref_logp})
      for (double& x : *array) x = std::exp(x);
    CHECK(finds(gdpo::diagnose(result_of(name, probabilities)), "positive_logp"));
    Step old_ones = usual;  // only those of the rollout
    for (double& x : old_ones.old_logp) x = std::exp(x);
    CHECK(finds(gdpo::diagnose(result_of(name, old_ones)), "positive_logp"));

    Step swapped = moved;
    CHECK_FALSE(finds(gdpo::diagnose(result_of(name, swapped)), "swapped_logp"));
    std::swap(swapped.logp, swapped.old_logp);
    CHECK(finds(gdpo::diagnose(result_of(name, swapped)), "swapped_logp"));

    Step unfilled = usual;
    unfilled.old_logp = unfilled.logp;
    CHECK(finds(gdpo::diagnose(result_of(name, unfilled), later), "ratio_one"));

    // The trainer computes other log-probs than the rollout.
    CHECK(finds(gdpo::diagnose(result_of(name, moved), first), "first_step_ratio"));

    // With an upper bound alone at most the tokens with a positive advantage are clipped: no share
    // of them is out of the ordinary.
    if (!clips_from_above_alone(name) && !clips_nothing(name))
      CHECK(finds(gdpo::diagnose(result_of(name, far_off)), "clip_fraction"));

    Step same = usual;
    same.ref_logp = same.logp;
    CHECK(finds(gdpo::diagnose(result_of(name, same)), "kl_zero") ==
          (has_kl(name) && is_against_ref(name)));
  });
}

TEST_CASE("inputs, rewards and lengths that are wrong are found in any loss",
          "[diagnose][healthy]") {
  const Step usual(51, {0.03, 0.02});
  for_each_loss([&](const std::string& name) {
    const auto found = [&](const Step& step, const char* what) {
      return finds(gdpo::diagnose(result_of(name, step), step.report), what);
    };
    Step step = usual;
    step.logp[3] = -inf;
    CHECK(found(step, "non_finite logp"));
    step = usual, step.advantages[2] = inf;
    CHECK(found(step, "non_finite advantages"));
    step = usual, step.row_weights[2] = inf;
    CHECK(found(step, "non_finite weights"));
    step = usual, step.entropies.assign(step.entropies.size(), 0.01);
    CHECK(found(step, "entropy_collapse"));
    step = usual, step.truncated.assign(rows, 1);
    CHECK(found(step, "all_truncated"));
    step = usual, step.advantages.assign(rows, 0.0);
    CHECK(finds(gdpo::diagnose(result_of(name, step)), "dead_groups"));
  });
}

TEST_CASE("counts that do not fit are refused or found in any loss", "[diagnose][healthy]") {
  int refused = 0, given = 0;
  const Step step(61, {0.03, 0.02});
  const gdpo::Normalizer n = counts_of(step);
  for_each_loss([&](const std::string& name) {
    const auto over = result_of(name, step).over;
    gdpo::Normalizer fewer = n;  // of a micro-batch that is a seventh of this one
    fewer.tokens = std::floor(n.tokens / 7), fewer.rows = std::floor(n.rows / 7);
    fewer.non_empty_rows = fewer.rows, fewer.given = fewer.tokens;
    const std::string message = message_of([&] { result_of(name, step, fewer); });
    if (over == static_cast<index_t>(gdpo::Over::Given)) {  // any number may be right
      CHECK(message == "no error");
      gdpo::Normalizer twice = n;
      twice.given = 2 * n.given;
      const gdpo::LossResult r = result_of(name, step, twice);
      CHECK(finds(gdpo::diagnose(r, later), "counts given"));
      CHECK_FALSE(finds(gdpo::diagnose(r), "counts given"));
      ++given;
    } else if (over < 0) {  // a sum over tokens: nothing divides it
      CHECK(message == "no error");
    } else {
      REQUIRE((over >= 0 && over <= 2));
      const std::string count = over == 0 ? "tokens" : over == 1 ? "rows" : "non_empty_rows";
      CHECK(message.find("gdpo::PolicyLoss: normalizer." + count + ": given ") == 0);
      // Two micro-batches, each divided by its own counts.
      const gdpo::LossResult own = result_of(name, step);
      CHECK(message_of([&] { merge(own, own); }).find("gdpo::merge: normalizer." + count) == 0);
      // What a device has not refused, or a trainer has put together by itself.
      gdpo::LossResult sum = own;
      sum.metrics = merge(own.metrics, own.metrics);
      CHECK(finds(gdpo::diagnose(sum), "counts " + count));
      // Counted twice.
      CHECK(finds(gdpo::diagnose(result_of(name, step, n + n), later), "counts " + count));
      ++refused;
    }
  });
  CHECK((refused > 10 && given > 1));
}

}  // namespace healthy_runs_test
