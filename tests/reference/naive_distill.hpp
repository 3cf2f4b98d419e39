// The oracle of distillation from logits: the divergence of a position as a function of its logits,
// in long double with plain loops and without any code of the library, and its derivatives as
// difference quotients.
#pragma once
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "reference/naive_logits.hpp"

namespace naive {

enum class RestOf { Drop, Renormalize, Tail };

struct Distill {
  double beta = 0;
  RestOf rest = RestOf::Drop;
  double teacher_temperature = 1;
  long double min_logp = -std::numeric_limits<long double>::infinity();
};

/// A list of tokens with the teacher's log-probs. Those of -infinity are left out.
struct Listed {
  std::vector<std::size_t> ids;
  std::vector<long double> logp;
};

inline long double divergence(const Distill& s, const std::vector<long double>& log_p,
                              const std::vector<long double>& log_q) {
  const long double beta = s.beta;
  long double sum = 0;
  for (std::size_t i = 0; i < log_p.size(); ++i) {
    const long double p = std::exp(log_p[i]), q = std::exp(log_q[i]);
    const long double m = (1 - beta) * q + beta * p;
    if (s.beta == 0) {
      if (p > 0) sum += p * (log_p[i] - log_q[i]);
    } else if (s.beta == 1) {
      if (q > 0) sum += q * (log_q[i] - log_p[i]);
    } else {
      if (p > 0) sum += beta * p * (log_p[i] - std::log(m));
      if (q > 0) sum += (1 - beta) * q * (log_q[i] - std::log(m));
    }
  }
  return sum;
}

inline long double log_sum(const std::vector<long double>& logs) {
  long double sum = 0;
  for (const long double x : logs) sum += std::exp(x);
  return std::log(sum);
}

/// L of a position with these logits.
inline long double distilled(const Distill& s, const std::vector<long double>& logits,
                             double temperature, const Listed& teacher) {
  const Softmax student = softmax(logits, logits.size(), temperature);
  std::vector<long double> log_p, log_q;
  for (std::size_t i = 0; i < teacher.ids.size(); ++i) {
    if (std::isinf(teacher.logp[i])) continue;
    log_p.push_back(teacher.logp[i] / static_cast<long double>(s.teacher_temperature));
    log_q.push_back(student.logp(teacher.ids[i]));
  }
  if (log_p.empty()) return 0;
  const bool whole = log_p.size() == logits.size();
  if (s.rest == RestOf::Renormalize) {
    const long double of_p = log_sum(log_p), of_q = log_sum(log_q);
    for (std::size_t i = 0; i < log_p.size(); ++i) log_p[i] -= of_p, log_q[i] -= of_q;
  }
  const auto lowest = [&](std::vector<long double>& logs) {
    for (long double& x : logs) x = x < s.min_logp ? s.min_logp : x;
  };
  const long double of_p = log_sum(log_p), of_q = log_sum(log_q);
  lowest(log_p), lowest(log_q);
  if (s.rest == RestOf::Tail && !whole) {
    const auto tail = [](long double log) { return std::log(-std::expm1(std::fmin(log, -1e-7L))); };
    log_p.push_back(tail(of_p)), log_q.push_back(tail(of_q));
  }
  return divergence(s, log_p, log_q);
}

/// d L / d logits, by central differences.
inline std::vector<long double> distilled_gradient(const Distill& s,
                                                   const std::vector<long double>& logits,
                                                   double temperature, const Listed& teacher) {
  std::vector<long double> gradient;
  const long double step = 1e-5L;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    auto high = logits, low = logits;
    high[j] += step, low[j] -= step;
    gradient.push_back(
        (distilled(s, high, temperature, teacher) - distilled(s, low, temperature, teacher)) /
        (2 * step));
  }
  return gradient;
}

}  // namespace naive
