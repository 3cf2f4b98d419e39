#pragma once
// How the rounding errors of merged records grow with the number of ranks.
#include <cmath>
#include <gdpo/dist/merge.hpp>

#include "random.hpp"
#include "recorded.hpp"

/// A sum whose error is far below 2^-53 of the sum of the magnitudes: compensated (Neumaier), in
/// long double.
struct ExactSum {
  long double sum = 0, low = 0, magnitude = 0;
  void add(long double x) {
    const long double total = sum + x;
    low += std::fabs(sum) >= std::fabs(x) ? (sum - total) + x : (x - total) + sum;
    sum = total, magnitude += std::fabs(x);
  }
  long double value() const { return sum + low; }
};

/// What a number should be, and the magnitude that its error is relative to.
struct Exact {
  long double value, scale;
};

/// The largest relative errors in units of 2^-53: by all_merge, and by adding one rank after the
/// other.
struct Errors {
  double merged = 0, one_by_one = 0;
};

/// What all ranks get from all_merge of these records.
template <class X>
X merge_all(const std::vector<X>& parts) {
  const auto all_merge = [&](const auto& comm, int r) {
    return gdpo::dist::all_merge(comm, parts[static_cast<std::size_t>(r)]);
  };
  const Recording recording = rehearse(static_cast<int>(parts.size()), all_merge);
  return all_merge(ReplayedRank(recording, 0), 0);
}

/// Raises `errors` to those of numbers(sum of the parts), a std::vector.
template <class X, class Add, class Numbers>
void compare(Errors& errors, const std::vector<X>& parts, const std::vector<Exact>& exact,
             const Add& add, const Numbers& numbers) {
  X fold = parts[0];
  for (std::size_t r = 1; r < parts.size(); ++r) fold = add(fold, parts[r]);
  const auto raise = [&](double& error, const std::vector<double>& got) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const long double wrong = std::fabs(got[i] - exact[i].value) / exact[i].scale * 0x1p53L;
      if (wrong > error || std::isnan(wrong)) error = static_cast<double>(wrong);
    }
  };
  raise(errors.merged, numbers(merge_all(parts)));
  raise(errors.one_by_one, numbers(fold));
}

/// The same where all numbers are sums over the parts. Their errors are relative to the sums of the
/// magnitudes, because terms that cancel can leave any sum.
template <class X, class Add, class Numbers>
void compare_sums(Errors& errors, const std::vector<X>& parts, const Add& add,
                  const Numbers& numbers) {
  std::vector<ExactSum> sums(numbers(parts[0]).size());
  for (const X& part : parts) {
    const std::vector<double> terms = numbers(part);
    for (std::size_t i = 0; i < terms.size(); ++i) sums[i].add(terms[i]);
  }
  std::vector<Exact> exact;
  for (const ExactSum& sum : sums) exact.push_back({sum.value(), sum.magnitude});
  compare(errors, parts, exact, add, numbers);
}

/// The sums in some metrics.
inline std::vector<double> sums_in(const gdpo::LossMetrics& m) {
  std::vector<double> sums;
  for (const gdpo::Metric* x : {&m.surrogate, &m.kl, &m.approx_kl_k1, &m.approx_kl_k3, &m.entropy,
                                &m.ratio, &m.loss, &m.completion_length})
    sums.push_back(x->sum), sums.push_back(x->row_sum);
  return sums;
}

/// Errors of metrics with random sums between `low` and 1.
inline void errors_of_metrics(Errors& errors, int ranks, double low, UnitRandom& random) {
  std::vector<gdpo::LossMetrics> parts(static_cast<std::size_t>(ranks));
  for (gdpo::LossMetrics& m : parts) {
    for (gdpo::Metric* x : {&m.surrogate, &m.kl, &m.approx_kl_k1, &m.approx_kl_k3, &m.entropy,
                            &m.ratio, &m.loss, &m.completion_length})
      x->sum = low + (1 - low) * random(), x->row_sum = low + (1 - low) * random();
  }
  compare_sums(
      errors, parts, [](const auto& a, const auto& b) { return gdpo::merge(a, b); }, sums_in);
}

/// Errors of a measurement, whose terms are from 1e-3 to 1e3.
inline void errors_of_measurement(Errors& errors, int ranks, UnitRandom& random) {
  std::vector<gdpo::SumCount> parts(static_cast<std::size_t>(ranks));
  for (gdpo::SumCount& s : parts) s = {std::pow(10.0, 6 * (random() - 0.5)), 1};
  compare_sums(
      errors, parts,
      [](const auto& a, const auto& b) {
        return gdpo::SumCount{a.sum + b.sum, a.count + b.count};
      },
      [](const auto& s) { return std::vector<double>{s.sum}; });
}

/// Errors of mean and m2 of moments of 1 to 512 numbers of spread 1 near 1000.
inline void errors_of_moments(Errors& errors, int ranks, UnitRandom& random) {
  std::vector<gdpo::Moments> parts(static_cast<std::size_t>(ranks));
  ExactSum weight, sum, square;
  for (gdpo::Moments& m : parts) {
    m.n = 1 + static_cast<gdpo::index_t>(511 * random());
    m.weight = static_cast<double>(m.n), m.mean = 1000 + random(), m.m2 = m.weight * random();
    m.min = m.mean - 1, m.max = m.mean + 1;
    weight.add(m.weight), sum.add(static_cast<long double>(m.weight) * m.mean);
  }
  const long double mean = sum.value() / weight.value();
  for (const gdpo::Moments& m : parts)
    square.add(m.m2), square.add(m.weight * (m.mean - mean) * (m.mean - mean));
  compare(
      errors, parts, {{mean, mean}, {square.value(), square.value()}},
      [](const auto& a, const auto& b) { return gdpo::merge(a, b); },
      [](const auto& m) {
        return std::vector<double>{m.mean, m.m2};
      });
}
