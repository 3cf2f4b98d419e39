// The loss from log-probs, with gradient and metrics.
#include "bench.hpp"
#include "tokens.hpp"

namespace bench {
namespace {

/// Compares the gradient of the first rows, up to a million tokens, with gdpo::seq; where these are
/// all rows, loss and metrics too.
template <class S, class Loss>
void check_loss(Bench& b, const std::string& name, const Loss& loss, const Tokens<S>& tokens,
                bool with_ref, const gdpo::Normalizer& normalizer) {
  const Rows rows = tokens.rows.first(index_t{1} << 20);
  const index_t n = rows.tokens;
  const auto logp = tokens.logp.host(0, n), old_logp = tokens.old_logp.host(0, n),
             ref_logp = tokens.ref_logp.host(0, n);
  const auto mask = tokens.mask.host(0, rows.width > 0 ? n : 0);
  const auto advantages = tokens.advantages.host(0, rows.count);
  const auto batch =
      batch_of(rows, logp.data(), old_logp.data(), with_ref ? ref_logp.data() : nullptr,
               mask.data(), rows.offsets.data(), advantages.data());
  std::vector<float> want(static_cast<std::size_t>(n));
  gdpo::TokenOut<float> gradient;
  rows.put(gradient, want.data());
  gdpo::LossWorkspace<float> workspace;
  const gdpo::LossResult expected = loss(gdpo::seq, batch, normalizer, gradient, workspace);

  if (const index_t nan = count_nan(b.on(), tokens.gradient))
    b.wrong(name, std::to_string(nan) + " NaN");
  const auto got = tokens.gradient.host(0, n);
  double largest = 0;
  for (const float x : want) largest = (std::max)(largest, static_cast<double>(std::abs(x)));
  index_t different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    different +=
        !(std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) <= 1e-5 * largest);
  }
  // A ratio at an edge of the clip range may fall to either side, because the CPU may have no FMA.
  // At a level of sequences that concerns a whole row.
  const index_t at_an_edge =
      2 + n / 100000 + (std::decay_t<decltype(loss.level)>::of_segment ? rows.width : 0);
  if (different > at_an_edge) b.wrong(name, std::to_string(different) + " entries of the gradient");

  const gdpo::LossResult result = tokens.result.host()[0];
  if (!std::isfinite(result.loss)) b.wrong(name, "the loss is not finite");
  if (n < tokens.rows.tokens) return;
  b.close(name, "the loss", result.loss, expected.loss, 1e-5);
  const auto means = [&](const char* what, const gdpo::Metric& of_device,
                         const gdpo::Metric& of_host) {
    b.close(name, what, of_device.mean(), of_host.mean(), 1e-5);
    b.close(name, what, of_device.count, of_host.count, 0);
  };
  means("the mean ratio", result.metrics.ratio, expected.metrics.ratio);
  means("the mean KL", result.metrics.kl, expected.metrics.kl);
  means("the clip fraction", result.metrics.clip_fraction, expected.metrics.clip_fraction);
}

template <class S, class Loss>
void measure(Bench& b, const std::string& name, const Loss& loss, const Rows& rows,
             double gate = 0) {
  if (!b.wants(name, gate > 0)) return;
  const bool with_ref = loss.kl.beta != 0;
  const double bytes = Tokens<S>::bytes_of(rows, with_ref);
  const int sets = b.sets(bytes);
  if (!b.fits(name, sets * Tokens<S>::bytes_of(rows, true) + 2e8)) return;

  std::vector<Tokens<S>> all;
  for (int s = 0; s < sets; ++s) all.emplace_back(b.on(), rows, static_cast<unsigned>(s));
  const auto batch = all[0].batch(with_ref);
  const Array<unsigned char> memory(static_cast<index_t>(
      (std::max)(gdpo::cuda::scratch_bytes(loss, batch), gdpo::cuda::scratch_bytes(batch))));
  const gdpo::cuda::Scratch scratch{memory.data(), memory.bytes()};
  const Array<gdpo::Normalizer> normalizer(1);
  gdpo::cuda::count_into(b.on(), batch, normalizer.data(), scratch);
  const auto call = [&](int s) {
    const Tokens<S>& t = all[static_cast<std::size_t>(s)];
    loss(b.on(), t.batch(with_ref), normalizer.data(), t.out(), t.result.data(), scratch);
  };

  all[0].gradient.poison(b.stream());
  all[0].result.poison(b.stream());
  call(0);
  check_loss(b, name, loss, all[0], with_ref, normalizer.host()[0]);
  b.add(name, b.time_in_graph(bytes, sets, call), bytes, gate);
}

std::string count_of(index_t tokens) {
  return (tokens >> 20 ? std::to_string(tokens >> 20) + "M" : std::to_string(tokens)) + " tokens";
}

/// A figure for about n tokens, fewer with --divide, in padded rows of `width` tokens.
template <class S, class Loss>
void padded(Bench& b, const std::string& what, const Loss& loss, index_t n, index_t width,
            double gate = 0) {
  n = b.size(n), width = (std::min)(width, n);
  measure<S>(b, what + ", " + count_of(n) + " in rows of " + std::to_string(width), loss,
             Rows::padded(n / width, width), gate);
}
/// A figure for n tokens, fewer with --divide, in packed rows of 1 to 2 * mean tokens.
template <class S, class Loss>
void packed(Bench& b, const std::string& what, const Loss& loss, index_t n, index_t mean) {
  n = b.size(n);
  measure<S>(b, what + ", " + count_of(n) + " packed, rows of 1 to " + std::to_string(2 * mean),
             loss, Rows::packed(n, mean));
}

}  // namespace

void loss(Bench& b) {
  if (!b.section("loss and gradient, with and without metrics")) return;
  const auto with_kl = gdpo::grpo_loss;
  auto without_kl = gdpo::grpo_loss;
  without_kl.kl.beta = 0;
  const auto none = [](const auto& loss) { return gdpo::with_metrics<gdpo::metrics::None>(loss); };
  constexpr index_t million = index_t{1} << 20, reference = 64 * million;
  for (const index_t n : {million, 4 * million, 16 * million, reference, 256 * million}) {
    for (const index_t width : {512, 4096, 32768}) {
      const double gate = n == reference ? 0.85 : 0;
      padded<float>(b, "GRPO, metrics::None", none(without_kl), n, width, gate);
      padded<float>(b, "GRPO with KL, metrics::None", none(with_kl), n, width, gate);
      padded<float>(b, "GRPO with KL", with_kl, n, width);
    }
  }
  for (const index_t width : {512, 4096, 32768})
    padded<float>(b, "GSPO", gdpo::gspo_loss, reference, width);
  padded<float>(b, "GRPO", without_kl, reference, 4096);
  padded<float>(b, "GRPO with KL, metrics::Means",
                gdpo::with_metrics<gdpo::metrics::Means>(with_kl), reference, 4096);

  // Further shapes of trainers: rows that do not begin where a vector is aligned, few long rows,
  // log-probs of 16 bits.
  for (const index_t width : {511, 4095}) {
    padded<float>(b, "GRPO with KL, metrics::None", none(with_kl), reference, width);
  }
  for (const index_t mean : {256, 2048}) {
    packed<float>(b, "GRPO with KL, metrics::None", none(with_kl), reference, mean);
    packed<float>(b, "GRPO with KL", with_kl, reference, mean);
  }
  padded<float>(b, "GRPO with KL, metrics::None", none(with_kl), 4 * 32768, 32768);
  padded<float>(b, "GRPO with KL", with_kl, 4 * 32768, 32768);
  padded<gdpo::BFloat16>(b, "GRPO with KL, metrics::None, log-probs of bfloat16", none(with_kl),
                         reference, 4096);
  padded<gdpo::BFloat16>(b, "GRPO with KL, log-probs of bfloat16", with_kl, reference, 4096);
}

}  // namespace bench
