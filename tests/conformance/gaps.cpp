#include "gaps.hpp"

#include <algorithm>
#include <vector>

#include "conditions.hpp"

namespace conformance {
namespace {

// Tokens have weights, and some are padding.
bool weights_of_padding(const Case& c) {
  for (const char* name : {"vllm_is_ratio", "importance_sampling_ratio"}) {
    if (c.inputs.contains(name) && array_of(c.inputs.at(name)).shape.back() > 1) return padded(c);
  }
  return false;
}
// Some row has no valid token.
bool empty_row(const Case& c) {
  const Array mask = array_of(c.inputs.at("response_mask"));
  const auto width = static_cast<std::ptrdiff_t>(mask.shape.at(1));
  for (auto row = mask.data.begin(); row != mask.data.end(); row += width)
    if (std::all_of(row, row + width, [](double valid) { return valid == 0; })) return true;
  return false;
}
bool nan_loss(const Case& c) { return c.expected.at("loss").is_null(); }
bool incomplete_group(const Case& c) {
  return c.inputs.contains("rewards") &&
         array_of(c.inputs.at("rewards")).shape[0] % c.params.at("group_size").get<std::size_t>() !=
             0;
}

struct Gap {
  const char *source, *kind;
  std::vector<const char*> functions;
  When when;
  const char* reason;
};

// What the library lacks. A new policy or preset takes its lines out: a case that is listed and
// passes fails.
constexpr const char *kLuspo = "the mean of LUSPO runs over the padded row and reads what is there",
                     *kWeightsOfPadding =
                         "the ratio of a row takes the sampler's weights of its padding in";

const std::vector<Gap>& gaps() {
  const When every = always;
  static const std::vector<Gap> all{
      {"trl",
       "loss",
       {"GRPOTrainer._compute_loss"},
       is("loss_type", {"luspo"}) && before({1, 10}) && When(padded) &&
           is("importance_sampling_level", {"sequence"}) && is("beta", {0.04}),
       kLuspo},
      {"trl",
       "loss",
       {"RLOOTrainer._compute_loss", "GMPOTrainer._compute_loss"},
       empty_row,
       "TRL adds the advantage of a row without tokens to the value of the loss"},
      {"trl",
       "aggregate",
       {"GRPOTrainer.get_gamma_weights"},
       weights_of_padding,
       kWeightsOfPadding},

      {"liger",
       "loss",
       {"LigerFusedLinearGRPOFunction.ppo_loss_fn"},
       is("loss_type", {"luspo"}) && When(padded) &&
           is("importance_sampling_level", {"sequence"}) && is("beta", {0.04}),
       kLuspo},
      {"liger",
       "loss",
       {"LigerFusedLinearGRPOFunction.ppo_loss_fn"},
       is("loss_type", {"vespo"}) && When(weights_of_padding),
       kWeightsOfPadding},
      {"liger", "aggregate", {"get_gamma_weights"}, weights_of_padding, kWeightsOfPadding},

      {"unsloth_zoo",
       "logp",
       {"_truncated_support_logps", "selective_log_softmax"},
       every,
       "log-probs over the tokens that sampling keeps (kind logp)"},

      {"verl",
       "loss",
       {"compute_policy_loss_bypass_mode"},
       nan_loss,
       "a loss of NaN where no token is left, which is 0 here"},

      {"trinity",
       "advantage",
       {"GRPOGroupedAdvantage"},
       has("rank_penalty"),
       "the mean and std of rewards that are penalized by the rank of their log-probs center and "
       "scale the plain ones"},

      {"areal",
       "loss",
       {"ppo_actor_loss_fn"},
       is("rejection_sampling.action", {"clamp"}) && is("rejection_sampling.level", {"sequence"}) &&
           is("rejection_sampling.metric", {"kl_k1", "kl_k2", "kl_k3"}),
       "AReaL takes the bound of a KL for a bound of the ratio, in the rows whose KL is outside: "
       "0.04 nats there make a weight of 0.04"},
      {"areal",
       "advantage",
       {"Normalization"},
       When(incomplete_group) && is("mean_level", {"group"}),
       "rows after the last whole group, divided by eps"},

      {"torchrl",
       "advantage",
       {"MCAdvantage"},
       [](const Case& c) {
         return c.inputs.at("group_ids").size() > c.params.at("grpo_size").get<std::size_t>();
       },
       "a choice of rows among more than a group has"},
  };
  return all;
}

}  // namespace

std::string gap(const Case& recorded) {
  for (const Gap& line : gaps()) {
    const bool of_function = std::find(line.functions.begin(), line.functions.end(),
                                       recorded.function) != line.functions.end();
    if (recorded.source == line.source && recorded.kind == line.kind && of_function &&
        line.when(recorded))
      return line.reason;
  }
  return "";
}

}  // namespace conformance
