// gdpo_scaling prints the time of calls against each of their sizes, as markdown tables. Beside it
// stands the time per unit of work: where that grows, the cost is more than linear. Each time is
// the median of five. Absolute times depend on the machine and on what else runs there.
//
// gdpo_scaling --paths [TEXT] prints the map of paths instead (gates/paths.hpp): every call of the
// public doors, and what one element costs beside the plain call of its table. With TEXT only the
// calls of which "table: call" contains it.
#include <cstdio>
#include <gdpo/advantages.hpp>
#include <gdpo/logits.hpp>
#include <string>
#include <thread>

#include "exec.hpp"
#include "gates/experiments.hpp"
#include "logits_data.hpp"
#include "timing.hpp"
#include "token_data.hpp"

namespace {

using gdpo::index_t;

template <class F>
double median_time(const F& f) {
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(time_of(f, 0.05));
  return quantile(times, 0.5);
}

void title(const char* what, const char* size, const char* unit) {
  std::printf("\n### %s\n\n| %s | time, us | ns a %s |\n|---|---|---|\n", what, size, unit);
}
void line(index_t size, double seconds, double units) {
  std::printf("| %td | %.4g | %.3g |\n", size, seconds * 1e6, seconds * 1e9 / units);
  std::fflush(stdout);
}

double time_loss(index_t rows, index_t width, long threads = 1) {
  TokenData data(rows, width);
  const gdpo::TokenBatch<float> batch = data.padded();
  const gdpo::Normalizer normalizer = gdpo::count(batch);
  gdpo::LossWorkspace<float> workspace;
  double seconds = 0;
  with_exec(threads, [&](const auto& exec) {
    seconds = median_time(
        [&] { gdpo::grpo_loss(exec, batch, normalizer, data.padded_gradient(), workspace); });
  });
  return seconds;
}

double time_advantages(index_t prompts, index_t K, index_t C, long threads = 1) {
  std::vector<float> rewards(static_cast<std::size_t>(prompts * K * C)),
      out(static_cast<std::size_t>(prompts * K));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform;
  for (float& reward : rewards) reward = uniform(random);
  const gdpo::RewardBatch batch{gdpo::view(std::as_const(rewards).data(), prompts * K, C),
                                gdpo::groups_of(K)};
  gdpo::Workspace workspace;
  double seconds = 0;
  with_exec(threads, [&](const auto& exec) {
    seconds = median_time(
        [&] { gdpo::advantages_into(exec, batch, gdpo::Gdpo{}, gdpo::view(out), workspace); });
  });
  return seconds;
}

struct LogitsTimes {
  double forward, backward;
};
LogitsTimes time_logits(index_t rows, index_t tokens, long threads = 1) {
  LogitsData data(rows, tokens);
  std::vector<float> logp(data.targets.size()), entropy(logp.size()), dlogits(data.logits.size());
  std::vector<double> logsumexp(logp.size());
  gdpo::LogitBatch<float, 2> batch;
  batch.logits = gdpo::view(std::as_const(data.logits).data(), rows, tokens);
  batch.targets = gdpo::view(data.targets);
  gdpo::TokenLogprobsOut out;
  out.logp = gdpo::view(logp), out.entropy = gdpo::view(entropy),
  out.logsumexp = gdpo::view(logsumexp);
  gdpo::TokenLogprobsGrad grad;
  grad.logp = gdpo::view(data.upstream);
  LogitsTimes times{};
  with_exec(threads, [&](const auto& exec) {
    times.forward = median_time([&] { gdpo::token_logprobs_into(exec, batch, out); });
    times.backward = median_time([&] {
      gdpo::token_logprobs_backward(exec, batch, grad, gdpo::view(std::as_const(logsumexp)), {},
                                    gdpo::view(dlogits.data(), rows, tokens));
    });
  });
  return times;
}

void threads_table(const char* what, const char* unit, double units, double (*time)(long)) {
  title((std::string(what) + ", against threads").c_str(), "threads", unit);
  for (long threads = 1; threads <= static_cast<long>(std::thread::hardware_concurrency());
       threads *= 2)
    line(threads, time(threads), units);
}

/// Prints a table of the map of paths. The calls take turns (gates/rounds.hpp); a ratio is the
/// median of those of nine rounds, quiet or not.
void print_paths(const gates::Experiment& experiment) {
  gates::Bench bench(experiment.rows);
  experiment.set_up(bench);
  const std::vector<gates::Contender>& calls = bench.contenders();
  std::mt19937 random(20261129);
  gates::RoundLimits limits;
  limits.most = 9, limits.fastest = true;
  const gates::Timings timings = measure(calls, limits, random);
  std::printf("\n**%s**\n\n| call | ns a %s | bytes | GB/s | over the plain call | goal |\n",
              experiment.name.c_str(), experiment.element.c_str());
  std::printf("|---|---|---|---|---|---|\n");
  const auto times = [&](const std::string& name) -> const std::vector<double>* {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].name == name) return &timings.seconds[i];
    }
    return nullptr;
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const gates::Contender& call = calls[i];
    const double ns = quantile(timings.seconds[i], 0.5) * 1e9 / call.work;
    std::printf("| %s | %.3g | %.3g | %.3g |", call.name.c_str(), ns, call.bytes, call.bytes / ns);
    bool is_plain = true;
    for (const gates::Row& row : experiment.rows) {
      const std::vector<double>* plain = times(row.under);
      if (row.over != call.name || !plain) continue;
      std::vector<double> ratios = timings.seconds[i];
      for (std::size_t k = 0; k < ratios.size(); ++k) ratios[k] *= row.factor / (*plain)[k];
      std::printf(" %.3g | %s |", quantile(ratios, 0.5), row.gate.text().c_str());
      is_plain = false;
    }
    std::printf(is_plain ? "  |  |\n" : "\n");
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string("--paths")) {
    for (const gates::Figures& file : gates::figures()) {
      for (const gates::Experiment& e : select(file.experiments, argc > 2 ? argv[2] : ""))
        print_paths(e);
    }
    return 0;
  }
  title("GRPO loss, gradient, metrics: rows of 1024 tokens", "tokens", "token");
  for (index_t rows = 1; rows <= 4096; rows *= 4)
    line(rows * 1024, time_loss(rows, 1024), static_cast<double>(rows * 1024));
  title("The same, 2^20 tokens in rows of T", "T", "token");
  for (index_t width = 8; width <= (1 << 20); width *= 8)
    line(width, time_loss((1 << 20) / width, width), 1 << 20);

  title("GDPO advantages, 65536 completions, 4 rewards, in groups of K", "K", "reward");
  for (index_t K = 2; K <= 4096; K *= 4) line(K, time_advantages(65536 / K, K, 4), 65536 * 4);
  title("The same in groups of 16, n rewards", "n", "reward");
  for (index_t n = 1; n <= 64; n *= 2)
    line(n, time_advantages(4096, 16, n), static_cast<double>(65536 * n));
  title("The same, 4 rewards, against completions", "completions", "reward");
  for (index_t N = 1024; N <= (1 << 20); N *= 4)
    line(N, time_advantages(N / 16, 16, 4), static_cast<double>(4 * N));

  title("Log-probs and entropies of 2^25 logits in rows of V", "V", "logit");
  std::vector<std::pair<index_t, double>> backward;
  for (index_t V = 1024; V <= (1 << 18); V *= 4) {
    const LogitsTimes times = time_logits((1 << 25) / V, V);
    line(V, times.forward, 1 << 25);
    backward.emplace_back(V, times.backward);
  }
  title("Their gradient", "V", "logit");
  for (const auto& [V, seconds] : backward) line(V, seconds, 1 << 25);

  threads_table("GRPO loss, 512 x 4096 tokens", "token", 512 * 4096,
                [](long n) { return time_loss(512, 4096, n); });
  threads_table("GDPO advantages, 1048576 completions, 4 rewards", "reward", 1 << 22,
                [](long n) { return time_advantages(65536, 16, 4, n); });
  threads_table("Log-probs of 256 rows of 131072 logits", "logit", 256 * 131072,
                [](long n) { return time_logits(256, 131072, n).forward; });
}
