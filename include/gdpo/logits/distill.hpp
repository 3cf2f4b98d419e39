#pragma once
// distillation_from_logits: a teacher's most probable tokens against the logits of the policy, with
// the gradient by the logits, in one pass over each row.
#include <gdpo/logits/distillation_loss.hpp>
#include <gdpo/logits/distillation_result.hpp>
#include <gdpo/logits/loss_from_logits.hpp>
#include <gdpo/logits/shared/distill_position.hpp>

GDPO_BEGIN_NAMESPACE

/// The tokens that a teacher holds for most probable at each position, with their log-probs: what
/// an inference engine returns for top_logprobs = K.
///
///     gdpo::TeacherTopK<3> teacher{gdpo::view(logp, sequences, width, k),
///                                  gdpo::view(ids, sequences, width, k)};
///
/// Both are (B, T, K) for logits (B, T, V), or (N, K) for logits (N, V), with any strides; position
/// (b, t) is the distribution of the token that row (b, t) of the logits predicts. The tokens of a
/// position are distinct, in any order. A log-prob of -infinity is a place without a token: its id
/// is not read, so positions may list fewer than K. S and Id are the stored types.
template <int Rank, class S = float, class Id = std::int64_t>
struct TeacherTopK {
  static_assert(std::is_integral_v<Id>, "ids of tokens are integers");
  View<const S, Rank> logp;  ///< Log-probs of the teacher, in nats.
  View<const Id, Rank> ids;  ///< The tokens that they are of.
};

/// What a shard of the vocabulary has to know of the others, for distillation_from_sums().
struct DistillationSums {
  /// (N) The LogitRow of each row, merged over the shards. Not read with Rest::Renormalize.
  View<const LogitRow, 1> rows{};
  /// (N, K) What topk_logits() wrote, added over the shards.
  View<const double, 2> topk{};
};

namespace detail {
/// The tokens of a position, as a worker computes it.
struct DistillWorker {
  std::vector<ListedToken> tokens;
  std::vector<DistilledSlope> slopes;
  std::vector<index_t> columns;  ///< Of each token among the logits; -1: not among them.
};
}  // namespace detail

/// Memory of distillation_from_logits(), kept between calls, with the results of the last call.
/// After a first call with the same shapes and executor, nothing is allocated. It serves one call
/// at a time.
struct DistillationWorkspace {
  std::vector<double> loss,  ///< L of each row of logits; 0 where masked.
      student_mass,          ///< The policy's probability of the k tokens.
      teacher_mass,          ///< The teacher's probability of the k tokens.
      weights;               ///< Weight of each row of logits in the loss; 0 where masked.
  LogitsWorkspace logits;    ///< logsumexp and mask of each row of logits.
  std::vector<detail::DistillWorker> workers;  ///< Memory of the workers of the executor.
  detail::RowMemory<float> row;                ///< A row of the batch.
};

namespace detail {

/// Element (i, j) of a view with K numbers for each row i of logits.
template <int Rank, class T, class LogitsOf>
GDPO_INLINE T& of_row(const View<T, Rank>& v, const LogitsOf& rows, index_t i, index_t j) {
  if constexpr (Rank == 2) {
    return v(i, j);
  } else {
    const LogitPlace place = rows.place(i);
    return v(place.row, place.t, j);
  }
}

/// Checks the shapes of the teacher's arrays.
template <class T, int Rank, class S, class Id>
void check_teacher_shape(const char* function, const LogitBatch<T, Rank>& logits,
                         const TeacherTopK<Rank, S, Id>& teacher) {
  using contract::fail;
  index_t shape[Rank];
  for (int r = 0; r < Rank - 1; ++r) shape[r] = logits.logits.extent[r];
  shape[Rank - 1] = teacher.logp.extent[Rank - 1];
  const auto check = [&](const char* name, const auto& v) {
    const index_t elements = contract::check_extents(function, name, Rank, v.extent);
    for (int r = 0; r < Rank; ++r) {
      if (v.extent[r] == shape[r]) continue;
      fail(function, name, contract::shape(Rank, v.extent),
           contract::shape(Rank, shape) + ", the rows of logits with K tokens each");
    }
    if (elements > 0 && !v) {
      fail(function, name, "no array", contract::shape(Rank, shape) + " numbers");
    }
  };
  check("teacher.logp", teacher.logp);
  check("teacher.ids", teacher.ids);
}
/// Checks the teacher's arrays, and the tokens of the rows that count.
template <class T, int Rank, class S, class Id, class Valid>
void check_teacher(const char* function, const LogitBatch<T, Rank>& logits,
                   const TeacherTopK<Rank, S, Id>& teacher, bool of_shard, const Valid& valid) {
  using contract::fail, contract::text;
  check_teacher_shape(function, logits, teacher);
  const LogitRows<T, Rank> rows(logits);
  for (index_t i = 0; i < rows.rows(); ++i) {
    if (!valid(i)) continue;
    for (index_t j = 0; j < teacher.logp.extent[Rank - 1]; ++j) {
      const double logp = load(of_row<Rank>(teacher.logp, rows, i, j));
      if (math::is_inf(logp) && logp < 0) continue;
      const auto id = static_cast<std::int64_t>(of_row<Rank>(teacher.ids, rows, i, j));
      if (id >= 0 && (of_shard || id < rows.vocabulary())) continue;
      fail(function, "teacher.ids",
           std::to_string(id) + " at row " + rows.name(i) + ", place " + text(j),
           of_shard ? "a token: at least 0, or a log-prob of -infinity"
                    : "a token: from 0 to " + text(rows.vocabulary() - 1) +
                          ", or a log-prob of -infinity");
    }
  }
}

/// The weight of each row of logits in the loss, and the counts of the batch.
template <class Call>
Normalizer weigh_positions(const Call& call, const TokenBatch<float>& batch,
                           DistillationWorkspace& workspace, DistillationMetrics& metrics) {
  Normalizer seen;
  call.reserve(workspace.row);
  const TokenLayout& layout = call.layout();
  seen.rows = static_cast<double>(layout.rows);
  for (index_t i = 0; i < layout.rows; ++i) {
    const auto read = call.read(i, workspace.row, metrics.weights);
    const index_t begin = layout(i).begin;
    for (index_t t = 0; t < read.row.length; ++t) {
      if (!read.row.valid(t)) continue;
      double weight = read.weight;
      if (batch.weights && !math::is_zero(weight)) {
        weight = math::mul(weight, static_cast<double>(batch.weights.at(i, begin, t)));
        if (math::not_finite(weight)) note(metrics.weights, i, t), weight = 0;
      }
      workspace.weights[static_cast<std::size_t>(begin + t)] = weight;
    }
    seen.tokens += static_cast<double>(read.tokens), seen.non_empty_rows += read.tokens > 0;
    ++metrics.rows, metrics.empty_rows += read.tokens == 0;
  }
  return seen;
}

/// Adds the losses of all rows: within a sequence in the order of its rows, then the sequences.
inline double add_positions(const TokenLayout& layout, const std::vector<unsigned char>& mask,
                            bool has_mass, DistillationWorkspace& workspace,
                            DistillationMetrics& metrics) {
  double total = 0;
  for (index_t i = 0; i < layout.rows; ++i) {
    const RowSpan span = layout(i);
    double of_sequence = 0, loss = 0, student = 0, teacher = 0;
    index_t tokens = 0;
    const auto range = [](Metric& m, double value) {
      m.min = (math::min)(m.min, value), m.max = (math::max)(m.max, value);
    };
    for (index_t t = 0; t < span.length; ++t) {
      const auto k = static_cast<std::size_t>(span.begin + t);
      if (mask[k] == 0) continue;
      ++tokens;
      const double value = workspace.loss[k], weight = workspace.weights[k];
      if (math::not_finite(value)) note(metrics.losses, i, t);
      if (!math::is_zero(weight)) of_sequence += math::mul(weight, value);
      loss += value, student += workspace.student_mass[k], teacher += workspace.teacher_mass[k];
      if (!math::is_nan(value)) range(metrics.loss, value);
      if (has_mass) {
        range(metrics.student_mass, workspace.student_mass[k]);
        range(metrics.teacher_mass, workspace.teacher_mass[k]);
      }
    }
    total += of_sequence;
    add_sequence(metrics.loss, loss, tokens);
    if (has_mass) {
      add_sequence(metrics.student_mass, student, tokens);
      add_sequence(metrics.teacher_mass, teacher, tokens);
    }
  }
  return total;
}

/// The tokens that the teacher lists for row i, in their order; places without a token are left
/// out. log_q is what `sums` has; without them the logit over the temperature, 0 where it is not
/// among the columns. Returns their number.
template <class T, int Rank, class S, class Id>
index_t gather_topk(const LogitBatch<T, Rank>& batch, const LogitRows<T, Rank>& rows,
                    const DistillationSums* sums, const TeacherTopK<Rank, S, Id>& teacher,
                    index_t i, DistillWorker& worker) {
  index_t n = 0;
  const T* x = rows.begin(i);
  for (index_t j = 0; j < teacher.logp.extent[Rank - 1]; ++j) {
    const double of_teacher = load(of_row<Rank>(teacher.logp, rows, i, j));
    if (math::is_inf(of_teacher) && of_teacher < 0) continue;
    const auto id = static_cast<std::int64_t>(of_row<Rank>(teacher.ids, rows, i, j));
    const index_t column = column_of(id, batch.first_token, rows.vocabulary());
    const auto place = static_cast<std::size_t>(n++);
    worker.columns[place] = column;
    double log_q = 0;
    if (sums) {
      log_q = sums->topk(i, j);
    } else if (column >= 0) {
      log_q = math::mul(load(x[column]), 1 / batch.temperature);
    }
    worker.tokens[place] = {of_teacher, log_q};
  }
  return n;
}

/// distillation_from_logits() and, with `sums`, distillation_from_sums().
template <class Exec, class T, int Rank, class S, class Id, class U>
DistillationResult distill(const char* function, const Exec& exec, const DistillationLoss& loss,
                           const LogitBatch<T, Rank>& logits, const DistillationSums* sums,
                           const TeacherTopK<Rank, S, Id>& teacher, const TokenBatch<float>& batch,
                           const Normalizer& normalizer, const View<U, Rank>& dlogits,
                           DistillationWorkspace& workspace) {
  check_fields(function, "", loss);
  const TokenBatch<float> bound = bind_logits(function, logits, batch, workspace.logits);
  const LogitRows<T, Rank> rows(logits);
  const auto& mask = workspace.logits.mask;
  if (!sums) check_whole(function, logits);
  check_teacher(function, logits, teacher, sums != nullptr,
                [&](index_t i) { return mask[static_cast<std::size_t>(i)] != 0; });
  if (dlogits) check_written_table(function, "dlogits", dlogits, logits.logits.extent);
  const index_t tokens_a_row = teacher.logp.extent[Rank - 1], n_rows = rows.rows();
  const bool reads_rows = loss.rest != Rest::Renormalize;
  if (sums && n_rows > 0) {
    const index_t n_sums = sums->rows.extent[0], shape[2] = {n_rows, tokens_a_row};
    if (reads_rows && (!sums->rows || n_sums != n_rows)) {
      contract::fail(function, "sums.rows",
                     sums->rows ? contract::text(n_sums) + " rows" : contract::Text("no array"),
                     "one for each of the " + contract::text(n_rows) + " rows of logits");
    }
    const index_t* const extent = sums->topk.extent;
    if ((!sums->topk && tokens_a_row > 0) || extent[0] != n_rows || extent[1] != tokens_a_row) {
      contract::fail(function, "sums.topk",
                     sums->topk ? contract::shape(2, extent) : contract::Text("no array"),
                     contract::shape(2, shape) + " numbers");
    }
  }
  const TokenLayout layout = layout_of(function, bound, NeedsLogp::Yes);
  check_width(function, loss.aggregate, layout);
  check_group(function, loss.aggregate, bound, layout);
  const TokenOut<float> no_gradient{};
  const RowDriver<float, Aggregate> call(function, loss.aggregate, bound, layout,
                                         TokenReads::none(), normalizer, no_gradient);

  DistillationResult result;
  const auto n = static_cast<std::size_t>(n_rows);
  workspace.weights.assign(n, 0.0);
  workspace.loss.resize(n), workspace.student_mass.resize(n), workspace.teacher_mass.resize(n);
  const Normalizer seen = weigh_positions(call, bound, workspace, result.metrics);
  check_seen(function, call.over(), normalizer, seen);

  const index_t workers = workers_for(exec, n_rows, rows.numbers());
  const auto k = static_cast<std::size_t>(tokens_a_row);
  if (workspace.workers.size() < static_cast<std::size_t>(workers))
    workspace.workers.resize(static_cast<std::size_t>(workers));
  for (DistillWorker& worker : workspace.workers) {
    worker.tokens.resize(k), worker.slopes.resize(k), worker.columns.resize(k);
  }
  LogitBatch<T, Rank> without_targets = logits;
  without_targets.targets = {};
  for_each_unit(exec, workers, n_rows, [&](index_t w, index_t i) {
    const auto place = static_cast<std::size_t>(i);
    DistillWorker& worker = workspace.workers[static_cast<std::size_t>(w)];
    DistilledPosition position;
    index_t count = 0;
    double log_sum = 0;
    if (mask[place] != 0) {
      count = gather_topk(logits, rows, sums, teacher, i, worker);
      const DistillPlan plan(loss, count, sums ? 0 : rows.vocabulary());
      ListedToken* const tokens = worker.tokens.data();
      if (plan.reads_row) {
        const LogitRow row = sums ? sums->rows(i) : visit_row<Exec>(without_targets, rows, i);
        const PolicyLogs policy(row);
        log_sum = logsumexp(row);
        for (index_t j = 0; j < count; ++j)
          tokens[j].log_q = as_teacher<S>(policy(tokens[j].log_q));
      }
      position = distill_position(loss, plan, count, tokens, worker.slopes.data());
    }
    workspace.logits.logsumexp[place] = log_sum;
    workspace.loss[place] = position.loss;
    workspace.student_mass[place] = position.student_mass;
    workspace.teacher_mass[place] = position.teacher_mass;
    if (!dlogits) return;
    U* const out = rows.begin(dlogits, i);
    const double weight = workspace.weights[place];
    const bool none = math::is_zero(weight);
    RowGradient gradient;
    gradient.g = none ? 0.0 : -math::mul(weight, position.elsewhere);
    gradient.logsumexp = log_sum;
    if (math::is_zero(gradient.g)) {
      fill_row(out, rows.vocabulary(), 0.0);
    } else {
      gradient_row<logit_lanes_t<Exec, T>>(rows.begin(i), out, rows.vocabulary(),
                                           logits.temperature, gradient);
    }
    if (none) return;
    const double scale = math::mul(weight, 1 / logits.temperature);
    for (std::size_t j = 0; j < static_cast<std::size_t>(count); ++j) {
      if (worker.columns[j] >= 0)
        store(out[worker.columns[j]], math::mul(scale, position.at(worker.slopes[j])));
    }
  });
  result.loss = add_positions(layout, mask, reads_rows, workspace, result.metrics);
  result.normalizer = normalizer, result.over = call.over();
  return result;
}

}  // namespace detail

/// The divergence between a teacher and the policy over the teacher's tokens (DistillationLoss),
/// straight from the logits of the policy, with its gradient by the logits.
///
///     gdpo::DistillationWorkspace workspace;
///     const gdpo::DistillationResult r = gdpo::distillation_from_logits(
///         gdpo::simd, gdpo::DistillationLoss{}, logits, teacher, batch,
///         gdpo::count(logits, batch), dlogits, workspace);
///
/// With q = softmax(logits / temperature), p the teacher's probabilities of its k tokens,
/// c_i = d L / d log q_i and C = sum c_i, a position of weight W gets
///
///     dlogits_j = W (c_j - C q_j) / temperature      at the k tokens
///     dlogits_j = -W C q_j / temperature             elsewhere; 0 with Rest::Renormalize
///     c = -p                                         forward KL
///     c = q (1 - log p + log q)                      reverse KL
///     c = (1 - beta) q log(q / m)                    Jensen-Shannon
///
/// and with Rest::Tail what follows from the same formulas for one more token. Where q = p in every
/// bit, the policy's log-probs being rounded as those of the teacher are stored, L is exactly 0;
/// where the k tokens are the whole vocabulary, so is the gradient.
///
/// - logits: (B, T, V) or packed (N, V), the whole vocabulary; their targets are not read.
/// - teacher: K tokens for each row of logits.
/// - batch: mask, offsets, `weights` of positions and `row_weights` are read, as for a loss; its
///   other arrays are not, so pre-passes that need no log-probs work.
/// - normalizer: `count(logits, batch)`, added over the micro-batches and ranks of the step.
/// - dlogits: as for `token_logprobs_backward`; it may be the logits themselves, and `{}` is none.
///   A row is exactly 0 where the mask or its weight is 0, and where DistillationLoss::bounds hold
///   L.
///
/// **Cost.** One read of each row for its logsumexp and one read and one write for the gradient,
/// while it is in the cache, as policy_loss_from_logits at level::Token; with Rest::Renormalize the
/// logits of the k tokens alone are read. 62 bytes of the workspace for each row.
///
/// **Bits.** They do not depend on exec or the number of threads. The logarithms and powers of the
/// k tokens are in double, those of the C library.
///
/// **Special values.** A logit of -infinity has q = 0: L of the forward KL is infinite where p is
/// not 0, the others are finite. A NaN or +infinity in a row makes its loss and gradient NaN; with
/// Rest::Renormalize only among the k tokens. DistillationMetrics::losses counts them.
///
/// Errors: `invalid_input`, before anything is written, for settings, shapes and strides that do
/// not fit, tokens outside the vocabulary in rows that count, a shard, and counts as in a policy
/// loss.
template <class Exec, class T, int Rank, class S, class Id, class U,
          std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
DistillationResult distillation_from_logits(const Exec& exec, const DistillationLoss& loss,
                                            const LogitBatch<T, Rank>& logits,
                                            const TeacherTopK<Rank, S, Id>& teacher,
                                            const TokenBatch<float>& batch,
                                            const Normalizer& normalizer, View<U, Rank> dlogits,
                                            DistillationWorkspace& workspace) {
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  return detail::distill("gdpo::distillation_from_logits", exec, loss, logits, nullptr, teacher,
                         batch, normalizer, dlogits, workspace);
}
/// The same on one thread in lanes (`simd`), with a workspace of its own.
template <class T, int Rank, class S, class Id, class U>
DistillationResult distillation_from_logits(const DistillationLoss& loss,
                                            const LogitBatch<T, Rank>& logits,
                                            const TeacherTopK<Rank, S, Id>& teacher,
                                            const TokenBatch<float>& batch,
                                            const Normalizer& normalizer, View<U, Rank> dlogits) {
  DistillationWorkspace workspace;
  return distillation_from_logits(simd, loss, logits, teacher, batch, normalizer, dlogits,
                                  workspace);
}

/// The logits of the teacher's tokens in one shard of the vocabulary, over the temperature, and 0
/// for tokens of other shards and places without a token. Add them over all shards (an all-reduce
/// with sum), which is exact, because one of them has each token.
///
/// batch: the columns of the shard; first_token is the token of column 0. out: (N, K), one row for
/// each row of logits in order; 0 in masked rows.
/// Errors: `invalid_input`, before anything is written, for shapes and settings that do not fit.
template <class Exec, class T, int Rank, class S, class Id,
          std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
void topk_logits(const Exec& exec, const LogitBatch<T, Rank>& batch,
                 const TeacherTopK<Rank, S, Id>& teacher, View<double, 2> out) {
  constexpr const char* function = "gdpo::topk_logits";
  detail::check_logits(function, batch, detail::Targets::Unread);
  const detail::LogitRows<T, Rank> rows(batch);
  detail::check_teacher(function, batch, teacher, true, [&](index_t i) { return rows.valid(i); });
  const index_t shape[2] = {rows.rows(), teacher.logp.extent[Rank - 1]};
  contract::check_written(function, "out", out);
  if (out.extent[0] != shape[0] || out.extent[1] != shape[1]) {
    contract::fail(function, "out", contract::shape(2, out.extent), contract::shape(2, shape));
  }
  detail::for_each_logit_row(exec, rows, [&](index_t i) {
    for (index_t j = 0; j < shape[1]; ++j) {
      out(i, j) = 0;
      if (!rows.valid(i)) continue;
      const double logp = load(detail::of_row<Rank>(teacher.logp, rows, i, j));
      if (math::is_inf(logp) && logp < 0) continue;
      const auto id = static_cast<std::int64_t>(detail::of_row<Rank>(teacher.ids, rows, i, j));
      const index_t column = detail::column_of(id, batch.first_token, rows.vocabulary());
      if (column >= 0) out(i, j) = math::mul(load(rows.begin(i)[column]), 1 / batch.temperature);
    }
  });
}

/// distillation_from_logits() for one shard of the vocabulary, from sums over all of them:
///
///     gdpo::logit_rows(exec, shard, rows);                       // merge() over the shards
///     gdpo::topk_logits(exec, shard, teacher, topk);             // add over the shards
///     gdpo::distillation_from_sums(exec, loss, shard, {rows, topk}, teacher, batch, n, dlogits,
///                                  workspace);
///
/// It returns the same result on every shard and writes the gradient by the shard's logits. Loss
/// and gradient differ from those of the whole vocabulary by the rounding of the merged logsumexp.
/// That the k tokens are the whole vocabulary is not noticed here. Errors as there.
template <class Exec, class T, int Rank, class S, class Id, class U,
          std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
DistillationResult distillation_from_sums(const Exec& exec, const DistillationLoss& loss,
                                          const LogitBatch<T, Rank>& shard,
                                          const DistillationSums& sums,
                                          const TeacherTopK<Rank, S, Id>& teacher,
                                          const TokenBatch<float>& batch,
                                          const Normalizer& normalizer, View<U, Rank> dlogits,
                                          DistillationWorkspace& workspace) {
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  return detail::distill("gdpo::distillation_from_sums", exec, loss, shard, &sums, teacher, batch,
                         normalizer, dlogits, workspace);
}

GDPO_END_NAMESPACE
