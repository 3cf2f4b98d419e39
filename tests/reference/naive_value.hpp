// Advantages and returns of tokens, straight from the sums that define them, in long double. It
// shares no code with the library: the steps of a row are listed, and each sum is written out
// instead of being carried from step to step.
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

namespace naive {

using Long = long double;

/// Which positions are steps; the names of gdpo::Steps.
enum class StepsOf { Valid, Row, RowRewardOnValid, Turns };

/// One row. All arrays have its length.
struct ReturnsRow {
  std::vector<Long> rewards, values, penalties;  // penalties: coef kl
  std::vector<bool> valid;
  Long row_reward = 0, bootstrap = 0;
};

/// The settings of an estimator. gae false: reward to go.
struct ReturnsSettings {
  bool gae = true;
  Long gamma = 1, lambda = 1, lambda_returns = 1, length_alpha = 0;
  StepsOf steps = StepsOf::Valid;
};

struct ReturnsResult {
  std::vector<Long> advantages, returns;
};

/// The Jensen-Shannon divergence of two policies at a token, from their log-probs; the teacher has
/// the share lambda.
inline Long mixture_divergence(Long lambda, Long temperature, Long policy, Long teacher) {
  const Long p = policy / temperature, q = teacher / temperature;
  if (lambda == 0) return p - q;
  if (lambda == 1) return q - p;
  const Long mixture = std::log(lambda * std::exp(q) + (1 - lambda) * std::exp(p));
  return lambda * (q - mixture) + (1 - lambda) * (p - mixture);
}

/// The episodes of a row: the positions of their steps, in order.
inline std::vector<std::vector<std::size_t>> episodes(const ReturnsRow& row, StepsOf steps) {
  std::vector<std::vector<std::size_t>> all(1);
  for (std::size_t t = 0; t < row.valid.size(); ++t) {
    const bool every = steps == StepsOf::Row || steps == StepsOf::RowRewardOnValid;
    if (row.valid[t] || every) {
      all.back().push_back(t);
    } else if (steps == StepsOf::Turns && !all.back().empty()) {
      all.emplace_back();
    }
  }
  if (all.back().empty()) all.pop_back();
  return all;
}

/// The sum over l of factor^l terms[k + l].
inline Long discounted(const std::vector<Long>& terms, std::size_t k, Long factor) {
  Long sum = 0, power = 1;
  for (std::size_t l = k; l < terms.size(); ++l, power *= factor) sum += power * terms[l];
  return sum;
}

inline ReturnsResult returns_of_row(const ReturnsRow& row, const ReturnsSettings& s) {
  const std::size_t length = row.valid.size();
  ReturnsResult result{std::vector<Long>(length), std::vector<Long>(length)};
  std::size_t tokens = 0, last_valid = 0;
  for (std::size_t t = 0; t < length; ++t) {
    if (row.valid[t]) ++tokens, last_valid = t;
  }
  if (tokens == 0) return result;
  const std::size_t rewarded = s.steps == StepsOf::Row ? length - 1 : last_valid;
  const auto reward = [&](std::size_t t) {
    const bool carries = row.valid[t] || s.steps == StepsOf::Row;
    return (carries ? row.rewards[t] - row.penalties[t] : 0) + (t == rewarded ? row.row_reward : 0);
  };
  const auto all = episodes(row, s.steps);
  for (std::size_t e = 0; e < all.size(); ++e) {
    const std::vector<std::size_t>& at = all[e];
    const Long behind = e + 1 == all.size() ? row.bootstrap : 0;
    std::vector<Long> terms;
    for (std::size_t k = 0; k < at.size(); ++k) {
      const Long next = k + 1 < at.size() ? row.values[at[k + 1]] : behind;
      terms.push_back(s.gae ? reward(at[k]) + s.gamma * next - row.values[at[k]] : reward(at[k]));
    }
    if (!s.gae) terms.push_back(behind);
    Long lambda = s.gae ? s.lambda : 1;
    if (s.gae && s.length_alpha > 0) {
      lambda = 1 - 1 / (s.length_alpha * static_cast<Long>(tokens));
      if (lambda < 0) lambda = 0;
    }
    const Long lambda_returns = s.gae ? s.lambda_returns : 1;
    // A reward to go with gamma 0 is that of the step alone, whatever follows it.
    const bool alone = !s.gae && s.gamma == 0;
    for (std::size_t k = 0; k < at.size(); ++k) {
      if (!row.valid[at[k]]) continue;
      result.advantages[at[k]] = alone ? terms[k] : discounted(terms, k, s.gamma * lambda);
      result.returns[at[k]] =
          alone ? terms[k]
                : discounted(terms, k, s.gamma * lambda_returns) + (s.gae ? row.values[at[k]] : 0);
    }
  }
  return result;
}

}  // namespace naive
