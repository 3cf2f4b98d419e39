// Hashes of the library's results, and where they go.
#pragma once
#include <cstring>
#include <gdpo/advantages.hpp>
#include <gdpo/loss.hpp>
#include <string>

#include "results.hpp"

namespace {

using gdpo::index_t;

/// The FNV-1a hash of the bits of numbers. All NaN count as the same NaN, because sign and payload
/// of a NaN are the processor's choice.
class Hash {
 public:
  void add(double x) {
    if (gdpo::math::is_nan(x)) x = gdpo::math::nan();
    std::uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    for (int k = 0; k < 64; k += 8) value_ = (value_ ^ ((bits >> k) & 0xffu)) * 1099511628211u;
  }
  void add(float x) { add(static_cast<double>(x)); }
  template <class T>
  void add(const std::vector<T>& values) {
    for (const T& x : values) add(x);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

void add(Hash& hash, const gdpo::Metric& m) {
  for (const double x : {m.sum, m.count, m.min, m.max, m.row_sum, m.rows, m.row_min, m.row_max})
    hash.add(x);
}
void add(Hash& hash, const gdpo::NonFinite& n) {
  for (const index_t x : {n.count, n.row, n.token}) hash.add(static_cast<double>(x));
}
void add(Hash& hash, const gdpo::LossMetrics& m) {
  // In this order first, which is that of the hashes of earlier commits.
  using M = gdpo::LossMetrics;
  std::vector<gdpo::detail::MetricMember> members{
      &M::loss,
      &M::surrogate,
      &M::kl,
      &M::clip_fraction,
      &M::clip_fraction_low,
      &M::clip_fraction_high,
      &M::clip_fraction_any,
      &M::dual_clip_fraction,
      &M::approx_kl_k1,
      &M::approx_kl_k3,
      &M::ratio,
      &M::log_ratio_bounded,
      &M::kl_bounded,
      &M::entropy,
      &M::completion_length,
      &M::clipped_completions,
      &M::positive_logp,
  };
  for (const auto& metric : gdpo::detail::metric::list) {
    if (std::find(members.begin(), members.end(), metric.member) == members.end())
      members.push_back(metric.member);
  }
  for (const auto member : members) add(hash, m.*member);
  const gdpo::NonFiniteInputs& n = m.non_finite;
  for (const gdpo::NonFinite& x : {n.logp, n.old_logp, n.ref_logp, n.rollout_logp, n.teacher_logp,
                                   n.advantages, n.weights, n.entropies}) {
    add(hash, x);
  }
  const gdpo::Moments& a = m.advantage;
  for (const double x : {static_cast<double>(a.n), a.weight, a.mean, a.mean_low, a.m2, a.min, a.max,
                         static_cast<double>(m.rows), static_cast<double>(m.empty_rows),
                         static_cast<double>(m.degenerate_rows), m.entropy_threshold,
                         m.one_ratio_a_row ? 1.0 : 0.0}) {
    hash.add(x);
  }
  static_assert(sizeof m == std::size(gdpo::detail::metric::list) * sizeof(gdpo::Metric) +
                                (8 * 3 + 7 + 5) * sizeof(double),
                "a new member: add it here");
  for (const auto& [key, value] : m.to_map()) hash.add(value);
}
void add(Hash& hash, const gdpo::LossResult& r) {
  for (const double x : {r.loss, r.policy_loss, r.kl_loss, r.normalizer.tokens}) hash.add(x);
  add(hash, r.metrics);
}
/// Writes the lines of one object.
struct Lines {
  gdpo_bits_line line;
  void* to;
  void operator()(const char* kind, const std::string& name, const Hash& hash) const {
    line(to, kind, name.c_str(), hash.value());
  }
};

}  // namespace
