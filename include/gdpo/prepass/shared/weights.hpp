#pragma once
// Where the weights of pre-passes go and how they are combined, on the host and on a device.
#include <gdpo/loss/map.hpp>
#include <gdpo/math/log1p.hpp>
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether a pre-pass with this reach writes TokenBatch::weights.
constexpr bool reaches_surrogate(Reach reach) {
  return reach == Reach::Surrogate || reach == Reach::SurrogateAndKl;
}
/// Whether it writes TokenBatch::kl_weights.
constexpr bool reaches_kl(Reach reach) {
  return reach == Reach::Kl || reach == Reach::SurrogateAndKl;
}

/// Whether it writes TokenBatch::entropy_weights.
constexpr bool reaches_entropy(Reach reach) { return reach == Reach::Entropy; }
/// Whether it writes TokenBatch::level_log_weights.
constexpr bool reaches_level(Reach reach) { return reach == Reach::Level; }

/// Whether the weights of a pre-pass are one number for all tokens of a segment, row or group.
template <class P, class = void>
constexpr bool knows_sharing_v = false;
template <class P>
constexpr bool knows_sharing_v<P, std::void_t<decltype(std::declval<const P&>().is_shared())>> =
    true;
template <class P>
bool is_shared(const P& pass) {
  if constexpr (knows_sharing_v<P>) {
    return pass.is_shared();
  } else {
    return false;
  }
}

/// A view of `data`, one number per position in row order, with the shape of the batch.
template <class T>
TokenView<T> dense(const TokenLayout& layout, T* data) {
  const index_t* extent = layout.shape.extent;
  if (layout.shape.rank < 2) return gdpo::view(data, layout.tokens);
  if (layout.shape.rank == 2) return gdpo::view(data, extent[0], extent[1]);
  return gdpo::view(data, extent[0], extent[1], extent[2]);
}
template <class T>
TokenView<T> dense(const TokenLayout& layout, std::vector<T>& values) {
  return dense(layout, values.data());
}

/// The product of two weights; 0 if one of them is 0, even if the other is NaN or infinite.
template <class S>
GDPO_INLINE S weighed(S a, S b) {
  return math::is_zero(a) || math::is_zero(b) ? S(0) : math::mul(a, b);
}

/// The largest finite number of S.
template <class S>
constexpr double largest_number = (std::numeric_limits<S>::max)();
/// The weight of a pre-pass as a batch stores it; infinite where it is too large for S.
template <class S>
GDPO_INLINE S stored_weight(double weight) {
  return static_cast<S>(weight > largest_number<S> ? math::infinity : weight);
}

/// Bounds of the log of a weight with Reach::Level, in nats: log 1e-8 and 20, as in TRL and
/// unsloth.
inline constexpr double lowest_level_log = -18.420680743952367, highest_level_log = 20;
/// The log of a weight within these bounds, to a few units in the last place; NaN for a weight that
/// is NaN or negative.
GDPO_INLINE double level_log_of(double weight) {
  constexpr double lowest = 1e-8, highest = 485165195.40979028;  // e to the bounds
  if (math::is_nan(weight) || weight < 0) return math::nan();
  if (weight <= lowest) return lowest_level_log;
  if (weight >= highest) return highest_level_log;
  // Below 1/2, w - 1 would lose digits of w; 1 / w - 1 does not.
  const double log = weight < 0.5 ? -math::log1p(1 / weight - 1) : math::log1p(weight - 1);
  return bound(Bounds{lowest_level_log, highest_level_log}, log).value;
}

/// What level_log_weights hold at a token, after a weight with Reach::Level.
template <class S>
GDPO_INLINE S with_level_log(S log, S weight) {
  return static_cast<S>(static_cast<double>(log) + level_log_of(static_cast<double>(weight)));
}

}  // namespace detail

GDPO_END_NAMESPACE
