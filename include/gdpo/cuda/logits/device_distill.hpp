#pragma once
// distillation_from_logits on a device: a teacher's most probable tokens against the logits of the
// policy.
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/logits/distill.hpp>
#include <gdpo/logits/shared/distill_position.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

using gdpo::detail::DistilledPosition, gdpo::detail::DistilledSlope, gdpo::detail::DistilledSums,
    gdpo::detail::DistillPlan, gdpo::detail::ListedToken, gdpo::detail::LogSum;

/// Most tokens that a teacher may list for a position: what a block keeps in shared memory.
constexpr index_t most_listed = 1024;

/// What a sequence adds to the result.
struct DistillTally {
  double weighted = 0;  ///< The losses with their weights.
  double sum[3] = {};   ///< Loss, student_mass and teacher_mass.
  double low[3] = {math::infinity, math::infinity, math::infinity},
         high[3] = {-math::infinity, -math::infinity, -math::infinity};
  index_t tokens = 0, losses = 0, first_loss = -1;  ///< Losses that are not finite.
  index_t weights = 0, first_weight = -1;           ///< Weights that are not finite.
  GDPO_INLINE void add(const DistillTally& o) {
    weighted += o.weighted;
    for (int q = 0; q < 3; ++q) {
      sum[q] += o.sum[q];
      low[q] = (math::min)(low[q], o.low[q]), high[q] = (math::max)(high[q], o.high[q]);
    }
    tokens += o.tokens;
    note(losses, first_loss, o.losses, o.first_loss);
    note(weights, first_weight, o.weights, o.first_weight);
  }

 private:
  GDPO_INLINE static void note(index_t& count, index_t& first, index_t n, index_t at) {
    if (n > 0 && (count == 0 || at < first)) first = at;
    count += n;
  }
};

/// Scratch arrays of a call.
struct DistillMemory {
  double *loss, *student_mass, *teacher_mass, *weights;  ///< Of rows of logits.
  unsigned char* bad_weights;  ///< 1 where the weight of a position is not finite.
  DistillTally* sequences;
  unsigned char* rest;  ///< What BoundLogits takes.
  DistillMemory(ScratchCursor& cursor, index_t rows, index_t n_sequences, std::size_t rest_bytes)
      : loss(cursor.take<double>(rows)),
        student_mass(cursor.take<double>(rows)),
        teacher_mass(cursor.take<double>(rows)),
        weights(cursor.take<double>(rows)),
        bad_weights(cursor.take<unsigned char>(rows)),
        sequences(cursor.take<DistillTally>(n_sequences)),
        rest(cursor.take<unsigned char>(static_cast<index_t>(rest_bytes))) {}
};

/// Writes the weight of every position that counts, one block a sequence.
struct DistillWeights {
  static constexpr int largest_block = loss_threads;
  DistillationLoss loss;
  DeviceBatch<float> batch;
  DeviceNormalizer normalizer;
  DistillMemory memory;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    for (index_t i = block.index(); i < batch.rows; i += block.count()) {
      const RowSpan span = batch.span(i);
      const RowLengths counts = count_row(block, batch, span);
      const double of_row = weight_of(loss, batch, i, counts.tokens, normalizer);
      const bool bad_row = math::not_finite(of_row);
      block.each([&](int thread) {
        // A weight of the whole sequence counts once, at its first position.
        if (thread == 0) memory.sequences[i].weights = bad_row ? 1 : 0;
        for (index_t t = thread; t < span.length; t += block.threads()) {
          double weight = bad_row ? 0.0 : of_row;
          bool bad = false;
          if (batch.weights && batch.valid(span, t) && !math::is_zero(weight)) {
            weight = math::mul(weight,
                               static_cast<double>(DeviceBatch<float>::at(batch.weights, span, t)));
            bad = math::not_finite(weight);
            if (bad) weight = 0;
          }
          memory.weights[span.begin + t] = weight;
          memory.bad_weights[span.begin + t] = bad ? 1 : 0;
        }
      });
    }
  }
};

/// One block computes one row of logits: its logsumexp, the divergence of its position, and the
/// gradient of the row.
template <class T, class U, int Rank, class S, class Id>
struct DistillKernel {
  using V = typename LogitVector<T>::S;
  static constexpr int largest_block = logit_threads, blocks_at_once = row_blocks_at_once<T, U>;
  /// A token of the teacher: its log-probs, and later its slope.
  struct Entry {
    double first, second;
    int column;  ///< -1: a place without a token.
    int unused;
  };
  struct alignas(16) Shared {
    PowerLine<V> line;
  };
  DistillationLoss loss;
  DeviceLogits<T> logits;  ///< With the joined mask.
  View<const S, Rank> teacher_logp;
  View<const Id, Rank> teacher_ids;
  index_t listed;  ///< K
  DeviceRows<U> dlogits;
  bool has_gradient;
  DistillMemory memory;
  std::size_t cache_bytes;  ///< Bytes of a row that stay in shared memory until its gradient.

  GDPO_INLINE static std::size_t shared_bytes(index_t k) {
    return sizeof(Shared) + (static_cast<std::size_t>(k) * sizeof(Entry) + 15) / 16 * 16;
  }

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const index_t i = block.index();
    Shared& shared = *block.template shared<Shared>();
    Entry* const entries = reinterpret_cast<Entry*>(&shared + 1);
    const T* x = logits.row(i);
    const int threads = block.threads();
    RowVectors<T> row(x, logits.vocabulary, threads);
    const bool valid = logits.valid(i);
    DistilledPosition position;
    double log_sum = 0;
    if (valid) {
      row.keep(reinterpret_cast<unsigned char*>(&shared) + shared_bytes(listed), cache_bytes);
      position = position_of(block, i, x, row, entries, log_sum);
    }
    const double weight = valid ? memory.weights[i] : 0.0;
    block.each([&](int thread) {
      if (thread != 0) return;
      memory.loss[i] = position.loss;
      memory.student_mass[i] = position.student_mass;
      memory.teacher_mass[i] = position.teacher_mass;
      gdpo::detail::RowGradient gradient;
      gradient.g = math::is_zero(weight) ? 0.0 : -math::mul(weight, position.elsewhere);
      gradient.logsumexp = log_sum;
      shared.line = PowerLine<V>(gradient, 0.0, logits.temperature);
    });
    if (!has_gradient) return;
    U* const out = dlogits(i);
    gradient_of_row(block, row, shared.line, out);
    if (math::is_zero(weight)) return;
    const double scale = math::mul(weight, 1 / logits.temperature);
    block.each([&](int thread) {
      for (index_t j = thread; j < listed; j += threads) {
        const Entry& e = entries[j];
        if (e.column < 0) continue;
        const double slope = math::mul(scale, position.at(DistilledSlope{e.first, e.second}));
        store_number(out + e.column, static_cast<V>(slope));
      }
    });
  }

 private:
  struct Count {
    index_t n = 0;
    GDPO_INLINE void add(const Count& o) { n += o.n; }
  };
  struct Sum {
    double sum = 0;
    GDPO_INLINE void add(const Sum& o) { sum += o.sum; }
  };
  struct Most {
    LogSum of;
    GDPO_INLINE void add(const Most& o) { of.raise(o.of.most); }
  };

  template <class View>
  GDPO_INLINE auto* element(const View& v, index_t i, index_t j) const {
    if constexpr (Rank == 2) {
      return &v(i, j);
    } else {
      const auto place = logits.place(i);
      return &v(place.row, place.t, j);
    }
  }
  /// Calls f(entry) for every token of the teacher that this thread has.
  template <class F>
  GDPO_DEVICE void each_entry(Entry* entries, int thread, int threads, const F& f) const {
    for (index_t j = thread; j < listed; j += threads)
      if (entries[j].column >= 0) f(entries[j]);
  }
  /// Subtracts the log of the sum of powers from one of the log-probs.
  template <class Block>
  GDPO_DEVICE void normalize(Block& block, Entry* entries, double Entry::*log) const {
    const int threads = block.threads();
    LogSum sum =
        block
            .template reduce<Most>([&](int thread) {
              Most mine;
              each_entry(entries, thread, threads, [&](const Entry& e) { mine.of.raise(e.*log); });
              return mine;
            })
            .of;
    sum.sum = block
                  .template reduce<Sum>([&](int thread) {
                    Sum mine;
                    each_entry(entries, thread, threads,
                               [&](const Entry& e) { mine.sum += std::exp(e.*log - sum.most); });
                    return mine;
                  })
                  .sum;
    const double total = sum.log();
    block.each([&](int thread) {
      each_entry(entries, thread, threads, [&](Entry& e) { e.*log = e.*log - total; });
    });
  }
  /// The divergence of row i; `entries` get the slopes, `log_sum` the logsumexp where it is read.
  template <class Block>
  GDPO_DEVICE DistilledPosition position_of(Block& block, index_t i, const T* x,
                                            const RowVectors<T>& row, Entry* entries,
                                            double& log_sum) const {
    const int threads = block.threads();
    block.each([&](int thread) {
      for (index_t j = thread; j < listed; j += threads) {
        Entry e{load(load_raw(element(teacher_logp, i, j))), 0, -1, 0};
        if (!math::is_inf(e.first) || e.first > 0) {
          e.column = static_cast<int>(gdpo::detail::column_of(
              static_cast<std::int64_t>(*element(teacher_ids, i, j)), 0, logits.vocabulary));
          if (e.column >= 0)
            e.second =
                math::mul(static_cast<double>(logit_at(x, e.column)), 1 / logits.temperature);
        }
        entries[j] = e;
      }
    });
    const index_t count =
        block
            .template reduce<Count>([&](int thread) {
              Count mine;
              each_entry(entries, thread, threads, [&](const Entry&) { ++mine.n; });
              return mine;
            })
            .n;
    const DistillPlan plan(loss, count, logits.vocabulary);
    if (plan.normalizes_teacher) {
      block.each([&](int thread) {
        each_entry(entries, thread, threads,
                   [&](Entry& e) { e.first = e.first / loss.teacher_temperature; });
      });
      normalize(block, entries, &Entry::first);
    }
    if (plan.normalizes_student) normalize(block, entries, &Entry::second);
    if (plan.reads_row) {
      const LogitRow of_row =
          logit_row_of(sums_of_row(block, row, logits.temperature), logits.temperature);
      const gdpo::detail::PolicyLogs policy(of_row);
      log_sum = gdpo::logsumexp(of_row);
      block.each([&](int thread) {
        each_entry(entries, thread, threads,
                   [&](Entry& e) { e.second = gdpo::detail::as_teacher<S>(policy(e.second)); });
      });
    }
    PerThread<DistilledSums> sums;
    block.each([&](int thread) {
      DistilledSums mine;
      each_entry(entries, thread, threads, [&](Entry& e) {
        const DistilledSlope slope =
            gdpo::detail::add_listed(loss, ListedToken{e.first, e.second}, mine);
        e.first = slope.c, e.second = slope.q;
      });
      sums[thread] = mine;
    });
    const auto total =
        block.template reduce<DistilledSums>([&](int thread) { return sums[thread]; });
    return gdpo::detail::distilled_position(loss, plan, total);
  }
};

/// Adds the positions of a sequence, one block a sequence.
struct DistillSequences {
  static constexpr int largest_block = loss_threads;
  DeviceBatch<float> batch;
  DistillMemory memory;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    for (index_t i = block.index(); i < batch.rows; i += block.count()) {
      const RowSpan span = batch.span(i);
      const DistillTally total = block.template reduce<DistillTally>([&](int thread) {
        DistillTally mine;
        for (index_t t = thread; t < span.length; t += block.threads()) {
          if (batch.valid(span, t)) mine.add(position(span.begin + t, t));
        }
        return mine;
      });
      block.each([&](int thread) {
        if (thread != 0) return;
        const bool bad_row = memory.sequences[i].weights > 0;
        memory.sequences[i] = total;
        if (bad_row) memory.sequences[i].weights = 1, memory.sequences[i].first_weight = -1;
      });
    }
  }

 private:
  GDPO_INLINE DistillTally position(index_t k, index_t t) const {
    DistillTally one;
    const double value[3] = {memory.loss[k], memory.student_mass[k], memory.teacher_mass[k]};
    if (!math::is_zero(memory.weights[k])) one.weighted = math::mul(memory.weights[k], value[0]);
    for (int q = 0; q < 3; ++q) {
      one.sum[q] = value[q];
      if (!math::is_nan(value[q])) one.low[q] = one.high[q] = value[q];
    }
    one.tokens = 1;
    if (math::not_finite(value[0])) one.losses = 1, one.first_loss = t;
    if (memory.bad_weights[k] != 0) one.weights = 1, one.first_weight = t;
    return one;
  }
};

/// Adds the sequences in their order and writes the result.
struct DistillFinish {
  static constexpr int threads = 32, largest_block = threads;
  DistillMemory memory;
  index_t rows, over;
  bool has_mass;
  DeviceNormalizer normalizer;
  DistillationResult* result;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      if (thread == 0) write();
    });
  }

 private:
  GDPO_DEVICE void write() const {
    DistillationResult& r = *result;
    r.loss = 0, r.normalizer = normalizer(), r.over = over;
    DistillationMetrics& m = r.metrics;
    m.losses = m.weights = gdpo::NonFinite{0, -1, -1};
    m.rows = rows, m.empty_rows = 0;
    Metric* const metric[3] = {&m.loss, &m.student_mass, &m.teacher_mass};
    for (Metric* one : metric) {
      one->sum = one->count = one->row_sum = one->rows = 0;
      one->min = one->row_min = math::infinity, one->max = one->row_max = -math::infinity;
    }
    for (index_t i = 0; i < rows; ++i) {
      const DistillTally& s = memory.sequences[i];
      r.loss += s.weighted, m.empty_rows += s.tokens == 0;
      note(m.losses, s.losses, i, s.first_loss), note(m.weights, s.weights, i, s.first_weight);
      for (int q = 0; q < (has_mass ? 3 : 1); ++q) {
        Metric& one = *metric[q];
        gdpo::detail::add_sequence(one, s.sum[q], s.tokens);
        one.min = (math::min)(one.min, s.low[q]), one.max = (math::max)(one.max, s.high[q]);
      }
    }
  }
  GDPO_DEVICE static void note(gdpo::NonFinite& counter, index_t n, index_t row, index_t token) {
    if (n > 0) counter = merge(counter, gdpo::NonFinite{n, row, token});
  }
};

}  // namespace detail

/// Bytes of Scratch that distillation_from_logits(device, ...) needs: 70 for each row of logits,
/// and some for each sequence. The shapes decide; arrays are not read.
template <class T, int Rank>
std::size_t scratch_bytes(const DistillationLoss&, const LogitBatch<T, Rank>& logits,
                          const TokenBatch<float>& batch) {
  constexpr const char* function = "gdpo::cuda::scratch_bytes";
  const auto extents = gdpo::detail::to_count(function, logits, batch, -1);
  return detail::bytes_of<detail::DistillMemory>(gdpo::detail::LogitRows<T, Rank>(extents).rows(),
                                                 detail::sequences_of(extents, batch),
                                                 scratch_bytes(extents, batch, function));
}

}  // namespace cuda

/// The divergence between a teacher and the policy from logits, on a device.
///
///     gdpo::distillation_from_logits(gdpo::cuda::On{stream}, loss, logits, teacher, batch,
///                                    normalizer, dlogits, result, scratch);
///
/// **Arguments** have the meaning of logits/distill.hpp, with device pointers in all views;
/// `dlogits` may be the logits themselves, and `{}` is none. `normalizer`: counts that the host
/// knows, or a pointer to those that cuda::count_into(device, logits, batch, ...) left on the
/// device. `result`: one DistillationResult on the device. `scratch`: cuda::scratch_bytes(loss,
/// logits, batch). A teacher may list up to 1024 tokens a position.
///
/// **Cost.** Five launches: masks, weights, rows, sequences, result. One kernel reads each row of
/// logits once and writes its gradient once; what does not fit tuning().shared_bytes is read again,
/// from the L2 cache.
///
/// **Accuracy.** log q is as accurate as of token_logprobs (cuda/logits/device_logprobs.hpp); loss
/// and gradient follow from it in double, the tokens being added in an order that the vocabulary
/// decides. So they are within 1e-5 of the host's for weights of 1, and the same from run to run
/// and for every tuning.
///
/// **Errors.** invalid_input as on the host, before anything is enqueued, but for what the arrays
/// hold: a token outside the vocabulary counts as a place without one.
template <class Device, class T, int Rank, class S, class Id, class U,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void distillation_from_logits(const Device& device, const DistillationLoss& loss,
                              const LogitBatch<T, Rank>& logits,
                              const TeacherTopK<Rank, S, Id>& teacher,
                              const TokenBatch<float>& batch,
                              const cuda::DeviceNormalizer& normalizer, View<U, Rank> dlogits,
                              DistillationResult* result, const cuda::Scratch& scratch) {
  static_assert(!std::is_const_v<U>, "dlogits are written: their view must not be of const");
  using namespace cuda::detail;
  constexpr const char* function = "gdpo::distillation_from_logits";
  gdpo::detail::check_fields(function, "", loss);
  gdpo::detail::check_whole(function, logits);
  gdpo::detail::check_logits_shape(function, logits, gdpo::detail::Targets::Unread);
  gdpo::detail::check_teacher_shape(function, logits, teacher);
  if (dlogits) {
    gdpo::detail::check_written_table(function, "dlogits", dlogits, logits.logits.extent);
  }
  const index_t listed = teacher.logp.extent[Rank - 1];
  if (listed > most_listed) {
    contract::fail(function, "teacher.logp", contract::text(listed) + " tokens a position",
                   "at most " + contract::text(most_listed) + " on a device");
  }
  const index_t n_rows = gdpo::detail::LogitRows<T, Rank>(logits).rows(),
                sequences = sequences_of(logits, batch);
  const std::size_t rest_bytes = cuda::scratch_bytes(logits, batch, function);
  const auto memory = take_memory<DistillMemory>(function, scratch, n_rows, sequences, rest_bytes);
  const BoundLogits<T, Rank> bound(function, logits, batch, {},
                                   cuda::Scratch{memory.rest, rest_bytes});
  gdpo::detail::check_width(function, loss.aggregate, bound.layout);
  gdpo::detail::check_group(function, loss.aggregate, bound.batch, bound.layout);
  const index_t over = gdpo::detail::over_of(loss.aggregate);
  if (const Normalizer* const known = normalizer.known()) {
    gdpo::detail::check_step_counts(function, over, *known, batch.prepared, bound.layout, true);
  }
  if (!result)
    contract::fail(function, "result", "no memory", "a DistillationResult on the device");

  bound.launch_masks(device, function, logits, batch);
  const DeviceBatch<float> on(function, bound.batch, bound.layout,
                              gdpo::detail::TokenReads::none());
  const auto by_sequence = [&](const auto& kernel) {
    if (bound.layout.rows > 0) {
      device.launch(blocks_of(device.tuning(), bound.layout.rows), threads_for(bound.layout.width),
                    0, kernel);
    }
  };
  by_sequence(DistillWeights{loss, on, normalizer, memory});
  if (n_rows > 0) {
    using Kernel = DistillKernel<T, U, Rank, S, Id>;
    const DeviceLogits<T> rows(function, bound.masked_logits);
    const std::size_t row_bytes =
        (static_cast<std::size_t>(rows.vocabulary) * sizeof(T) + 15) / 16 * 16;
    const std::size_t cache =
        dlogits ? (std::min)(device.tuning().shared_bytes, row_bytes) : std::size_t{0};
    device.launch(n_rows, threads_of<T>(rows.vocabulary), Kernel::shared_bytes(listed) + cache,
                  Kernel{loss, rows, teacher.logp, teacher.ids, listed, DeviceRows<U>(dlogits),
                         static_cast<bool>(dlogits), memory, cache});
  }
  by_sequence(DistillSequences{on, memory});
  device.launch(1, DistillFinish::threads, 0,
                DistillFinish{memory, bound.layout.rows, over, loss.rest != Rest::Renormalize,
                              normalizer, result});
}

GDPO_END_NAMESPACE
