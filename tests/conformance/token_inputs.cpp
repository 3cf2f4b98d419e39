#include "token_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <gdpo/prepass.hpp>

#include "params.hpp"

namespace conformance {
namespace {

using gdpo::index_t;

// The members with one number per token.
using Member = std::vector<double> TokenInputs::*;
constexpr Member kTokens[] = {&TokenInputs::logp,
                              &TokenInputs::old_logp,
                              &TokenInputs::ref_logp,
                              &TokenInputs::rollout_logp,
                              &TokenInputs::teacher_logp,
                              &TokenInputs::weights,
                              &TokenInputs::entropy_weights,
                              &TokenInputs::level_log_weights,
                              &TokenInputs::token_advantages,
                              &TokenInputs::entropies};

struct Reader {
  const Case& recorded;
  std::size_t rows = 0, width = 0;

  Array array(const char* name) const {
    Array out;
    if (!recorded.inputs.contains(name)) return out;
    out = array_of(recorded.inputs.at(name));
    if (recorded.float32) {
      for (double& x : out.data) x = static_cast<double>(static_cast<float>(x));
    }
    return out;
  }

  // Numbers of tokens: (rows, width), or (rows, 1) for a number that all tokens of a row share.
  std::vector<double> tokens(const char* name) const {
    const Array in = array(name);
    if (in.data.empty() || in.shape == std::vector<std::size_t>{rows, width}) return in.data;
    if (in.shape != std::vector<std::size_t>{rows, 1})
      throw BadGolden(std::string(name) + " must be rows x tokens");
    std::vector<double> out;
    for (const double of_row : in.data) out.insert(out.end(), width, of_row);
    return out;
  }

  std::vector<double> of_rows(const char* name) const {
    const Array in = array(name);
    if (!in.data.empty() && in.shape != std::vector<std::size_t>{rows}) {
      throw BadGolden(std::string(name) + " must have one entry a row");
    }
    return in.data;
  }
};

}  // namespace

TokenInputs token_inputs(const Case& recorded, const std::string& logp) {
  only(recorded.inputs,
       {logp.c_str(), "old_logp", "ref_logp", "rollout_logp", "teacher_logp", "rollout_is_weights",
        "vllm_is_ratio", "rl_weights", "entropies", "entropy_mask", "advantages", "truncated_mask",
        "response_mask", "sample_mask", "sample_weight", "rollout_ids",
        // Of parts of a loss; their mappings read them.
        "expert_mask", "ce_weights", "ref_kl_weights",
        // Source grpo_tutorial records these, from which its log-probs and advantages were
        // computed.
        "rewards", "group_ids", "logits", "actions"});
  Reader read{recorded};
  const Array first = read.array(logp.c_str());
  if (first.shape.size() != 2) throw BadGolden(logp + " must be rows x tokens");
  read.rows = first.shape[0], read.width = first.shape[1];

  TokenInputs in;
  in.target = recorded.target;
  in.rows = static_cast<index_t>(read.rows);
  in.width = static_cast<index_t>(read.width);
  in.logp = first.data;
  in.old_logp = read.tokens("old_logp");
  in.ref_logp = read.tokens("ref_logp");
  in.rollout_logp = read.tokens("rollout_logp");
  in.teacher_logp = read.tokens("teacher_logp");
  in.weights = read.tokens("rollout_is_weights");
  if (in.weights.empty()) in.weights = read.tokens("vllm_is_ratio");
  if (in.weights.empty()) in.weights = read.tokens("entropy_mask");  // unsloth-zoo: 1 or 0
  if (in.weights.empty()) in.weights = read.tokens("rl_weights");    // prime-rl
  in.entropies = read.tokens("entropies");
  in.truncated = read.of_rows("truncated_mask");
  in.row_weights = read.of_rows("sample_weight");  // unsloth-zoo
  if (recorded.inputs.contains("rollout_ids")) {   // slime
    for (const long long id : integers_of(recorded.inputs.at("rollout_ids")))
      in.group_ids.push_back(id);
  }
  if (read.array("advantages").shape.size() == 2) {
    in.token_advantages = read.tokens("advantages");
  } else {
    in.advantages = read.of_rows("advantages");
  }
  for (const double flag : read.tokens("response_mask")) in.mask.push_back(flag != 0);
  const std::vector<double> samples = read.of_rows("sample_mask");  // NeMo-RL: rows that count
  for (std::size_t k = 0; k < samples.size() * read.width; ++k) {
    if (samples[k / read.width] == 0) in.mask.at(k) = 0;
  }
  return in;
}

TokenInputs over_padding(const TokenInputs& in) {
  TokenInputs all = in;
  const auto width = static_cast<std::ptrdiff_t>(in.width);
  all.row_weights.clear();
  for (auto row = in.mask.begin(); row != in.mask.end(); row += width)
    all.row_weights.push_back(static_cast<double>(std::count(row, row + width, 1)));
  all.mask.assign(in.mask.size(), 1);
  return all;
}

TokenInputs in_ratio(const TokenInputs& in, bool of_rows) {
  TokenInputs out = in;
  out.weights.clear();
  const auto width = static_cast<std::size_t>(in.width);
  bool counted = false;
  for (std::size_t k = 0; k < in.weights.size(); ++k) {
    if (k % width == 0) counted = false;
    const bool counts = in.mask[k] != 0 && !(of_rows && counted);
    counted = counted || in.mask[k] != 0;
    const double log_weight = std::log(in.weights[k]);
    out.level_log_weights.push_back(counts ? std::clamp(log_weight, gdpo::detail::lowest_level_log,
                                                        gdpo::detail::highest_level_log)
                                           : 0.0);
  }
  return out;
}

TokenInputs row_advantages(const TokenInputs& in) {
  if (in.token_advantages.empty()) return in;
  TokenInputs out = in;
  out.advantages = gdpo::masked_row_means(gdpo::view(in.token_advantages.data(), in.rows, in.width),
                                          gdpo::view(in.mask.data(), in.rows, in.width), 0.0);
  out.token_advantages.clear();
  return out;
}

TokenInputs rows_of(const TokenInputs& in, std::size_t first, std::size_t last) {
  TokenInputs out = in;
  out.rows = static_cast<index_t>(last - first);
  const auto cut = [&](auto& array, std::size_t of_row) {
    if (array.empty()) return;
    const auto begin = array.begin();
    array.assign(begin + static_cast<std::ptrdiff_t>(first * of_row),
                 begin + static_cast<std::ptrdiff_t>(last * of_row));
  };
  for (const auto member : kTokens) cut(out.*member, static_cast<std::size_t>(in.width));
  cut(out.mask, static_cast<std::size_t>(in.width));
  cut(out.advantages, 1), cut(out.truncated, 1), cut(out.row_weights, 1), cut(out.group_ids, 1);
  return out;
}

std::vector<TokenInputs> rows_of(const TokenInputs& in) {
  std::vector<TokenInputs> rows;
  for (std::size_t i = 0; i < static_cast<std::size_t>(in.rows); ++i)
    rows.push_back(rows_of(in, i, i + 1));
  return rows;
}

TokenInputs packed(const TokenInputs& in) {
  TokenInputs out;
  out.target = in.target;
  out.rows = in.rows, out.width = in.width;
  out.advantages = in.advantages;
  out.truncated = in.truncated;
  out.row_weights = in.row_weights;
  out.group_ids = in.group_ids;
  out.offsets = {0};
  const auto width = static_cast<std::size_t>(in.width);
  const bool any = in.mask.empty() || std::find(in.mask.begin(), in.mask.end(), 1) != in.mask.end();
  for (std::size_t i = 0; i < static_cast<std::size_t>(in.rows); ++i) {
    std::size_t valid = 0, last = 0;  // number of valid tokens, and the position behind the last
    for (std::size_t t = 0; t < width; ++t) {
      if (in.mask.empty() || in.mask[i * width + t] != 0) ++valid, last = t + 1;
    }
    const std::size_t length = any && valid == last ? valid : width;
    for (std::size_t t = 0; t < length; ++t) out.place.push_back(i * width + t);
    out.offsets.push_back(static_cast<std::int64_t>(out.place.size()));
  }
  const auto gather = [&](const auto& from, auto& into) {
    if (from.empty()) return;
    for (const std::size_t k : out.place) into.push_back(from[k]);
  };
  for (const auto member : kTokens) gather(in.*member, out.*member);
  gather(in.mask, out.mask);
  return out;
}

}  // namespace conformance
