// Maps ms-swift's loss_type="real" to its preset, which is no PolicyLoss: it is given groups.
#include <algorithm>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/with/thread_pool.hpp>

#include "loss.hpp"

namespace conformance {
namespace {

using RealLoss = std::decay_t<decltype(gdpo::ms_swift::real_loss)>;

RealLoss real_loss(Params& params) {
  RealLoss loss = gdpo::ms_swift::real_loss;
  params.fixed("loss_type", "real");
  loss.tau = params.number("real_tau");
  loss.kl.beta = params.number("beta");
  params.remark("kl");
  // The ratio is that of the row at every level, and nothing is clipped.
  params.without_effect(
      {"importance_sampling_level", "epsilon_low", "epsilon_high", "delta", "log_ratio_clamp"});
  return loss;
}

// Groups of consecutive rows, of which the last may be smaller.
std::vector<std::int64_t> group_offsets(gdpo::index_t rows, int size) {
  std::vector<std::int64_t> offsets{0};
  while (offsets.back() < rows)
    offsets.push_back(std::min<std::int64_t>(offsets.back() + size, rows));
  return offsets;
}

// The loss has no kernel for devices, where it runs on the host.
template <class S>
LossRun run_real_as(const RealLoss& loss, const TokenInputs& in,
                    const std::vector<std::int64_t>& offsets) {
  static gdpo::ThreadPool pool(3);
  const TokenArrays<S> arrays(in);
  const gdpo::TokenBatch<S> batch = arrays.batch();
  const auto groups = gdpo::by_offsets(offsets);
  const gdpo::Normalizer normalizer = gdpo::count(batch, groups);
  std::vector<S> gradient(in.logp.size(), gdpo::math::nan<S>());
  gdpo::TokenOut<S> out = gdpo::view(gradient);
  if (!in.is_packed()) out = gdpo::view(gradient.data(), in.rows, in.width);
  gdpo::ContrastiveWorkspace<S> workspace;
  const auto call = [&](const auto& exec) {
    return loss(exec, batch, groups, normalizer, out, workspace);
  };
  LossRun run;
  run.result = in.target.exec == Exec::Seq        ? call(gdpo::seq)
               : in.target.exec == Exec::Parallel ? call(gdpo::parallel(pool))
                                                  : call(gdpo::simd);
  run.gradient = padded(in, std::vector<double>(gradient.begin(), gradient.end()));
  run.mask = padded(in, tokens_of<unsigned char>(in, batch.mask, 1));
  return run;
}

}  // namespace

Handler real_or(Handler other) {
  return [other = std::move(other)](const Case& recorded, Comparison& comparison) {
    if (recorded.params.value("loss_type", "") != "real") return other(recorded, comparison);
    Params params(recorded.params);
    const RealLoss loss = real_loss(params);
    const int size = params.integer("num_generations");
    params.all_read();
    const TokenInputs in = token_inputs(recorded);
    const std::vector<std::int64_t> offsets = group_offsets(in.rows, size);
    const LossRun run = padded_and_packed(
        in,
        [&](const TokenInputs& layout) {
          return layout.target.single ? run_real_as<float>(loss, layout, offsets)
                                      : run_real_as<double>(loss, layout, offsets);
        },
        comparison);
    comparison.output("loss", Array{{}, {run.result.loss}});
    comparison.output("grad_logp", of_tokens(in, run.gradient));
    const gdpo::LossMetrics& m = run.result.metrics;
    comparison.metric("loss", run.result.loss);
    comparison.metric("kl", m.kl.mean());
    comparison.metric("completions/mean_length", m.completion_length.row_mean());
    comparison.metric("completions/max_length", m.completion_length.row_max);
    comparison.metric("completions/min_length", m.completion_length.row_min);
  };
}

}  // namespace conformance
