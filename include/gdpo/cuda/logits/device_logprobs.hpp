#pragma once
/// \file
/// Log-probs from logits, and back, on a device: token_logprobs_into, logit_rows and
/// token_logprobs_backward with a device as their first argument.
///
///     const gdpo::cuda::On on{stream};
///     gdpo::token_logprobs_into(on, batch, {logp, entropy, logsumexp});
///     gdpo::token_logprobs_backward(on, batch, {dlogp, {}}, logsumexp, dlogits);
///
/// Each is one launch and needs no scratch. All views are of device memory. Meaning, shapes and
/// settings are those of the host (logits/token_logprobs.hpp).
///
/// **Accuracy.** Vocabulary and storage type decide the order of summation
/// (cuda/logits/logits_rows.hpp), so the bits are the same from run to run and for every tuning and
/// alignment. They are not the bits of the host. For logits of float and of 16 bits an exponential
/// is one ex2.approx, with a relative error of 2^-22:
///   - logsumexp is within 1e-6 of the host's, the entropy within 2e-6 (both absolute);
///   - an entry of the gradient is within 2^-21 (1 + |log p|) of its own size;
///   - where one entry has all the probability, logp is exactly 0.
/// Logits of double are computed in double throughout; |logit / temperature| beyond 1e300 gives
/// NaN.
///
/// **Errors.** invalid_input for shapes, strides and settings, before anything is launched;
/// cuda::error where a launch fails. Data on the device is not checked: a target outside the
/// vocabulary has logp NaN, and its gradient is that of the other entries; offsets that decrease
/// mask the wrong rows.
#include <gdpo/cuda/device/tuning.hpp>
#include <gdpo/cuda/logits/logits_rows.hpp>
#include <gdpo/cuda/tokens/device_tokens.hpp>
#include <gdpo/logits/token_logprobs.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Finds rows of logits, or of their gradient, in memory.
template <class T>
struct DeviceRows {
  T* data = nullptr;
  index_t stride[2] = {};
  index_t width = 0;  ///< of (B, T, V): T; of (N, V): 0

  template <int Rank>
  explicit DeviceRows(const View<T, Rank>& v) : data(v.data) {
    stride[0] = v.stride[0];
    if constexpr (Rank == 3) stride[1] = v.stride[1], width = v.extent[1];
  }
  GDPO_INLINE T* operator()(index_t i) const {
    return width == 0 ? data + i * stride[0] : data + i / width * stride[0] + i % width * stride[1];
  }
};

/// A LogitBatch in device memory.
template <class T>
struct DeviceLogits {
  DeviceRows<const T> row;
  index_t rows, vocabulary, first_token, n_offsets;
  double temperature;
  DeviceTokens<std::int64_t> targets;
  DeviceTokens<unsigned char> mask;
  DeviceColumn<index_t> offsets;

  template <int Rank>
  DeviceLogits(const char* function, const LogitBatch<T, Rank>& b)
      : row(b.logits),
        rows(gdpo::detail::LogitRows<T, Rank>(b).rows()),
        vocabulary(b.logits.extent[Rank - 1]),
        first_token(b.first_token),
        n_offsets(b.offsets.size()),
        temperature(b.temperature),
        targets(function, "targets", b.targets),
        mask(function, "mask", b.mask),
        offsets(function, "offsets", b.offsets) {
    if (rows > INT_MAX || vocabulary > INT_MAX - (1 << 20)) {
      contract::fail(function, "logits", contract::shape(Rank, b.logits.extent),
                     "fewer than 2^31 rows, and a vocabulary of fewer than 2^31 - 2^20");
    }
  }

  GDPO_INLINE gdpo::detail::LogitPlace place(index_t i) const {
    return gdpo::detail::logit_place(row.width, i);
  }
  template <class S>
  GDPO_INLINE S token(const DeviceTokens<S>& tokens, index_t i) const {
    const auto position = place(i);
    return tokens.at(tokens.first(position.row, position.begin), position.t);
  }
  template <class S>
  GDPO_INLINE void put(const DeviceOut<S>& out, index_t i, double value) const {
    if (!out) return;
    const auto position = place(i);
    out.at(out.first(position.row, position.begin), position.t) = static_cast<S>(value);
  }
  GDPO_INLINE bool valid(index_t i) const {
    if (offsets && gdpo::detail::holds(offsets, n_offsets, i + 1)) return false;
    return !mask || token(mask, i) != 0;
  }
  GDPO_INLINE int target(index_t i) const {
    return targets ? static_cast<int>(
                         gdpo::detail::column_of(token(targets, i), first_token, vocabulary))
                   : -1;
  }
};

/// The LogitRow of a row. target: the entry of its target, or -1; x_target: the logit there.
template <class T>
GDPO_DEVICE LogitRow logit_row_of(const RowStats<typename LogitVector<T>::S>& stats,
                                  const DeviceLogits<T>& logits,
                                  typename LogitVector<T>::S x_target, int target) {
  LogitRow row = logit_row_of(stats, logits.temperature);
  if (target >= 0) row.target = math::mul(static_cast<double>(x_target), 1 / logits.temperature);
  return row;
}
template <class T>
GDPO_INLINE typename LogitVector<T>::S logit_at(const T* x, int target) {
  using S = typename LogitVector<T>::S;
  return target < 0 ? S(0) : static_cast<S>(load(load_raw(x + target)));
}

/// One block computes the sums of one row and writes the requested results.
template <class T>
struct LogitRowsKernel {
  static constexpr int largest_block = logit_threads, blocks_at_once = row_blocks_at_once<T>;
  DeviceLogits<T> logits;
  View<LogitRow, 1> out;
  DeviceOut<float> logp{}, entropy{};
  DeviceOut<double> logsumexp{};

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t i = block.index();
    const bool valid = logits.valid(i);
    const T* x = logits.row(i);
    const int target = valid ? logits.target(i) : -1;
    const auto x_target = logit_at(x, target);
    RowStats<typename LogitVector<T>::S> stats;
    if (valid)
      stats = sums_of_row(block, RowVectors<T>(x, logits.vocabulary, block.threads()),
                          logits.temperature);
    block.each([&](int thread) {
      if (thread != 0) return;
      const LogitRow row = valid ? logit_row_of(stats, logits, x_target, target) : LogitRow{};
      if (out) out(i) = row;
      if (logp) logits.put(logp, i, valid ? gdpo::logp(row) : 0.0);
      if (entropy) logits.put(entropy, i, valid ? gdpo::entropy(row) : 0.0);
      if (logsumexp) logits.put(logsumexp, i, valid ? gdpo::logsumexp(row) : 0.0);
    });
  }
};

/// One block computes the gradient of one row.
template <class T, class U>
struct LogitGradientKernel {
  static constexpr int largest_block = logit_threads, blocks_at_once = row_blocks_at_once<T, U>;
  using S = typename LogitVector<T>::S;
  DeviceLogits<T> logits;
  DeviceRows<U> dlogits;
  DeviceTokens<float> g_logp{}, g_entropy{}, entropy{};
  DeviceTokens<double> logsumexp{};

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t i = block.index();
    auto& line = *block.template shared<PowerLine<S>>();
    const T* x = logits.row(i);
    block.each([&](int thread) {
      if (thread != 0) return;
      gdpo::detail::RowGradient gradient;
      if (logits.valid(i)) gradient.g = value(g_logp, i), gradient.g_entropy = value(g_entropy, i);
      if (!math::is_zero(gradient.g) || !math::is_zero(gradient.g_entropy)) {
        gradient.logsumexp = value(logsumexp, i);
        if (g_entropy) gradient.entropy = value(entropy, i);
        if (g_logp) gradient.target = logits.target(i);
      }
      line = PowerLine<S>(gradient,
                          static_cast<double>(logit_at(x, static_cast<int>(gradient.target))),
                          logits.temperature);
    });
    gradient_of_row(block, RowVectors<T>(x, logits.vocabulary, block.threads()), line, dlogits(i));
  }

 private:
  template <class X>
  GDPO_INLINE double value(const DeviceTokens<X>& tokens, index_t i) const {
    return tokens ? static_cast<double>(logits.token(tokens, i)) : 0.0;
  }
};

/// Launches LogitRowsKernel.
template <class Device, class T, int Rank>
void launch_logit_rows(const Device& device, const char* function, const LogitBatch<T, Rank>& batch,
                       const TokenLogprobsOut& out, const View<LogitRow, 1>& rows) {
  const DeviceLogits<T> logits(function, batch);
  LogitRowsKernel<T> kernel{logits, rows};
  kernel.logp = DeviceOut<float>(function, "out.logp", out.logp);
  kernel.entropy = DeviceOut<float>(function, "out.entropy", out.entropy);
  kernel.logsumexp = DeviceOut<double>(function, "out.logsumexp", out.logsumexp);
  device.launch(logits.rows, threads_of<T>(logits.vocabulary), 0, kernel);
}

}  // namespace detail
}  // namespace cuda

/// On a device: log-prob of each target, entropy and logsumexp, in one read of the logits.
template <class Device, class T, int Rank, std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void token_logprobs_into(const Device& device, const LogitBatch<T, Rank>& batch,
                         const TokenLogprobsOut& out) {
  constexpr const char* function = "gdpo::token_logprobs";
  detail::check_whole(function, batch);
  detail::check_logits_shape(function, batch,
                             out.logp ? detail::Targets::OfVocabulary : detail::Targets::Unread);
  detail::check_logprobs_out<Rank>(function, out, batch.logits.extent);
  cuda::detail::launch_logit_rows(device, function, batch, out, {});
}

/// On a device: the rows of one shard of a vocabulary. `out` is on the device, where kernels of
/// yours can merge() the shards.
template <class Device, class T, int Rank, std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void logit_rows(const Device& device, const LogitBatch<T, Rank>& batch, View<LogitRow, 1> out) {
  constexpr const char* function = "gdpo::logit_rows";
  detail::check_logits_shape(function, batch,
                             batch.targets ? detail::Targets::OfShard : detail::Targets::Unread);
  detail::check_rows_out(function, batch, out);
  cuda::detail::launch_logit_rows(device, function, batch, {}, out);
}

/// On a device: the gradient by the logits from gradients by log-probs and entropies.
///
/// The logits are read once and `dlogits` written once; `dlogits` may be the logits themselves.
template <class Device, class T, int Rank, class U,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void token_logprobs_backward(const Device& device, const LogitBatch<T, Rank>& batch,
                             const TokenLogprobsGrad& grad, const TokenView<double>& logsumexp,
                             const TokenView<float>& entropy, View<U, Rank> dlogits) {
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  constexpr const char* function = "gdpo::token_logprobs_backward";
  using cuda::detail::DeviceTokens;
  detail::check_logits_shape(function, batch,
                             grad.logp ? detail::Targets::OfShard : detail::Targets::Unread);
  detail::check_backward(function, batch, grad, logsumexp, entropy, dlogits);
  const cuda::detail::DeviceLogits<T> logits(function, batch);
  using Kernel = cuda::detail::LogitGradientKernel<T, U>;
  Kernel kernel{logits, cuda::detail::DeviceRows<U>(dlogits)};
  kernel.g_logp = DeviceTokens<float>(function, "grad.logp", grad.logp);
  kernel.g_entropy = DeviceTokens<float>(function, "grad.entropy", grad.entropy);
  kernel.entropy = DeviceTokens<float>(function, "entropy", entropy);
  kernel.logsumexp = DeviceTokens<double>(function, "logsumexp", logsumexp);
  device.launch(logits.rows, cuda::detail::threads_of<T>(logits.vocabulary),
                sizeof(cuda::detail::PowerLine<typename Kernel::S>), kernel);
}

GDPO_END_NAMESPACE
