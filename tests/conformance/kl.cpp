// Cases of kind kl: an estimate per token and the gradient of their sum; or rewards with a penalty
// per token.
#include <string>
#include <utility>

#include "loss.hpp"

namespace conformance {
namespace {

using gdpo::AnyKl;
using gdpo::KlEstimator;

// The value of the term at every token, from calling the policy itself.
template <class S>
std::vector<double> values(const AnyKl& term, const TokenInputs& in) {
  std::vector<double> out;
  for (std::size_t k = 0; k < in.logp.size(); ++k) {
    if (!in.mask.empty() && in.mask[k] == 0) {
      out.push_back(0);
      continue;
    }
    gdpo::Token<S> token{};
    token.logp = static_cast<S>(in.logp[k]);
    token.ref_logp = static_cast<S>(in.ref_logp[k]);
    token.old_logp = in.old_logp.empty() ? token.logp : static_cast<S>(in.old_logp[k]);
    token.token_log_ratio = token.log_ratio = token.logp - token.old_logp;
    token.ratio = gdpo::math::exp_parts(token.log_ratio).exp;
    out.push_back(static_cast<double>(term(token).value));
  }
  return out;
}

// The sum of the term over tokens and its gradient, from a loss with nothing else: advantage 0,
// beta 1 and TokenSum.
LossRun sum_of(const AnyKl& term, const TokenInputs& in, Comparison& comparison) {
  gdpo::runtime::LossAt<gdpo::level::Token<>> loss;
  loss.kl = term;
  loss.kl.beta = 1;
  loss.aggregate = gdpo::aggregate::token_sum();
  return padded_and_packed(
      in, [&](const TokenInputs& layout) { return run_loss(loss, layout); }, comparison);
}

struct Estimates {
  std::vector<double> values, gradient;
};

Estimates estimates(const AnyKl& term, const TokenInputs& in, Comparison& comparison) {
  Estimates out{in.target.single ? values<float>(term, in) : values<double>(term, in), {}};
  const LossRun run = sum_of(term, in, comparison);
  double sum = 0, size = 0;
  for (const double value : out.values) sum += value, size += gdpo::math::abs(value);
  // The loss adds the same numbers in another order: each partial sum is rounded once, on both
  // sides.
  const double rounding = in.target.single ? 0x1p-23 : 0x1p-52;
  const double tolerance = static_cast<double>(out.values.size()) * rounding * size;
  comparison.law(gdpo::math::abs(run.result.kl_loss - sum) <= tolerance,
                 "kl loss of the host: " + gdpo::contract::text(run.result.kl_loss) +
                     ", sum over tokens " + gdpo::contract::text(sum));
  out.gradient = run.gradient;
  return out;
}

TokenInputs token_inputs_of(const Case& recorded) {
  TokenInputs in = token_inputs(recorded);
  if (in.ref_logp.empty()) throw BadGolden("ref_logp is missing");
  in.advantages.assign(static_cast<std::size_t>(in.rows), 0.0);
  return in;
}

void compare_estimates(AnyKl term, Params& params, const TokenInputs& in, Comparison& comparison) {
  term.output = params.interval("output_clamp");
  const Estimates got = estimates(term, in, comparison);
  params.all_read();
  comparison.output("kl", of_tokens(in, got.values));
  comparison.output("grad_logp", of_tokens(in, got.gradient));
}

// The estimator by its name in verl. A "+" at the end keeps the value and takes the gradient of k2.
void kl_penalty(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const std::string name =
      params.choice("kl_penalty", {"kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+",
                                   "abs+", "mse+", "k2+", "low_var_kl+", "k3+"});
  const bool straight_through = name.back() == '+';
  if (params.has("straight_through_k2_grad"))
    params.fixed("straight_through_k2_grad", straight_through);
  const TokenInputs in = token_inputs_of(recorded);
  AnyKl term = gdpo::runtime::kl(name);
  term.input = params.interval("input_clamp");
  compare_estimates(term, params, in, comparison);
}

// An estimator of the same name in verl; `name` is the trainer's word for the parameter.
Handler kl_estimator(const char* name) {
  return [name](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    AnyKl term = gdpo::runtime::kl(params.choice(name, {"k1", "k2", "k3", "abs", "low_var_kl"}));
    // NeMo-RL: weights of value 1 that carry the gradient of the score function.
    if (params.has("importance_weights")) {
      params.remark("importance_weights");
      term.gradient = gdpo::KlGradient::ScoreFunction;
    }
    params.without_effect({"masked"});
    // OpenRLHF: the value as it is, with the gradient of k2, which the ratio to the old policy
    // weights where that is known.
    if (params.has("unbiased_gradient") && params.flag("unbiased_gradient")) {
      const bool weighted = params.has("is_weight_clip");
      term.gradient =
          weighted ? gdpo::KlGradient::ImportanceWeightedK2 : gdpo::KlGradient::StraightThroughK2;
      if (weighted) term.max_weight = params.number("is_weight_clip");
    }
    term.input = params.interval("input_clamp");
    // OpenRLHF bounds logp - ref_logp, the library its negative.
    if (recorded.source == "openrlhf") term.input = {-term.input.hi, -term.input.lo};
    compare_estimates(term, params, token_inputs_of(recorded), comparison);
  };
}

// Trinity-RFT has a class for each estimator.
Handler trinity_kl(const AnyKl& of_class) {
  return [of_class](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    AnyKl term = of_class;
    if (term.gradient == gdpo::KlGradient::ClippedImportanceWeighted)
      params.of_preset("ratio_clamp", gdpo::Bounds{0, term.max_weight});
    params.without_effect({"ratio_clamp"});
    term.input = params.interval("input_clamp");
    compare_estimates(term, params, token_inputs_of(recorded), comparison);
  };
}

// open_instruct: its four estimators in one case.
void estimate_kl(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  params.fixed("estimators", Json{"diff", "diff^2/2", "expm1(-diff)+diff", "ratio*diff"});
  const gdpo::Bounds clamp = params.interval("input_clamp");
  params.all_read();
  const TokenInputs in = token_inputs_of(recorded);
  Array got{{0, static_cast<std::size_t>(in.rows), static_cast<std::size_t>(in.width)}, {}},
      gradient = got;
  const auto add = [&](KlEstimator estimator, gdpo::KlGradient rule = gdpo::KlGradient::Direct) {
    AnyKl term;
    term.estimator = estimator, term.gradient = rule;
    term.input = clamp;
    const Estimates of_term = estimates(term, in, comparison);
    got.data.insert(got.data.end(), of_term.values.begin(), of_term.values.end());
    gradient.data.insert(gradient.data.end(), of_term.gradient.begin(), of_term.gradient.end());
    ++got.shape[0], ++gradient.shape[0];
  };
  add(KlEstimator::K1);
  add(KlEstimator::K2);
  add(KlEstimator::K3);
  add(KlEstimator::K1, gdpo::KlGradient::ImportanceWeighted);
  comparison.output("kl", got);
  comparison.output("grad_logp", gradient);
}

// verl: the scores of tokens minus kl_ratio times k1 between the policy that sampled and the
// reference. The scores differ from token to token, so here every token is a row of its own.
void compute_rewards(const Case& recorded, Comparison& comparison) {
  Params params(recorded.params);
  const gdpo::penalty::Token<> penalty{params.number("kl_ratio")};
  params.all_read();
  only(recorded.inputs, {"token_level_scores", "old_logp", "ref_logp"});
  const Array scores = array_of(recorded.inputs.at("token_level_scores"));
  const Array old_logp = array_of(recorded.inputs.at("old_logp")),
              ref_logp = array_of(recorded.inputs.at("ref_logp"));
  if (old_logp.shape != scores.shape || ref_logp.shape != scores.shape)
    throw BadGolden("arrays of different shapes");
  const auto n = static_cast<gdpo::index_t>(scores.data.size());
  const auto column = [n](const Array& a) { return gdpo::view(a.data.data(), n, 1); };
  Array rewards{scores.shape, std::vector<double>(scores.data.size())};
  gdpo::token_advantages_into(gdpo::view(scores.data), {}, column(old_logp), column(ref_logp),
                              penalty, gdpo::view(rewards.data.data(), n, 1));
  comparison.output("rewards", rewards);
}

}  // namespace

void add_kl_estimates(Registry& registry) {
  registry.add_loss("verl", "kl", "kl_penalty", kl_penalty);
  registry.add("verl", "kl", "compute_rewards", compute_rewards);
  registry.add_loss("nvlabs_gdpo", "kl", "kl_penalty", kl_penalty);
  registry.add_loss("liger", "kl", "k3_loss_fn", kl_penalty);
  registry.add_loss("open_instruct", "kl", "estimate_kl", estimate_kl);
  registry.add_loss("areal", "kl", "KLEstimator", kl_estimator("kl_estimator"));
  registry.add_loss("openrlhf", "kl", "compute_approx_kl", kl_estimator("kl_estimator"));
  registry.add_loss("skyrl", "kl", "compute_approx_kl", kl_estimator("kl_estimator_type"));
  registry.add_loss("nemo_rl", "kl", "calculate_kl", kl_estimator("kl_type"));
  registry.add_loss("slime", "kl", "compute_approx_kl", kl_estimator("kl_loss_type"));
  registry.add_loss("torchrl", "kl", "k3_kl_token_estimate", kl_penalty);
  const auto add_trinity = [&](const char* function, const AnyKl& term) {
    registry.add_loss("trinity", "kl", function, trinity_kl(term));
  };
  add_trinity("K1Fn.calculate_kl", gdpo::runtime::kl("k1"));
  add_trinity("K2Fn.calculate_kl", gdpo::runtime::kl("k2"));
  add_trinity("K3Fn.calculate_kl", gdpo::runtime::kl("k3"));
  add_trinity("LowVarKLFn.calculate_kl", gdpo::runtime::kl("k3"));
  add_trinity("AbsFn.calculate_kl", gdpo::runtime::kl("abs"));
  add_trinity("CorrectedK3Fn.calculate_kl",
              gdpo::runtime::detail::any_kl(gdpo::trinity::corrected_k3_kl));
}

}  // namespace conformance
