#include "measure.hpp"

#include <algorithm>
#include <cmath>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>

namespace corrections {
namespace {

/// The tokens of a batch, with all that the library is given.
struct Tokens {
  std::size_t rows, length;
  std::vector<std::size_t> steps;  // at(context, token) of each
  std::vector<float> logp, rollout_logp, advantages;

  Tokens(std::size_t rows_, std::size_t length_)
      : rows(rows_),
        length(length_),
        steps(rows * length),
        logp(rows * length),
        rollout_logp(rows * length),
        advantages(rows) {}
  gdpo::TokenBatch<float> batch() const {
    const auto b = static_cast<gdpo::index_t>(rows), t = static_cast<gdpo::index_t>(length);
    gdpo::TokenBatch<float> out;
    out.logp = gdpo::view(logp.data(), b, t);
    out.rollout_logp = gdpo::view(rollout_logp.data(), b, t);
    out.advantages = gdpo::view(advantages);
    return out;
  }
};

/// What an engine's state is drawn with.
struct Drawer {
  std::vector<double> states;  // cumulative shares
  std::vector<Table> tokens;   // cumulative probabilities
  std::vector<Table> log_reported;
  Table log_policy{};

  Drawer(const Task& task, const Engine& engine) {
    double sum = 0;
    for (const Engine::State& s : engine.states) {
      states.push_back(sum += s.share);
      Table up{}, log{};
      for (std::size_t c = 0; c < contexts; ++c) {
        double reached = 0;
        for (std::size_t a = 0; a < vocabulary; ++a) {
          up[at(c, a)] = reached += s.sampled[at(c, a)];
          log[at(c, a)] = std::log(s.reported[at(c, a)]);
        }
      }
      tokens.push_back(up);
      log_reported.push_back(log);
    }
    for (std::size_t k = 0; k < log_policy.size(); ++k) log_policy[k] = std::log(task.policy[k]);
  }
  /// The number of the first entry above u; no entry that adds nothing is found.
  static std::size_t first_above(const double* up, std::size_t n, double u) {
    const double reached = u * up[n - 1];
    std::size_t k = 0;
    while (k + 1 < n && up[k] <= reached) ++k;
    return k;
  }
  void draw(const Task& task, double baseline, Random& random, Tokens& out) const {
    for (std::size_t i = 0; i < out.rows; ++i) {
      std::size_t context = 0;
      int total = 0;
      for (std::size_t t = 0; t < out.length; ++t) {
        const auto state = static_cast<std::size_t>(
            std::upper_bound(states.begin(), states.end() - 1, random.uniform()) - states.begin());
        const Table& up = tokens[state];
        const std::size_t token = first_above(&up[at(context, 0)], vocabulary, random.uniform());
        const std::size_t step = at(context, token), k = i * out.length + t;
        out.steps[k] = step;
        out.logp[k] = static_cast<float>(log_policy[step]);
        out.rollout_logp[k] = static_cast<float>(log_reported[state][step]);
        total += task.score[step];
        context = token + 1;
      }
      out.advantages[i] = static_cast<float>((total >= task.needed ? 1.0 : 0.0) - baseline);
    }
  }
};

Mismatch mismatch_of(const Tokens& tokens) {
  Mismatch m;
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < tokens.rows; ++i) {
    double log_product = 0;
    for (std::size_t t = 0; t < tokens.length; ++t) {
      const std::size_t k = i * tokens.length + t;
      const double x = double{tokens.logp[k]} - double{tokens.rollout_logp[k]};
      m.distance += std::fabs(x) / static_cast<double>(tokens.steps.size());
      log_product += x;
    }
    const double w = std::exp(log_product);
    sum += w, squares += w * w;
  }
  m.product_share = squares > 0 ? sum * sum / (static_cast<double>(tokens.rows) * squares) : 0;
  return m;
}

/// The loss of a correction: -1 / B sum_i sum_t u_it A_i r_it, whose ratio r is 1 in this step.
struct Corrector {
  std::vector<gdpo::runtime::Prepass> passes;
  gdpo::PrepassMemory<float> memory{};
  gdpo::LossWorkspace<float> workspace{};

  /// Writes the gradient by logp, negated, and adds what the weights are like to `sums`.
  void run(const gdpo::TokenBatch<float>& given, std::vector<float>& gradient, Sums& sums) {
    gdpo::TokenBatch<float> batch = given;
    for (const gdpo::runtime::Prepass& pass : passes)
      std::visit([&](const auto& p) { batch = gdpo::prepare(batch, memory, p); }, pass);
    auto loss =
        gdpo::with_metrics<gdpo::metrics::None>(gdpo::with_kl(gdpo::grpo_loss, gdpo::kl::None{}));
    loss.aggregate = gdpo::aggregate::seq_mean_token_sum();
    const auto rows = given.advantages.size();
    const auto n = static_cast<gdpo::index_t>(gradient.size());
    loss(gdpo::simd, batch, gdpo::count(batch), gdpo::view(gradient.data(), rows, n / rows),
         workspace);
    double zeros = 0, sum = 0, squares = 0;
    for (std::size_t k = 0; k < gradient.size(); ++k) {
      gradient[k] = -gradient[k];
      const bool in = !batch.mask || memory.mask[k] != 0;
      const double u = !in ? 0.0 : batch.weights ? double{memory.weights[k]} : 1.0;
      zeros += u == 0 ? 1 : 0;
      sum += u, squares += u * u;
    }
    const auto count = static_cast<double>(gradient.size());
    sums.dropped += zeros / count;
    sums.effective += squares > 0 ? sum * sum / (count * squares) : 0;
  }
};

/// From gradients by log-probs to those by logits.
Table by_logits(const Task& task, const Tokens& tokens, const std::vector<float>& by_logp) {
  Table out{};
  for (std::size_t k = 0; k < by_logp.size(); ++k) out[tokens.steps[k]] += double{by_logp[k]};
  for (std::size_t c = 0; c < contexts; ++c) {
    double sum = 0;
    for (std::size_t a = 0; a < vocabulary; ++a) sum += out[at(c, a)];
    for (std::size_t a = 0; a < vocabulary; ++a) out[at(c, a)] -= task.policy[at(c, a)] * sum;
  }
  return out;
}

}  // namespace

Exact make_exact(const Task& task, const Engine& engine) {
  const Table mean = engine.mean();
  Exact exact{};
  exact.baseline = mean_reward(task, mean);
  exact.gradient = expected_gradient(task, task.policy, exact.baseline);
  exact.none = expected_gradient(task, mean, exact.baseline);
  exact.product = expected_gradient(task, engine.weighed(task.policy), exact.baseline);
  return exact;
}

Chunk measure(const Task& task, const Engine& engine, const Exact& exact,
              const std::vector<std::vector<gdpo::runtime::Prepass>>& corrections,
              std::size_t batches, std::size_t sequences, Random random) {
  Chunk chunk{batches, {}, std::vector<Sums>(corrections.size())};
  std::vector<Corrector> correctors;
  for (const auto& passes : corrections) correctors.push_back({passes});
  const Drawer drawer(task, engine);
  Tokens tokens(sequences, task.length);
  std::vector<float> by_logp(tokens.steps.size());
  std::vector<Table> gradients(corrections.size());
  const double norm = std::sqrt(dot(exact.gradient, exact.gradient));
  for (std::size_t b = 0; b < batches; ++b) {
    drawer.draw(task, exact.baseline, random, tokens);
    const Mismatch mismatch = mismatch_of(tokens);
    chunk.mismatch.distance += mismatch.distance;
    chunk.mismatch.product_share += mismatch.product_share;
    const gdpo::TokenBatch<float> batch = tokens.batch();
    for (std::size_t c = 0; c < corrections.size(); ++c) {
      Sums& sums = chunk.sums[c];
      correctors[c].run(batch, by_logp, sums);
      const Table& g = gradients[c] = by_logits(task, tokens, by_logp);
      const double square = dot(g, g);
      sums.gradient = plus(sums.gradient, 1, g);
      sums.squares += square;
      sums.cosines += square > 0 ? dot(g, exact.gradient) / (std::sqrt(square) * norm) : 0;
    }
    for (std::size_t c = 0; c < corrections.size(); ++c) {
      chunk.sums[c].with_none += dot(gradients[c], gradients[0]);
      chunk.sums[c].with_product += dot(gradients[c], gradients[1]);
    }
  }
  return chunk;
}

}  // namespace corrections
