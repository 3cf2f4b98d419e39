// Three calls of the library behind a C interface, for torch_bench.py. They take device pointers
// and a stream, and return 0; or 1 if the call failed: then gdpo_message() says why. If `scratch`
// is null, a call only writes how many bytes it needs to `scratch_bytes`. Counts, losses and
// metrics stay on the device in `results`, which has gdpo_results_bytes() bytes and is read by
// gdpo_read_results().
#include <algorithm>
#include <exception>
#include <gdpo/cuda.hpp>
#include <string>

namespace {

struct Results {
  gdpo::Normalizer normalizer;
  gdpo::LossResult result;
};

std::string message;

/// 0 after f(), or 1 and the message of the exception that it threw.
template <class F>
int guarded(const F& f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    message = e.what();
    return 1;
  }
}

gdpo::cuda::Scratch scratch_of(void* data, const long long* bytes) {
  return {data, static_cast<std::size_t>(*bytes)};
}

}  // namespace

extern "C" {

const char* gdpo_message() { return message.c_str(); }

long long gdpo_results_bytes() { return static_cast<long long>(sizeof(Results)); }

/// Copies results to the host. numbers[0 .. 4]: loss, and the means of KL, clip fraction,
/// approx_kl_k3 and ratio.
int gdpo_read_results(const void* results, double* numbers) {
  return guarded([&] {
    Results r;
    gdpo::cuda::check("cudaMemcpy", cudaMemcpy(&r, results, sizeof r, cudaMemcpyDeviceToHost));
    const gdpo::LossMetrics& m = r.result.metrics;
    const double all[] = {r.result.loss, m.kl.mean(), m.clip_fraction.mean(), m.approx_kl_k3.mean(),
                          m.ratio.mean()};
    std::copy(std::begin(all), std::end(all), numbers);
  });
}

/// GRPO with KL: counts, loss, gradient and metrics. advantages is (rows), all other arrays are
/// (rows, width).
int gdpo_grpo_loss(void* stream, long long rows, long long width, const float* logp,
                   const float* old_logp, const float* ref_logp, const unsigned char* mask,
                   const float* advantages, float* gradient, void* results, void* scratch,
                   long long* scratch_bytes) {
  return guarded([&] {
    gdpo::TokenBatch<float> batch;
    batch.logp = gdpo::view(logp, rows, width);
    batch.old_logp = gdpo::view(old_logp, rows, width);
    batch.ref_logp = gdpo::view(ref_logp, rows, width);
    batch.mask = gdpo::view(mask, rows, width);
    batch.advantages = gdpo::view(advantages, rows);
    // The metrics that torch_bench.py computes.
    const auto loss = gdpo::with_metrics<gdpo::metrics::Means>(gdpo::grpo_loss);
    if (!scratch) {
      *scratch_bytes = static_cast<long long>(
          (std::max)(gdpo::cuda::scratch_bytes(loss, batch), gdpo::cuda::scratch_bytes(batch)));
      return;
    }
    const gdpo::cuda::On on{static_cast<cudaStream_t>(stream)};
    auto* const to = static_cast<Results*>(results);
    gdpo::cuda::count_into(on, batch, &to->normalizer, scratch_of(scratch, scratch_bytes));
    loss(on, batch, &to->normalizer, gdpo::view(gradient, rows, width), &to->result,
         scratch_of(scratch, scratch_bytes));
  });
}

/// GDPO advantages: rewards (rows, columns) to advantages (rows), in groups of `group` rows.
int gdpo_gdpo_advantages(void* stream, long long rows, long long columns, long long group,
                         const float* rewards, float* advantages, void* scratch,
                         long long* scratch_bytes) {
  return guarded([&] {
    const gdpo::RewardBatch batch{gdpo::view(rewards, rows, columns), gdpo::groups_of(group)};
    const gdpo::Gdpo estimator;
    if (!scratch) {
      *scratch_bytes = static_cast<long long>(gdpo::cuda::scratch_bytes(estimator, batch));
      return;
    }
    gdpo::advantages_into(gdpo::cuda::On{static_cast<cudaStream_t>(stream)}, batch, estimator,
                          gdpo::view(advantages, rows), scratch_of(scratch, scratch_bytes));
  });
}

/// GRPO with KL from logits (sequences, width, vocabulary) of bfloat16. The gradient is written
/// over the logits.
int gdpo_grpo_from_logits(void* stream, long long sequences, long long width, long long vocabulary,
                          void* logits, const long long* targets, const float* old_logp,
                          const float* ref_logp, const float* advantages, void* results,
                          void* scratch, long long* scratch_bytes) {
  return guarded([&] {
    auto* const table = static_cast<gdpo::BFloat16*>(logits);
    const auto dlogits = gdpo::view(table, sequences, width, vocabulary);
    gdpo::LogitBatch<gdpo::BFloat16, 3> batch;
    batch.logits = dlogits;
    batch.targets = gdpo::view(targets, sequences, width);
    gdpo::TokenBatch<float> tokens;
    tokens.old_logp = gdpo::view(old_logp, sequences, width);
    tokens.ref_logp = gdpo::view(ref_logp, sequences, width);
    tokens.advantages = gdpo::view(advantages, sequences);
    const auto loss = gdpo::with_metrics<gdpo::metrics::Means>(gdpo::grpo_loss);
    if (!scratch) {
      *scratch_bytes = static_cast<long long>(gdpo::cuda::scratch_bytes(batch, tokens));
      return;
    }
    const gdpo::cuda::On on{static_cast<cudaStream_t>(stream)};
    auto* const to = static_cast<Results*>(results);
    gdpo::cuda::count_into(on, batch, tokens, &to->normalizer, scratch_of(scratch, scratch_bytes));
    gdpo::policy_loss_from_logits(on, loss, batch, tokens, &to->normalizer, dlogits, &to->result,
                                  scratch_of(scratch, scratch_bytes));
  });
}

}  // extern "C"
