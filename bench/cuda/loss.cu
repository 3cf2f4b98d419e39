// Loss, gradient and metrics from log-probs.
#include "bench.hpp"
#include "tokens.hpp"

namespace bench {
namespace {

/// The gradient against gdpo::seq at the first rows, up to a million tokens; loss and metrics where those are all.
template <class S, class Loss>
void check_loss(Bench& b, const std::string& name, const Loss& loss, const Tokens<S>& tokens, bool with_ref,
                const gdpo::Normaliser& normaliser) {
  const index_t rows = (std::min)(tokens.rows, (std::max)((index_t{1} << 20) / tokens.width, index_t{1}));
  const index_t n = rows * tokens.width;
  const auto logp = tokens.logp.host(0, n), old_logp = tokens.old_logp.host(0, n),
             ref_logp = tokens.ref_logp.host(0, n);
  const auto mask = tokens.mask.host(0, n);
  const auto advantages = tokens.advantages.host(0, rows);
  const auto of = [&](const auto& values) { return gdpo::view(values.data(), rows, tokens.width); };
  gdpo::TokenBatch<float> batch;
  batch.logp = of(logp), batch.old_logp = of(old_logp), batch.mask = of(mask);
  if (with_ref) batch.ref_logp = of(ref_logp);
  batch.advantages = gdpo::view(advantages);
  std::vector<float> want(static_cast<std::size_t>(n));
  gdpo::LossWorkspace<float> workspace;
  const gdpo::LossResult expected =
      loss(gdpo::seq, batch, normaliser, gdpo::view(want.data(), rows, tokens.width), workspace);

  if (const index_t nan = count_nan(b.on(), tokens.gradient)) b.wrong(name, std::to_string(nan) + " NaN");
  const auto got = tokens.gradient.host(0, n);
  double largest = 0;
  for (const float x : want) largest = (std::max)(largest, static_cast<double>(std::abs(x)));
  index_t different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    different += !(std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) <= 1e-5 * largest);
  }
  // A ratio at an edge of the clip range may fall to either side: the CPU may be without FMA.
  if (different > 2 + n / 100000) b.wrong(name, std::to_string(different) + " entries of the gradient");

  const gdpo::LossResult result = tokens.result.host()[0];
  if (!std::isfinite(result.loss)) b.wrong(name, "the loss is not finite");
  if (rows < tokens.rows) return;
  b.close(name, "the loss", result.loss, expected.loss, 1e-5);
  const auto means = [&](const char* what, const gdpo::Metric& of_device, const gdpo::Metric& of_host) {
    b.close(name, what, of_device.mean(), of_host.mean(), 1e-5);
    b.close(name, what, of_device.count, of_host.count, 0);
  };
  means("the mean ratio", result.metrics.ratio, expected.metrics.ratio);
  means("the mean KL", result.metrics.kl, expected.metrics.kl);
  means("the clip fraction", result.metrics.clip_fraction, expected.metrics.clip_fraction);
}

template <class S, class Loss>
void measure(Bench& b, const std::string& what, const Loss& loss, index_t n, index_t width, double gate = 0) {
  const bool with_ref = loss.kl.beta != 0;
  n = b.size(n), width = (std::min)(width, n);
  const index_t rows = n / width;
  const double tokens = static_cast<double>(rows) * static_cast<double>(width);
  const double bytes = tokens * Tokens<S>::bytes_a_token(with_ref) + 4 * static_cast<double>(rows);
  const std::string count = n >> 20 ? std::to_string(n >> 20) + "M" : std::to_string(n);
  const std::string name = what + ", " + count + " tokens in rows of " + std::to_string(width);
  const int sets = b.sets(bytes);
  if (!b.fits(name, sets * tokens * Tokens<S>::bytes_a_token(true) + 2e8)) return;

  std::vector<Tokens<S>> all;
  for (int s = 0; s < sets; ++s) all.emplace_back(b.on(), rows, width, static_cast<unsigned>(s));
  const auto batch = all[0].batch(with_ref);
  const Array<unsigned char> memory(
      static_cast<index_t>((std::max)(gdpo::cuda::scratch_bytes(loss, batch), gdpo::cuda::scratch_bytes(batch))));
  const gdpo::cuda::Scratch scratch{memory.data(), memory.bytes()};
  const Array<gdpo::Normaliser> normaliser(1);
  gdpo::cuda::count_into(b.on(), batch, normaliser.data(), scratch);
  const auto call = [&](int s) {
    const Tokens<S>& t = all[static_cast<std::size_t>(s)];
    loss(b.on(), t.batch(with_ref), normaliser.data(), t.out(), t.result.data(), scratch);
  };

  all[0].gradient.poison(b.stream());
  all[0].result.poison(b.stream());
  call(0);
  check_loss(b, name, loss, all[0], with_ref, normaliser.host()[0]);
  b.add(name, b.time_in_graph(bytes, sets, call), bytes, gate);
}

}  // namespace

void loss(Bench& b) {
  if (!b.section("loss and gradient, with and without metrics")) return;
  const gdpo::GrpoLoss with_kl;
  gdpo::GrpoLoss without_kl;
  without_kl.kl.beta = 0;
  const auto none = [](const auto& loss) { return gdpo::with_metrics<gdpo::metrics::None>(loss); };
  constexpr index_t million = index_t{1} << 20, reference = 64 * million;
  for (const index_t n : {million, 4 * million, 16 * million, reference, 256 * million}) {
    for (const index_t width : {512, 4096, 32768}) {
      const double gate = n == reference ? 0.85 : 0;
      measure<float>(b, "GRPO, metrics::None", none(without_kl), n, width, gate);
      measure<float>(b, "GRPO with KL, metrics::None", none(with_kl), n, width, gate);
      measure<float>(b, "GRPO with KL", with_kl, n, width);
    }
  }
  for (const index_t width : {512, 4096, 32768}) measure<float>(b, "GSPO", gdpo::GspoLoss{}, reference, width);
  measure<float>(b, "GRPO", without_kl, reference, 4096);
  measure<float>(b, "GRPO with KL, metrics::Means", gdpo::with_metrics<gdpo::metrics::Means>(with_kl), reference, 4096);
  measure<gdpo::BFloat16>(b, "GRPO with KL, log-probs of bfloat16", with_kl, reference, 4096);
}

}  // namespace bench
