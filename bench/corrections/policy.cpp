#include "policy.hpp"

#include <algorithm>
#include <cmath>

namespace corrections {
namespace {

/// A number for each context and total from -length to length.
class Totals {
 public:
  explicit Totals(std::size_t length)
      : width_(2 * length + 1), zero_(length), numbers_(contexts * width_) {}
  double& operator()(std::size_t context, long total) { return numbers_[place(context, total)]; }
  double operator()(std::size_t context, long total) const {
    return numbers_[place(context, total)];
  }

 private:
  std::size_t place(std::size_t context, long total) const {
    return context * width_ + static_cast<std::size_t>(static_cast<long>(zero_) + total);
  }
  std::size_t width_, zero_;
  std::vector<double> numbers_;
};

/// The weight of all beginnings of t tokens, for t = 0 to the length.
std::vector<Totals> forward(const Task& task, const Table& kernel) {
  std::vector<Totals> weight(task.length + 1, Totals(task.length));
  weight[0](0, 0) = 1;
  for (std::size_t t = 0; t < task.length; ++t) {
    const long most = static_cast<long>(t);
    for (std::size_t c = 0; c < contexts; ++c) {
      for (long total = -most; total <= most; ++total) {
        const double w = weight[t](c, total);
        if (w == 0) continue;
        for (std::size_t a = 0; a < vocabulary; ++a)
          weight[t + 1](a + 1, total + task.score[at(c, a)]) += w * kernel[at(c, a)];
      }
    }
  }
  return weight;
}

}  // namespace

Table softmax(const Table& logits) {
  Table p{};
  for (std::size_t c = 0; c < contexts; ++c) {
    double largest = logits[at(c, 0)], sum = 0;
    for (std::size_t a = 1; a < vocabulary; ++a) largest = std::max(largest, logits[at(c, a)]);
    for (std::size_t a = 0; a < vocabulary; ++a)
      sum += p[at(c, a)] = std::exp(logits[at(c, a)] - largest);
    for (std::size_t a = 0; a < vocabulary; ++a) p[at(c, a)] /= sum;
  }
  return p;
}

double dot(const Table& a, const Table& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

Table plus(const Table& a, double factor, const Table& b) {
  Table out = a;
  for (std::size_t k = 0; k < a.size(); ++k) out[k] += factor * b[k];
  return out;
}

Task make_task(std::size_t length, Random random) {
  Task task{};
  task.length = length;
  for (double& z : task.logits) z = 2 * random.normal();
  for (int& s : task.score) s = static_cast<int>(random.below(3)) - 1;
  task.policy = softmax(task.logits);
  const Totals ends = forward(task, task.policy).back();
  const long most = static_cast<long>(length);
  double above = 0;
  long needed = most + 1;
  while (needed > -most && above < 0.5) {
    --needed;
    for (std::size_t c = 0; c < contexts; ++c) above += ends(c, needed);
  }
  task.needed = static_cast<int>(needed);
  return task;
}

double mean_reward(const Task& task, const Table& kernel) {
  const Totals ends = forward(task, kernel).back();
  double sum = 0;
  for (std::size_t c = 0; c < contexts; ++c) {
    for (long total = task.needed; total <= static_cast<long>(task.length); ++total)
      sum += ends(c, total);
  }
  return sum;
}

Table expected_gradient(const Task& task, const Table& kernel, double baseline) {
  const std::vector<Totals> weight = forward(task, kernel);
  // What the rest of a sequence adds to R - baseline, from the last token back to the first.
  Totals value(task.length);
  const long most = static_cast<long>(task.length);
  for (std::size_t c = 0; c < contexts; ++c) {
    for (long total = -most; total <= most; ++total)
      value(c, total) = (total >= task.needed ? 1.0 : 0.0) - baseline;
  }
  Table steps{};  // the expected number of each step, times R - baseline
  for (std::size_t t = task.length; t-- > 0;) {
    Totals before(task.length);
    const long reached = static_cast<long>(t);
    for (std::size_t c = 0; c < contexts; ++c) {
      for (long total = -reached; total <= reached; ++total) {
        for (std::size_t a = 0; a < vocabulary; ++a) {
          const double rest = kernel[at(c, a)] * value(a + 1, total + task.score[at(c, a)]);
          before(c, total) += rest;
          steps[at(c, a)] += weight[t](c, total) * rest;
        }
      }
    }
    value = before;
  }
  Table gradient{};
  for (std::size_t c = 0; c < contexts; ++c) {
    double sum = 0;
    for (std::size_t a = 0; a < vocabulary; ++a) sum += steps[at(c, a)];
    for (std::size_t a = 0; a < vocabulary; ++a)
      gradient[at(c, a)] = steps[at(c, a)] - task.policy[at(c, a)] * sum;
  }
  return gradient;
}

}  // namespace corrections
