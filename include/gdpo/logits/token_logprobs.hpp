#pragma once
// token_logprobs_into: log-probs and entropies of tokens from logits.
#include <gdpo/core/exec.hpp>
#include <gdpo/logits/logits_batch.hpp>
#include <gdpo/logits/shared/gradient_row.hpp>

GDPO_BEGIN_NAMESPACE

/// The arrays that `token_logprobs_into` writes.
/// Each has the shape of the targets and may be absent. Masked rows get 0.
struct TokenLogprobsOut {
  TokenOut<float> logp;        ///< Log-prob of the target, in nats.
  TokenOut<float> entropy;     ///< Entropy -sum p log p, in nats.
  TokenOut<double> logsumexp;  ///< log sum e^(logit / temperature); the backward needs it.
};

/// The same results in arrays of their own, one entry for each row in order; masked rows have 0.
struct TokenLogprobs {
  std::vector<float> logp,        ///< Log-prob of the target, in nats.
      entropy;                    ///< Entropy -sum p log p, in nats.
  std::vector<double> logsumexp;  ///< log sum e^(logit / temperature).
};

/// The gradients that the backward starts from, in the shape of the targets.
/// One of the two may be absent. A row where all given gradients are 0 is not read.
struct TokenLogprobsGrad {
  TokenView<float> logp,  ///< d L / d logp.
      entropy;            ///< d L / d entropy.
};

namespace detail {

/// The type in which a row is computed: one number at a time for seq, else a register of lanes.
template <class Exec, class T>
using logit_lanes_t = std::conditional_t<std::is_same_v<Exec, Seq>, logit_scalar_t<T>,
                                         math::Native<logit_scalar_t<T>>>;

/// The sums of row i and the logit of its target, if the batch has targets.
template <class Exec, class T, int Rank>
LogitRow visit_row(const LogitBatch<T, Rank>& batch, const LogitRows<T, Rank>& rows, index_t i) {
  const T* x = rows.begin(i);
  LogitRow row = sum_row<logit_lanes_t<Exec, T>>(x, rows.vocabulary(), batch.temperature);
  const index_t target = batch.targets ? rows.target(i) : -1;
  if (target >= 0) row.target = math::mul(load(x[target]), 1 / batch.temperature);
  return row;
}

/// Calls f(i) for every row of the logits, on the threads of exec.
template <class Exec, class T, int Rank, class F>
void for_each_logit_row(const Exec& exec, const LogitRows<T, Rank>& rows, const F& f) {
  static_assert(needs_exec<Exec>());
  const index_t n = rows.rows();
  for_each_unit(exec, workers_for(exec, n, rows.numbers()), n, [&](index_t, index_t i) { f(i); });
}

template <int Rank>
void check_logprobs_out(const char* function, const TokenLogprobsOut& out, const index_t* logits) {
  check_by_row<Rank>(function, "out.logp", out.logp, logits);
  check_by_row<Rank>(function, "out.entropy", out.entropy, logits);
  check_by_row<Rank>(function, "out.logsumexp", out.logsumexp, logits);
  check_apart(function, "out.logp", out.logp);
  check_apart(function, "out.entropy", out.entropy);
  check_apart(function, "out.logsumexp", out.logsumexp);
}
template <class T, int Rank>
void check_rows_out(const char* function, const LogitBatch<T, Rank>& batch,
                    const View<LogitRow, 1>& out) {
  const index_t rows = LogitRows<T, Rank>(batch).rows();
  if (out.extent[0] != rows) {
    contract::fail(function, "out", contract::text(out.extent[0]) + " rows",
                   "one for each of the " + contract::text(rows) + " rows of logits");
  }
  contract::check_written(function, "out", out);
}
template <class T, int Rank, class U>
void check_backward(const char* function, const LogitBatch<T, Rank>& batch,
                    const TokenLogprobsGrad& grad, const TokenView<double>& logsumexp,
                    const TokenView<float>& entropy, const View<U, Rank>& dlogits) {
  using contract::fail;
  check_written_table(function, "dlogits", dlogits, batch.logits.extent);
  if (LogitRows<T, Rank>(batch).rows() > 0) {  // arrays of no element may be null
    if (!grad.logp && !grad.entropy)
      fail(function, "grad", "neither logp nor entropy", "one of them, or both");
    if (!logsumexp) fail(function, "logsumexp", "no array", "that of the forward");
    if (grad.entropy && !entropy)
      fail(function, "entropy", "no array", "that of the forward, with grad.entropy");
  }
  check_by_row<Rank>(function, "grad.logp", grad.logp, batch.logits.extent);
  check_by_row<Rank>(function, "grad.entropy", grad.entropy, batch.logits.extent);
  check_by_row<Rank>(function, "logsumexp", logsumexp, batch.logits.extent);
  check_by_row<Rank>(function, "entropy", entropy, batch.logits.extent);
}

}  // namespace detail

/// Log-prob of each target, entropy and logsumexp of each row, in one read of the logits.
/// It allocates nothing. With z = logit / temperature:
///
///     logsumexp = log sum_j e^z_j,   logp = z_target - logsumexp,   entropy = -sum_j p_j log p_j
///
/// **Accuracy.** Sums over a block of 4096 entries are in float, in 16 lanes, and sums of blocks in
/// double; everything is in double for logits of double. Absolute errors for the other types: 5e-7
/// of logsumexp, 1e-6 of the entropy, and logp as logsumexp; logp and entropy are then rounded to
/// float.
///
/// **Bits.** They do not depend on exec, the register width or the number of threads. Builds with
/// fused multiply-add (FMA) have one pattern, builds without it another. The log, and e^x where the
/// reference of a row moves, are those of the C library.
///
/// **Special values.** A logit of -inf has probability exactly 0, and logp of such a target is
/// -inf. A row of -inf alone has NaN as logp and entropy and -inf as logsumexp. A NaN or +inf in a
/// row makes all three NaN, as log_softmax of PyTorch does.
///
/// Targets may be absent if out.logp is. Errors: `invalid_input`, before anything is written, for
/// shapes, strides and temperatures that do not fit, for a shard (first_token is not 0), and for
/// targets outside the vocabulary in rows that count.
template <class Exec, class T, int Rank, std::enable_if_t<!detail::is_device_v<Exec>, int> = 0>
void token_logprobs_into(const Exec& exec, const LogitBatch<T, Rank>& batch,
                         const TokenLogprobsOut& out) {
  constexpr const char* function = "gdpo::token_logprobs";
  detail::check_whole(function, batch);
  detail::check_logits(function, batch,
                       out.logp ? detail::Targets::OfVocabulary : detail::Targets::Unread);
  detail::check_logprobs_out<Rank>(function, out, batch.logits.extent);
  const detail::LogitRows<T, Rank> rows(batch);
  detail::for_each_logit_row(exec, rows, [&](index_t i) {
    const bool valid = rows.valid(i);
    const LogitRow row = valid ? detail::visit_row<Exec>(batch, rows, i) : LogitRow{};
    rows.put(out.logp, i, valid ? logp(row) : 0.0);
    rows.put(out.entropy, i, valid ? entropy(row) : 0.0);
    rows.put(out.logsumexp, i, valid ? logsumexp(row) : 0.0);
  });
}

/// `token_logprobs_into` with arrays of its own. Targets are required.
template <class Exec, class T, int Rank, std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
TokenLogprobs token_logprobs(const Exec& exec, const LogitBatch<T, Rank>& batch) {
  detail::check_logits("gdpo::token_logprobs", batch, detail::Targets::OfVocabulary);
  const detail::LogitRows<T, Rank> rows(batch);
  const auto n = static_cast<std::size_t>(rows.rows());
  TokenLogprobs result{std::vector<float>(n), std::vector<float>(n), std::vector<double>(n)};
  token_logprobs_into(
      exec, batch,
      {rows.dense(result.logp), rows.dense(result.entropy), rows.dense(result.logsumexp)});
  return result;
}
/// The same on one thread in lanes (`simd`).
template <class T, int Rank>
TokenLogprobs token_logprobs(const LogitBatch<T, Rank>& batch) {
  return token_logprobs(simd, batch);
}
/// The same from views, without a mask. logits: (N, V) or (B, T, V). targets: (N) or (B, T).
template <class Exec, class T, int Rank, class Id,
          std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
TokenLogprobs token_logprobs(const Exec& exec, View<T, Rank> logits, View<Id, Rank - 1> targets,
                             double temperature = 1) {
  LogitBatch<std::remove_const_t<T>, Rank> batch;
  batch.logits = logits;
  batch.targets = targets;
  batch.temperature = temperature;
  return token_logprobs(exec, batch);
}
/// The same from views, on one thread in lanes (`simd`).
template <class T, int Rank, class Id>
TokenLogprobs token_logprobs(View<T, Rank> logits, View<Id, Rank - 1> targets,
                             double temperature = 1) {
  return token_logprobs(simd, logits, targets, temperature);
}

/// The LogitRow of each row, over one shard of the vocabulary.
/// `merge()` the rows of all shards in the order of their ranks, then take `logp`, `entropy` and
/// `logsumexp` of the result. The accuracy is that of `token_logprobs_into`.
///
/// batch: the columns of the shard; first_token is the token of column 0.
/// out: one entry for each row in order. `target` is NaN if the target is in another shard or the
/// batch has no targets. A masked row gives a LogitRow without entries.
/// Errors: `invalid_input`, before anything is written, for shapes and settings that do not fit and
/// for targets below 0 in rows that count.
template <class Exec, class T, int Rank, std::enable_if_t<!detail::is_device_v<Exec>, int> = 0>
void logit_rows(const Exec& exec, const LogitBatch<T, Rank>& batch, View<LogitRow, 1> out) {
  constexpr const char* function = "gdpo::logit_rows";
  detail::check_logits(function, batch,
                       batch.targets ? detail::Targets::OfShard : detail::Targets::Unread);
  const detail::LogitRows<T, Rank> rows(batch);
  detail::check_rows_out(function, batch, out);
  detail::for_each_logit_row(exec, rows, [&](index_t i) {
    out(i) = rows.valid(i) ? detail::visit_row<Exec>(batch, rows, i) : LogitRow{};
  });
}

/// The gradient by the logits, from the gradients by log-probs and entropies. g = grad.logp, h =
/// grad.entropy, H = entropy, p the softmax, one 1 at the target and 0 elsewhere:
///
///     dlogits_j = (g (one_j - p_j) - h p_j (log p_j + H)) / temperature
///
/// since d logp / d z_j = one_j - p_j and d H / d z_j = -p_j (log p_j + H).
///
/// logsumexp, entropy: those of the forward with the same temperature, in the shape of the targets;
/// entropy only with grad.entropy. For a shard they are those of the whole vocabulary, and a target
/// in another shard adds nothing.
/// dlogits: the shape of the logits, with stride 1 over the vocabulary; float, double or 16-bit
/// floats, rounded once, ties to even. It may be the logits themselves: the same data and strides,
/// and elements of the same size. One read and one write of memory.
///
/// Rows that are masked or whose gradients are 0 become exactly 0, and so do entries whose logit is
/// -inf, except the target's. If logsumexp is not finite, the whole row is NaN.
///
/// **Accuracy** for float: p_j has a relative error of |log p_j| 2^-23 + 1.5e-6, which includes
/// that of logsumexp. At the target, 1 - p is computed as -expm1(log p) with log p = z - logsumexp,
/// so it has the absolute error of logsumexp: up to 5e-7, and for logits of double about
/// 2^-53 |logsumexp|, the rounding of the stored number. Where p is near 1, a 1 - p that is smaller
/// than that is noise. Logits that are shifted to a largest one near 0 keep it.
///
/// Errors: `invalid_input`, before anything is written, for shapes and settings that do not fit,
/// missing arrays, and targets below 0 in rows that count.
template <class Exec, class T, int Rank, class U,
          std::enable_if_t<!detail::is_device_v<Exec>, int> = 0>
void token_logprobs_backward(const Exec& exec, const LogitBatch<T, Rank>& batch,
                             const TokenLogprobsGrad& grad, const TokenView<double>& logsumexp,
                             const TokenView<float>& entropy, View<U, Rank> dlogits) {
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  constexpr const char* function = "gdpo::token_logprobs_backward";
  detail::check_logits(function, batch,
                       grad.logp ? detail::Targets::OfShard : detail::Targets::Unread);
  detail::check_backward(function, batch, grad, logsumexp, entropy, dlogits);
  const detail::LogitRows<T, Rank> rows(batch);
  detail::for_each_logit_row(exec, rows, [&](index_t i) {
    const auto value = [&](const auto& tokens) {
      return tokens ? static_cast<double>(rows.token(tokens, i)) : 0.0;
    };
    U* out = rows.begin(dlogits, i);
    detail::RowGradient gradient;
    if (rows.valid(i)) gradient.g = value(grad.logp), gradient.g_entropy = value(grad.entropy);
    if (math::is_zero(gradient.g) && math::is_zero(gradient.g_entropy))
      return detail::fill_row(out, rows.vocabulary(), 0.0);
    gradient.logsumexp = value(logsumexp);
    if (grad.entropy) gradient.entropy = value(entropy);
    if (grad.logp) gradient.target = rows.target(i);
    detail::gradient_row<detail::logit_lanes_t<Exec, T>>(rows.begin(i), out, rows.vocabulary(),
                                                         batch.temperature, gradient);
  });
}
/// The same without entropies: grad.entropy must be absent.
template <class Exec, class T, int Rank, class U>
void token_logprobs_backward(const Exec& exec, const LogitBatch<T, Rank>& batch,
                             const TokenLogprobsGrad& grad, const TokenView<double>& logsumexp,
                             View<U, Rank> dlogits) {
  token_logprobs_backward(exec, batch, grad, logsumexp, {}, dlogits);
}

GDPO_END_NAMESPACE
