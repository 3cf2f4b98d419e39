#pragma once
// Where the weights of pre-passes go and how they are combined, on the host and on a device.
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

}  // namespace detail

GDPO_END_NAMESPACE
