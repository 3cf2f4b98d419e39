// Batches in the memory of a device, in any layout and storage; losses of them there and on seq;
// and the comparison of the two.
#pragma once
#include <gdpo/cuda/loss/device_loss.hpp>
#include <gdpo/runtime.hpp>

#include "support/device.hpp"
#include "support/loss_calls.hpp"

namespace cuda_loss {

using gdpo::index_t;
using loss_product::Data;
using loss_product::Outcome;
namespace math = gdpo::math;

// ---- policies of the caller, marked for the device as kernels need them ----

/// A factor: the ratio, clipped.
struct ClippedRatio {
  double min = 0.5, max = 1.5;
  template <class V>
  GDPO_INLINE V operator()(const gdpo::Token<V>& t) const {
    return (math::max)((math::min)(t.ratio, math::constant<V>(max)), math::constant<V>(min));
  }
};
/// A factor that reads the token's tag.
struct ByTag {
  static constexpr bool reads_tag = true;
  template <class V>
  GDPO_INLINE V operator()(const gdpo::Token<V>& t) const {
    return t.tag;
  }
};
/// A factor that reads the row's mean advantage, and the reference and the sampling policy.
struct OfTheRow {
  static constexpr bool reads_row_advantage = true, reads_ref = true, reads_rollout = true;
  template <class V>
  GDPO_INLINE V operator()(const gdpo::Token<V>& t) const {
    return math::mul(t.row_advantage, math::exp_parts(t.ref_logp - t.rollout_logp).exp);
  }
};

// ---- layouts ----

/// Where tokens stand in memory: the first one `first` numbers from its start, consecutive tokens
/// `step` numbers apart (backwards where negative), rows and groups of rows with gaps between them.
struct Layout {
  const char* name;
  bool packed;
  int groups;
  index_t first, step, row_gap, group_gap;
};
constexpr Layout dense{"dense", false, 0, 0, 1, 0, 0}, packed{"packed", true, 0, 0, 1, 0, 0};
constexpr Layout padded_layouts[] = {dense,
                                     {"rank 3", false, 2, 0, 1, 0, 0},
                                     {"rank 3 with gaps", false, 2, 0, 1, 3, 5},
                                     {"unaligned", false, 0, 1, 1, 0, 0},
                                     {"rows with gaps", false, 0, 0, 1, 7, 0},
                                     {"every third token", false, 0, 2, 3, 1, 0},
                                     {"backwards", false, 2, 0, -2, 0, 3}};
constexpr Layout packed_layouts[] = {packed,
                                     {"packed, unaligned", true, 0, 3, 1, 0, 0},
                                     {"packed, every second token", true, 0, 0, 2, 0, 0}};

/// The places of the tokens of a padded (rows, width) batch in a layout. In a packed layout, only
/// the first lengths[i] tokens of row i have places.
class Places {
 public:
  Places(const Layout& layout, int rows, int width, const std::vector<int>& lengths)
      : layout_(layout), lengths_(lengths) {
    if (lengths_.empty()) lengths_.assign(static_cast<std::size_t>(rows), width);
    rows_ = rows, width_ = width;
    groups_ = layout.groups > 0 && rows % layout.groups == 0 ? layout.groups : 0;
    const index_t step = layout.step < 0 ? -layout.step : layout.step;
    if (layout.packed) {
      for (const int n : lengths_) offsets_.push_back(offsets_.back() + n);
      size_ = layout.first + offsets_.back() * step;
    } else {
      row_stride_ = width * step + layout.row_gap;
      group_stride_ = groups_ > 0 ? rows / groups_ * row_stride_ + layout.group_gap : 0;
      // The memory ends with the last token, so that reading beyond it reads beyond the memory.
      size_ = rows > 0 && width > 0 ? at(rows - 1, layout.step < 0 ? 0 : width - 1) + 1 : 0;
    }
  }
  /// The place of token t of a row.
  index_t at(int row, int t) const {
    const index_t step = layout_.step;
    if (layout_.packed) return layout_.first + (offsets_[static_cast<std::size_t>(row)] + t) * step;
    const int in_group = groups_ > 0 ? rows_ / groups_ : 1;
    const index_t row_begin = groups_ > 0
                                  ? row / in_group * group_stride_ + row % in_group * row_stride_
                                  : row * row_stride_;
    return layout_.first + row_begin + (step < 0 ? (width_ - 1 - t) * -step : t * step);
  }
  int length(int row) const { return lengths_[static_cast<std::size_t>(row)]; }
  int rows() const { return rows_; }
  bool is_packed() const { return layout_.packed; }
  const std::vector<index_t>& offsets() const { return offsets_; }
  std::size_t size() const { return static_cast<std::size_t>(size_); }

  /// Calls f(view) with a view of the tokens in `data`.
  template <class T, class F>
  void with_view(T* data, const F& f) const {
    T* const origin = size_ > 0 ? data + (layout_.packed ? layout_.first : at(0, 0)) : data;
    const index_t rows = rows_, width = width_, step = layout_.step;
    if (layout_.packed) {
      f(gdpo::View<T, 1>{origin, {offsets_.back()}, {step}});
    } else if (groups_ > 0) {
      f(gdpo::View<T, 3>{
          origin, {groups_, rows / groups_, width}, {group_stride_, row_stride_, step}});
    } else {
      f(gdpo::View<T, 2>{origin, {rows, width}, {row_stride_, step}});
    }
  }

 private:
  Layout layout_;
  std::vector<int> lengths_;
  std::vector<index_t> offsets_{0};
  int rows_ = 0, width_ = 0, groups_ = 0;
  index_t row_stride_ = 0, group_stride_ = 0, size_ = 0;
};

/// x as T stores it.
template <class T, class X>
T stored(X x) {
  T to{};
  if constexpr (std::is_integral_v<T>) {
    if (!std::isnan(static_cast<double>(x))) to = static_cast<T>(x);  // NaN becomes 0
  } else {
    gdpo::store(to, x);
  }
  return to;
}

/// A Data on the device, with numbers stored as T, masks stored as M, computed as S. The memory
/// between the tokens holds NaN.
template <class S, class T = S, class M = unsigned char, class Offset = std::int32_t>
class OnTheDevice {
 public:
  OnTheDevice(const Data& d, const Layout& layout, const std::vector<int>& lengths = {})
      : data_(d), places_(layout, d.rows, d.width, lengths) {
    for (std::size_t k = 0; k < loss_product::arrays_of_numbers; ++k) {
      tokens_[k] = placed<T>(d.*loss_product::token_arrays[k], T{}, true);
    }
    mask_ = placed<M>(d.mask, M(1), false);
    segments_ = placed<std::int64_t>(d.segments, std::int64_t{77}, false);
    std::vector<T> advantages;
    for (const double x : d.advantages) advantages.push_back(stored<T>(x));
    advantages_ = OnDevice<T>(advantages);
    row_weights_ = OnDevice<double>(d.row_weights), truncated_ = OnDevice<double>(d.truncated);
    group_tokens_ = OnDevice<double>(d.group_tokens);
    std::vector<Offset> offsets;
    for (const index_t x : places_.offsets()) offsets.push_back(static_cast<Offset>(x));
    offsets_ = OnDevice<Offset>(offsets);
  }

  gdpo::TokenBatch<S> batch() {
    gdpo::TokenBatch<S> b;
    const auto set = [&](auto& to, auto& from, bool there) {
      if (there) places_.with_view(from.data(), [&](const auto& view) { to = view; });
    };
    for (std::size_t k = 0; k < loss_product::arrays_of_numbers; ++k) {
      const auto array = loss_product::token_arrays[k];
      set(b.*loss_product::batch_arrays<S>[k], tokens_[k],
          array == &Data::logp || !(data_.*array).empty());
    }
    set(b.mask, mask_, !data_.mask.empty()), set(b.segments, segments_, !data_.segments.empty());
    const index_t rows = data_.rows;
    if (!data_.advantages.empty()) b.advantages = gdpo::view(advantages_.data(), rows);
    if (!data_.row_weights.empty()) b.row_weights = gdpo::view(row_weights_.data(), rows);
    if (!data_.group_tokens.empty()) b.group_tokens = gdpo::view(group_tokens_.data(), rows);
    if (!data_.truncated.empty()) b.truncated = gdpo::view(truncated_.data(), rows);
    if (places_.is_packed()) b.offsets = gdpo::view(offsets_.data(), rows + 1);
    return b;
  }
  const Places& places() const { return places_; }

 private:
  /// The array in its layout. Between the tokens stands NaN for numbers, else `between`.
  template <class U, class X>
  OnDevice<U> placed(const std::vector<X>& from, U between, bool number) const {
    if (from.empty() && data_.rows * data_.width > 0) return {};
    if (number) between = stored<U>(std::nan(""));
    std::vector<U> to(places_.size(), between);
    for (int i = 0; i < data_.rows; ++i) {
      for (int t = 0; t < places_.length(i); ++t)
        to[static_cast<std::size_t>(places_.at(i, t))] = stored<U>(from[data_.at(i, t)]);
    }
    return OnDevice<U>(to);
  }
  Data data_;
  Places places_;
  OnDevice<T> tokens_[loss_product::arrays_of_numbers], advantages_;
  OnDevice<double> row_weights_, group_tokens_, truncated_;
  OnDevice<M> mask_;
  OnDevice<std::int64_t> segments_;
  OnDevice<Offset> offsets_;
};

/// The outcome of a loss on the device.
struct DeviceOutcome : Outcome {
  bool gaps_kept = true;  ///< nothing was written between the tokens of the gradient
};

/// Computes the loss on the device. The gradient comes back in the order of rows and tokens,
/// whatever its layout.
template <class S, class Loss>
DeviceOutcome run(const TestDevice& device, const Loss& loss, const gdpo::TokenBatch<S>& batch,
                  const Places& places, const gdpo::cuda::DeviceNormalizer& normalizer,
                  bool with_gradient = true) {
  OnDevice<S> gradient(std::vector<S>(places.size(), S(-77))),
      entropies(std::vector<S>(places.size(), S(-77)));
  OnDevice<gdpo::LossResult> result(std::vector<gdpo::LossResult>(1));
  TestScratch scratch(gdpo::cuda::scratch_bytes(loss, batch));
  gdpo::LossGradient<S> out;
  if (with_gradient) places.with_view(gradient.data(), [&](const auto& view) { out = view; });
  // Without a bonus it is left out, because rows with it are never Plain.
  const bool with_entropies = with_gradient && gdpo::detail::entropy_of(loss).coef != 0;
  if (with_entropies) {
    places.with_view(entropies.data(), [&](const auto& view) { out.entropies = view; });
  }
  loss(device, batch, normalizer, out, result.data(), scratch());
  DeviceOutcome o;
  o.result = result.host()[0];
  const std::vector<S> written = gradient.host(), by_entropies = entropies.host();
  std::vector<bool> of_token(written.size(), false);
  for (int i = 0; i < places.rows(); ++i) {
    for (int t = 0; t < places.length(i); ++t) {
      const auto at = static_cast<std::size_t>(places.at(i, t));
      if (with_gradient) o.gradient.push_back(static_cast<double>(written[at]));
      if (with_entropies) o.entropy_gradient.push_back(static_cast<double>(by_entropies[at]));
      of_token[at] = with_gradient;
    }
  }
  for (std::size_t k = 0; k < written.size(); ++k)
    o.gaps_kept =
        o.gaps_kept && (of_token[k] || (written[k] == S(-77) && by_entropies[k] == S(-77)));
  return o;
}
template <class S, class Loss>
DeviceOutcome run(const TestDevice& device, const Loss& loss, const Data& data,
                  const Layout& layout, const std::vector<int>& lengths,
                  const gdpo::Normalizer& normalizer) {
  OnTheDevice<S> on(data, layout, lengths);
  return run<S>(device, loss, on.batch(), on.places(), normalizer);
}
/// The same loss on the host, with the tag seq.
template <class S, class Loss>
Outcome on_seq(const Loss& loss, const Data& data, const std::vector<int>& lengths,
               const gdpo::Normalizer& normalizer) {
  return lengths.empty()
             ? loss_product::call<S>(loss, data, &normalizer)
             : loss_product::call_packed<S, std::int32_t>(loss, data, lengths, &normalizer);
}

// ---- comparison ----

/// The largest absolute value of the terms of a metric.
inline double largest(const gdpo::Metric& m) {
  return m.count > 0 ? std::fmax(std::fabs(m.min), std::fabs(m.max)) : 0.0;
}

/// "" where the outcome on a device agrees with that on seq; else what differs.
///
/// Gradient. At levels of tokens: the same bits, NaN where NaN (a host compiled by nvcc fuses as
/// the device does). At levels of segments the host adds the log ratios, in double, in another
/// order: 2 ulp of float, and for a batch of double the same bound as for the sums below.
///
/// Sums of terms. In float, a lane of the host adds 64 numbers, which is 63 roundings of 2^-24 of
/// the sum of the absolute terms; the device adds four tokens, which is 3; the rest is in double.
/// In double, some hundreds of roundings of 2^-53. At levels of segments each ratio has the error
/// of its log ratio, a sum of up to 3000 numbers of up to 60 in another order: 1.8e5 2^-53, times a
/// small factor. The sum of the absolute terms is at most the number of tokens times the largest of
/// them.
///
/// Counts, ranges, counters and lengths: the same.
template <class S, class Loss>
std::string mismatch(const Loss& loss, const Data& data, const Outcome& got,
                     const Outcome& expected) {
  using Level = std::decay_t<decltype(loss.level)>;
  constexpr bool of_segment = Level::of_segment, single = std::is_same_v<S, float>;
  const double rounding = single && !of_segment ? 68 * 0x1p-24
                          : of_segment          ? 1e-10
                                                : 1024 * 0x1p-53;
  constexpr double ulp = 0x1p-23;
  std::string text;
  const auto differ = [&](const std::string& name, double x, double y, double tolerance) {
    char line[200];
    std::snprintf(line, sizeof line, "%s: %.17g, on seq %.17g (%g)\n", name.c_str(), x, y,
                  tolerance);
    text += line;
  };
  const auto same = [&](const std::string& name, double x, double y) {
    if (!(std::isnan(x) && std::isnan(y)) && !same_bits(x, y)) differ(name, x, y, 0);
  };
  const auto near = [&](const std::string& name, double x, double y, double tolerance) {
    if (same_bits(x, y) || (std::isnan(x) && std::isnan(y))) return;
    if (std::isnan(x) || std::isnan(y) || std::isinf(y) ||
        !(std::fabs(x - y) <= tolerance + 1e-300))
      differ(name, x, y, tolerance);
  };

  if (got.gradient.size() != expected.gradient.size()) return "sizes of the gradients\n";
  double most = 0;
  for (const double g : expected.gradient)
    most = std::isfinite(g) ? std::fmax(most, std::fabs(g)) : most;
  for (std::size_t k = 0; k < got.gradient.size() && text.size() < 400; ++k) {
    const double x = got.gradient[k], y = expected.gradient[k];
    const std::string name = "gradient[" + std::to_string(k) + "]";
    if (!of_segment) {
      same(name, x, y);
    } else if (single) {
      near(name, x, y, 2 * ulp * std::fabs(y));
    } else {
      near(name, x, y, rounding * most);
    }
  }

  // The gradient by the entropies is that of the row times a weight.
  for (std::size_t k = 0; k < got.entropy_gradient.size() && text.size() < 400; ++k)
    same("gradient by entropies[" + std::to_string(k) + "]", got.entropy_gradient[k],
         expected.entropy_gradient[k]);

  const gdpo::LossResult &a = got.result, &e = expected.result;
  const gdpo::LossMetrics &m = a.metrics, &n = e.metrics;
  double weights = 0;  // sum_i |W_i| n_i over the rows: weight of a token of the row, times tokens
  for (int i = 0; i < data.rows; ++i) {
    index_t tokens = 0;
    for (int t = 0; t < data.width; ++t) tokens += data.valid(i, t);
    const double of_group =
        data.group_tokens.empty() ? 0.0 : data.group_tokens[static_cast<std::size_t>(i)];
    const gdpo::AggregateArgs args{{tokens, data.width, of_group}, e.normalizer};
    const double w = tokens > 0 ? loss.aggregate(args) : 0.0;
    const double of_row =
        data.row_weights.empty() ? 1.0 : data.row_weights[static_cast<std::size_t>(i)];
    if (std::isfinite(w * of_row)) weights += std::fabs(w * of_row) * static_cast<double>(tokens);
  }
  const double surrogate = largest(n.surrogate), kls = largest(n.loss) + surrogate;
  near("policy_loss", a.policy_loss, e.policy_loss, rounding * weights * surrogate);
  near("kl_loss", a.kl_loss, e.kl_loss, rounding * weights * kls);
  double entropies = 0;  // sum of |terms| of the bonus
  for (std::size_t k = 0; k < expected.entropy_gradient.size() && !data.entropies.empty(); ++k) {
    const double term = expected.entropy_gradient[k] * data.entropies[k];
    entropies += std::isfinite(term) ? std::fabs(term) : 0;
  }
  near("entropy_loss", a.entropy_loss, e.entropy_loss, 1024 * 0x1p-53 * entropies);
  near("loss", a.loss, e.loss, rounding * weights * (kls + surrogate) + 1024 * 0x1p-53 * entropies);

  const auto size_of = [&](const std::string& name, const gdpo::Metric& x) {
    return name == "loss" ? kls + surrogate : largest(x);
  };
  const auto mean = [&](const std::string& name, const gdpo::Metric& x, const gdpo::Metric& y,
                        double size) {
    near(name + ".sum", x.sum, y.sum, rounding * size * y.count);
    near(name + ".row_sum", x.row_sum, y.row_sum, rounding * size * y.rows);
    near(name + ".row_min", x.row_min, y.row_min, rounding * size);
    near(name + ".row_max", x.row_max, y.row_max, rounding * size);
    same(name + ".count", x.count, y.count), same(name + ".rows", x.rows, y.rows);
    const double of_range = of_segment ? rounding * size : 0;
    near(name + ".min", x.min, y.min, of_range), near(name + ".max", x.max, y.max, of_range);
  };
  const auto share = [&](const std::string& name, const gdpo::Metric& x, const gdpo::Metric& y) {
    for (const auto number :
         {&gdpo::Metric::sum, &gdpo::Metric::count, &gdpo::Metric::min, &gdpo::Metric::max,
          &gdpo::Metric::rows, &gdpo::Metric::row_min, &gdpo::Metric::row_max}) {
      same(name, x.*number, y.*number);
    }
    near(name + ".row_sum", x.row_sum, y.row_sum, y.rows * y.rows * 0x1p-53);
  };
  for (const auto& metric : gdpo::detail::metric::list) {
    const gdpo::Metric &x = m.*metric.member, &y = n.*metric.member;
    if (metric.kind < gdpo::detail::metric::Share) {
      mean(metric.name, x, y, size_of(metric.name, y));
    } else {
      share(metric.name, x, y);
    }
  }

  same("advantage.n", static_cast<double>(m.advantage.n), static_cast<double>(n.advantage.n));
  same("advantage.weight", m.advantage.weight, n.advantage.weight);
  // With infinite advantages the mean becomes NaN, after which merge() gives no range; when that
  // happens depends on the order of the merges.
  if (!std::isnan(n.advantage.mean)) {
    same("advantage.min", m.advantage.min, n.advantage.min),
        same("advantage.max", m.advantage.max, n.advantage.max);
  }
  const double size = std::fmax(std::fabs(n.advantage.min), std::fabs(n.advantage.max));
  near("advantage.mean", m.advantage.mean + m.advantage.mean_low,
       n.advantage.mean + n.advantage.mean_low, 0x1p-44 * size);
  // Of infinite advantages it is NaN or infinite, again by the order of the merges.
  if (std::isfinite(n.advantage.mean) || std::isfinite(m.advantage.m2))
    near("advantage.m2", m.advantage.m2, n.advantage.m2,
         0x1p-40 * size * size * n.advantage.weight);

  const auto counter = [&](const char* name, const gdpo::NonFinite& x, const gdpo::NonFinite& y) {
    if (x.count == y.count && x.row == y.row && x.token == y.token) return;
    char line[160];
    std::snprintf(line, sizeof line, "non_finite.%s: %td at (%td, %td), on seq %td at (%td, %td)\n",
                  name, x.count, x.row, x.token, y.count, y.row, y.token);
    text += line;
  };
#define GDPO_X(in_batch, in_row, ...) counter(#in_row, m.non_finite.in_row, n.non_finite.in_row);
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X

  const auto whole = [&](const char* name, auto x, auto y) {
    same(name, static_cast<double>(x), static_cast<double>(y));
  };
  whole("rows", m.rows, n.rows), whole("empty_rows", m.empty_rows, n.empty_rows);
  whole("degenerate_rows", m.degenerate_rows, n.degenerate_rows);
  whole("entropy_threshold", m.entropy_threshold, n.entropy_threshold);
  whole("one_ratio_a_row", m.one_ratio_a_row, n.one_ratio_a_row);
  whole("over", a.over, e.over);
  whole("normalizer.tokens", a.normalizer.tokens, e.normalizer.tokens);
  whole("normalizer.rows", a.normalizer.rows, e.normalizer.rows);
  whole("normalizer.non_empty_rows", a.normalizer.non_empty_rows, e.normalizer.non_empty_rows);
  whole("normalizer.given", a.normalizer.given, e.normalizer.given);
  return text;
}

/// The numbers with all NaN made the same NaN. Which bits a NaN has is the processor's choice.
inline std::vector<double> unified(std::vector<double> x) {
  for (double& v : x) v = std::isnan(v) ? std::nan("") : v;
  return x;
}
/// "" where two outcomes of a device have the same bits, all NaN being equal; else what differs.
inline std::string difference_but_nan(const Outcome& a, const Outcome& b) {
  const std::string gradient = difference(unified(a.gradient), unified(b.gradient)),
                    result = difference(unified(loss_product::numbers(a.result)),
                                        unified(loss_product::numbers(b.result)));
  return (gradient.empty() ? "" : "gradient " + gradient) +
         (result.empty() ? "" : " result " + result);
}

// ---- inputs ----

/// loss_product::random_tokens with tags, rounded to float. `poison` is the share of tokens that
/// are NaN or infinite in one of the arrays, and of advantages and row weights that are.
inline Data random_batch(Random& random, int rows, int width, double poison = 0) {
  Data d =
      loss_product::random_tokens(random, rows, width, random.pick({1e-3, 0.1, 0.6, 30.0}), true);
  const auto n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  for (std::size_t k = 0; k < n; ++k) d.tags.push_back(random.below(3));
  if (d.old_logp.empty()) d.old_logp = d.logp;  // KL terms against the old policy need it
  constexpr double infinite = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < n && poison > 0; ++k) {
    if (!random.chance(poison)) continue;
    std::vector<double>& array =
        d.*
        loss_product::token_arrays[random.below(static_cast<int>(loss_product::arrays_of_numbers))];
    if (!array.empty()) array[k] = random.pick({std::nan(""), infinite, -infinite});
  }
  for (const auto member : {&Data::advantages, &Data::row_weights}) {
    for (double& x : d.*member)
      x = random.chance(poison) ? random.pick({std::nan(""), infinite, -infinite}) : x;
  }
  return d;
}
/// Random lengths of packed rows, 0 among them; the last row is whole.
inline std::vector<int> random_lengths(Random& random, int rows, int width) {
  std::vector<int> n;
  for (int i = 0; i < rows; ++i) n.push_back(i + 1 == rows ? width : random.below(width + 1));
  return n;
}
/// The counts of a batch, by plain loops.
inline gdpo::Normalizer count(const Data& d, const std::vector<int>& lengths = {}) {
  gdpo::Normalizer n;
  n.rows = d.rows, n.given = 3;
  for (int i = 0; i < d.rows; ++i) {
    const int length = lengths.empty() ? d.width : lengths[static_cast<std::size_t>(i)];
    int tokens = 0;
    for (int t = 0; t < length; ++t) tokens += d.valid(i, t);
    n.tokens += tokens, n.non_empty_rows += tokens > 0;
  }
  return n;
}

}  // namespace cuda_loss
