#pragma once
#include <gdpo/core/exec.hpp>
#include <gdpo/logits/batch.hpp>
#include <gdpo/logits/engine/gradient_row.hpp>

GDPO_BEGIN_NAMESPACE

/// What token_logprobs_into writes, each optional, of the shape of the targets; 0 where the mask is 0.
struct TokenLogprobsOut {
  TokenOut<float> logp;        ///< log-probability of the target, nats
  TokenOut<float> entropy;     ///< -sum p log p, nats
  TokenOut<double> logsumexp;  ///< log sum e^(logit / temperature): what the backward needs
};

/// The same as arrays, row after row.
struct TokenLogprobs {
  std::vector<float> logp, entropy;
  std::vector<double> logsumexp;
};

/// dL by what the forward gave: of the shape of the targets, either may be absent. A row where all that are given are 0 is not
/// read.
struct TokenLogprobsGrad {
  TokenView<float> logp, entropy;
};

namespace detail {

/// What rows are computed in: seq one number at a time, the others in registers.
template <class Exec, class T>
using logit_lanes_t = std::conditional_t<std::is_same_v<Exec, Seq>, logit_scalar_t<T>,
                                         math::Native<logit_scalar_t<T>>>;

template <class Exec, class T, int Rank>
LogitRow visit_row(const LogitBatch<T, Rank>& batch, const LogitRows<T, Rank>& rows, index_t i) {
  const T* x = rows.begin(i);
  LogitRow row = sum_row<logit_lanes_t<Exec, T>>(x, rows.vocabulary(), batch.temperature);
  const index_t target = batch.targets ? rows.target(i) : -1;
  if (target >= 0) row.target = math::mul(load(x[target]), 1 / batch.temperature);
  return row;
}

/// f(i) for every row of the logits, on the threads of the target.
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
}
template <class T, int Rank>
void check_rows_out(const char* function, const LogitBatch<T, Rank>& batch,
                    const View<LogitRow, 1>& out) {
  const index_t rows = LogitRows<T, Rank>(batch).rows();
  if (out.extent[0] == rows) return;
  contract::fail(function, "out", contract::text(out.extent[0]) + " rows",
                 "one for each of the " + contract::text(rows) + " rows of logits");
}
template <class T, int Rank, class U>
void check_backward(const char* function, const LogitBatch<T, Rank>& batch,
                    const TokenLogprobsGrad& grad, const TokenView<double>& logsumexp,
                    const TokenView<float>& entropy, const View<U, Rank>& dlogits) {
  using contract::fail;
  check_table(function, "dlogits", dlogits, batch.logits.extent);
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

/// Log-prob of each target, entropy and logsumexp of each row, in one read of the logits and no memory. Float in 16 lanes, double
/// across blocks of 4096; all in double for logits of double. Errors, for float: 5e-7 of logsumexp, 1e-6 of the entropy (both
/// absolute), logp as logsumexp and then rounded to float. The bits do not depend on exec, the register width or the number
/// of threads; builds with FMA have one pattern, those without another; log, and e^x where the reference of a row moves, are the
/// C library's.
///   -inf logits have probability exactly 0; logp of such a target is -inf. Only -inf: logp and entropy NaN, logsumexp -inf.
///   NaN or +inf in a row: all three NaN, as log_softmax of torch.
/// Errors: invalid_input, before anything is written, for shapes, strides, temperature, and targets outside the vocabulary (not
/// of masked rows).
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

/// The same into arrays of its own.
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
template <class T, int Rank>
TokenLogprobs token_logprobs(const LogitBatch<T, Rank>& batch) {
  return token_logprobs(simd, batch);
}
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
template <class T, int Rank, class Id>
TokenLogprobs token_logprobs(View<T, Rank> logits, View<Id, Rank - 1> targets,
                             double temperature = 1) {
  return token_logprobs(simd, logits, targets, temperature);
}

/// One shard of a vocabulary: out (rows, in order) of the columns that it has. merge() them over the shards in the order of the
/// ranks, then logp, entropy and logsumexp of the result. `target` is NaN where the target is in another shard, which is no
/// error, and in all rows without targets. A masked row gives the row of no entry.
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

/// dlogits of each row: (g (onehot - p) - g_entropy p (log p + H)) / temperature; exactly 0 where the mask is 0 or the row's
/// gradients are, and at logits of -inf. logsumexp, and H = entropy where grad.entropy is given: of the forward with the same
/// temperature (of the whole vocabulary, for a shard: a target that it has not adds nothing). dlogits: of the shape of the logits,
/// the vocabulary contiguous; float, double or 16 bits, each rounded once, ties to even. It may be the logits themselves: same
/// data, same strides, same size of an element. One read and one write. Error of an entry: |log p| 2^-22 of itself. Where
/// logsumexp is not finite, the whole row is NaN.
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
    const auto at = [&](const auto& tokens) {
      return tokens ? static_cast<double>(rows.token(tokens, i)) : 0.0;
    };
    U* out = rows.begin(dlogits, i);
    detail::RowGradient of;
    if (rows.valid(i)) of.g = at(grad.logp), of.g_entropy = at(grad.entropy);
    if (math::is_zero(of.g) && math::is_zero(of.g_entropy))
      return detail::fill_row(out, rows.vocabulary(), 0.0);
    of.logsumexp = at(logsumexp);
    if (grad.entropy) of.entropy = at(entropy);
    if (grad.logp) of.target = rows.target(i);
    detail::gradient_row<detail::logit_lanes_t<Exec, T>>(rows.begin(i), out, rows.vocabulary(),
                                                         batch.temperature, of);
  });
}
template <class Exec, class T, int Rank, class U>
void token_logprobs_backward(const Exec& exec, const LogitBatch<T, Rank>& batch,
                             const TokenLogprobsGrad& grad, const TokenView<double>& logsumexp,
                             View<U, Rank> dlogits) {
  token_logprobs_backward(exec, batch, grad, logsumexp, {}, dlogits);
}

GDPO_END_NAMESPACE
