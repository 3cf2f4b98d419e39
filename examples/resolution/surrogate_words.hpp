#pragma once

#include <string>

namespace resolution {

/// Where a surrogate is from.
struct Source {
  const char* name = nullptr;  ///< Null: none.
  const char* url = nullptr;
};

/// What reports say of a surrogate, factor or map. Formulas are of a token's loss: A is the
/// advantage, p the token's probability, r the ratio, and sg(x) is x without its gradient.
struct SurrogateWords {
  const char* type;  ///< Its type in the library, without gdpo::.
  const char* title;
  const char* value;
  const char* derivative;  ///< By log p.
  const char* text;        ///< What it does and what it is for.
  const char* used_by;
  Source sources[4];
  bool reads_log_ratio = false;  ///< Its picture has log r on the x axis.
};

/// The words of all surrogates, factors and maps, in the order of reports. What has a factor or a
/// map is described by that, and not by its surrogate.
inline constexpr SurrogateWords surrogate_words[] = {
    {"surrogate::Ratio",
     "Clipped ratio (PPO)",
     "max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)), at most -A dual where A < 0",
     "-A r, and 0 where a bound holds the ratio",
     "A token stops counting once its ratio has moved far enough to where its advantage "
     "pushes it. One that has moved the other way keeps its gradient, which leads it back. A "
     "high above low (clip-higher) leaves tokens of low probability room to grow. Where A < "
     "0, the loss of a ratio above the range grows without end, unless dual or delta is set. "
     "Without bounds it is the policy gradient with importance weights. A range as narrow as "
     "that of GSPO is for the mean ratio of a whole sequence.",
     "all trainers with presets here.",
     {{"PPO", "https://arxiv.org/abs/1707.06347"},
      {"dual clip", "https://arxiv.org/abs/1912.09729"},
      {"clip-higher: DAPO", "https://arxiv.org/abs/2503.14476"},
      {"GSPO", "https://arxiv.org/abs/2507.18071"}}},
    {"surrogate::Soft",
     "Soft gate (SAPO)",
     "-(4 / tau) A q with q = sigmoid(tau (r - 1))",
     "-4 A q (1 - q) r",
     "Instead of a clip, a gate that closes smoothly. At r = 1 it lets the whole gradient -A "
     "r through, and less of it the further the ratio is from 1, on either side; tau says how "
     "fast it closes. There is one tau for A > 0 and a larger one for A < 0, because pushing "
     "one token down raises many others and is the less stable of the two. The value at r = 1 "
     "is -2 A / tau: compare losses by their gradients.",
     "TRL, verl, ms-swift, SkyRL, AReaL, Unsloth and Liger.",
     {{"SAPO", "https://arxiv.org/abs/2511.20347"}, {}, {}, {}}},
    {"surrogate::PositiveReinforce",
     "REINFORCE where A > 0 (UP-GRPO)",
     "-A log p where A > 0, the clipped ratio where A <= 0",
     "-A where A > 0; where A <= 0 as with the clipped ratio",
     "A good completion is learned from with its whole gradient, however far its tokens have "
     "moved; only what pushes tokens down has a clip. So the clip takes away no positive "
     "signal, and still ends the pushing down.",
     "only the paper so far.",
     {{"UP-GRPO", "https://arxiv.org/abs/2607.06987"}, {}, {}, {}}},
    {"surrogate::Clipped",
     "Clipped without a maximum (torchrl's CISPO)",
     "-A clip(r, lower bound, upper bound)",
     "-A r inside the bounds, 0 outside, for either sign of A",
     "The clip of PPO without the maximum with the unclipped branch. A token outside the "
     "bounds has no gradient at all, even where it would lead back. torchrl calls this CISPO; "
     "the CISPO of its paper keeps the gradient of such tokens.",
     "torchrl.",
     {{"torchrl", "https://github.com/pytorch/rl"}, {}, {}, {}}},
    {"surrogate::LogRatio",
     "Log ratio inside a range (sPPO)",
     "-A log r where r is within 1 / (1 + epsilon) and 1 + epsilon, else 0",
     "-A inside the range, 0 outside, for either sign of A",
     "The log ratio in place of the ratio: inside the range every token has the gradient of "
     "REINFORCE, whether it has become more or less likely. Outside it has none, even where it "
     "would lead back. The range is the same on both sides of log r = 0.",
     "Trinity-RFT.",
     {{"sPPO", "https://arxiv.org/abs/2108.05828"}, {}, {}, {}}},
    {"surrogate::Likelihood",
     "Cross entropy (SFT)",
     "max(-log p, floor)",
     "-1, and 0 where -log p is below the floor",
     "The likelihood of the tokens, whatever their advantage and their ratio: supervised "
     "fine-tuning, on its own or added to another loss for the rows of an expert, or for those "
     "with a reward. Drawn for old_logp = 0.",
     "Trinity-RFT, SkyRL, NeMo-RL and prime-rl.",
     {{"CHORD", "https://arxiv.org/abs/2508.11408"},
      {"VAPO", "https://arxiv.org/abs/2504.05118"},
      {},
      {}}},
    {"surrogate::Reinforce",
     "REINFORCE",
     "-A log p",
     "-A",
     "The derivative does not depend on the ratio: every token counts with its advantage. "
     "That is right for tokens that the policy itself has sampled. Older ones need a weight "
     "or a mask from a pre-pass, or one of the detached factors below. Only the gradient "
     "means something; the value is drawn for old_logp = 0.",
     "verl (gpg, and reinforce of its rollout correction), NeMo-RL (disable_ppo_ratio), "
     "Trinity-RFT "
     "(opmd) and ROLL.",
     {{"REINFORCE", "https://doi.org/10.1007/BF00992696"},
      {"GPG", "https://arxiv.org/abs/2504.02546"},
      {},
      {}}},
    {"factor::ClippedRatio",
     "REINFORCE times the clipped ratio (CISPO)",
     "-A sg(clip(r, min_ratio, max_ratio)) log p",
     "-A clip(r, min_ratio, max_ratio)",
     "The ratio is a weight without a gradient, and its bounds limit the size of the weight. "
     "No token is dropped: the rare words at which a chain of thought turns, which PPO clips "
     "first, keep their gradient. With an upper bound alone it is truncated importance "
     "sampling; without bounds it has the gradient of -A r. With masks of a pre-pass it is "
     "the DPPO of verl and the rollout_is of SkyRL.",
     "TRL, verl, ms-swift, NeMo-RL, slime, SkyRL, Trinity-RFT, open-instruct, Liger, Unsloth and "
     "ROLL.",
     {{"CISPO: MiniMax-M1, eq. 4 and 5", "https://arxiv.org/abs/2506.13585"},
      {"DPPO", "https://arxiv.org/abs/2602.04879"},
      {},
      {}}},
    {"factor::SignedRatio",
     "REINFORCE with bounds by the sign of A (TOPR)",
     "-A sg(clip(r, bounds of the sign of A)) log p",
     "-A clip(r, bounds of the sign of A)",
     "TOPR learns from what is good with weight 1, as if it were supervised, and from what is "
     "bad with the ratio, at most 1. A bad token that the policy hardly picks any more has a "
     "small weight, so pushing it down ends by itself. That makes samples of another policy "
     "usable. With the same bounds for both signs it is REINFORCE with truncated importance "
     "sampling.",
     "Trinity-RFT and ROLL.",
     {{"TOPR", "https://arxiv.org/abs/2503.14286"}, {}, {}, {}}},
    {"factor::Gamma",
     "REINFORCE times a gamma kernel (VESPO)",
     "-A sg(e^(lambda + k log W - lambda W)) log p, W the product of the row's ratios",
     "-A e^(lambda + k log W - lambda W)",
     "The weight of a whole sequence: 1 where the policy has not moved, largest where W is k "
     "/ lambda, and falling to 0 on both sides of that without a jump. k and lambda depend on "
     "the sign of A. It replaces the clip for the product of ratios, whose variance grows "
     "with the length. Drawn for rows of one token.",
     "TRL, Unsloth and Liger.",
     {{"VESPO", "https://arxiv.org/abs/2602.10693"}, {}, {}, {}},
     true},
    {"factor::SoftGate",
     "REINFORCE times the gate of SAPO",
     "-A sg((4 / tau) q) log p with q = sigmoid(tau (r - 1))",
     "-A (4 / tau) q",
     "Trinity-RFT calls it SAPO, but it differentiates the log-prob and not the gate. The weight "
     "of a token rises with its ratio to 4 / tau and falls to almost 0 with it; at r = 1 it is 2 / "
     "tau. Where SAPO holds a token back once it has moved far, this pushes it further.",
     "Trinity-RFT.",
     {{"SAPO", "https://arxiv.org/abs/2511.20347"}, {}, {}, {}}},
    {"factor::Ring",
     "REINFORCE inside a range (REC)",
     "-A sg(w) log p with w = clip(r, min_ratio, max_ratio) e^(A / temp); dropped: 0",
     "-A w; dropped: 0",
     "A token stays while its ratio is between 1 - low and 1 + high. One that has fallen below 1 - "
     "low_prime stays too where A >= 0, and one above 1 + high_prime where A <= 0: the update "
     "brings it back. With low_prime = low and high_prime = high it is the clip of PPO, with a "
     "weight of your choice; by default every token stays with weight 1.",
     "Trinity-RFT.",
     {{"REC", "https://arxiv.org/abs/2509.24203"}, {}, {}, {}}},
    {"factor::Probability",
     "Cross entropy times the probability (DFT, CHORD)",
     "-sg(p (1 - decay p)) log p",
     "-p (1 - decay p)",
     "A token that the policy finds unlikely teaches little, so the data does not pull the policy "
     "to what it would not say. With decay 1 a certain token teaches little too, and what is "
     "learned from are the tokens in between. Drawn for old_logp = 0.",
     "Trinity-RFT.",
     {{"DFT", "https://arxiv.org/abs/2508.05629"},
      {"CHORD", "https://arxiv.org/abs/2508.11408"},
      {},
      {}}},
    {"map::TrustRegion",
     "Geometric mean of clipped ratios (GMPO)",
     "-A e^(mean over the row of the log ratios, each clipped on one side of [-low, high])",
     "-A times the same e^(mean), over the tokens of the row; 0 where the token's clip holds",
     "The clip holds the log ratio of each token, from above where A > 0 and from below where "
     "A < 0. The ratio of the row is the geometric mean of what is left, which a single "
     "extreme token hardly moves. Because each token is clipped by itself, the range may be "
     "wide. Drawn for rows of one token.",
     "verl (geo_mean) and TRL (experimental).",
     {{"GMPO", "https://arxiv.org/abs/2507.20673"}, {}, {}, {}},
     true},
};

/// The words of a type, or null where the list has none.
inline const SurrogateWords* find_words(const std::string& type) {
  for (const SurrogateWords& words : surrogate_words) {
    if (type == words.type) return &words;
  }
  return nullptr;
}

}  // namespace resolution
