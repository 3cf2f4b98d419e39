// The policy update of open-instruct, whole, on a small policy: rollouts, advantages, packing,
// mini-batches, accumulation, counts over ranks, clipping, Adam, Polyak averaging, and the metrics
// under the keys that open-instruct logs.
//
//     mpirun -n 3 update_step --steps 40
//
// It prints one line of JSON for each training step, which is the same for any number of processes.
// The sampler is the policy itself, so that no weights are sent, and its log-probs are the old ones
// (use_vllm_logprobs of open-instruct).
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <gdpo/gdpo.hpp>
#include <gdpo/presets/open_instruct.hpp>
#include <gdpo/with/mpi.hpp>
#include <map>

namespace {

using gdpo::index_t;
constexpr int prompts = 8, completions = 6, rows = prompts * completions, longest = 12,
              vocabulary = 8, width = 6, pack_length = 24;  // word 0 ends a completion
using Log = std::map<std::string, double>;
using Matrix = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// A random number in [0, 1) that depends on its place alone, so that a completion is the same
/// whichever process samples it.
double random_at(std::uint64_t step, std::uint64_t number, std::uint64_t position) {
  std::uint64_t x = (step * 1000 + number) * 100 + position + 1;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

/// A policy, its gradient, or the moments of Adam: the logits of the next word are
/// tanh(prompt + previous word) times `out`.
struct Policy {
  Matrix prompt = Matrix::Zero(prompts, width), word = Matrix::Zero(vocabulary, width),
         out = Matrix::Zero(width, vocabulary);

  /// All parameters, for what works on a list of arrays. All processes hold all of them.
  std::vector<gdpo::update::ParameterView> views() {
    using gdpo::update::replicated;
    return {replicated(gdpo::view(prompt)), replicated(gdpo::view(word)),
            replicated(gdpo::view(out))};
  }
  template <class F>
  void for_each(const F& f) {
    f(&Policy::prompt), f(&Policy::word), f(&Policy::out);
  }
};

Eigen::ArrayXd hidden(const Policy& p, int prompt, int previous) {
  return (p.prompt.row(prompt) + p.word.row(previous)).tanh().transpose();
}
Eigen::ArrayXd log_probs(const Policy& p, const Eigen::ArrayXd& h) {
  const Eigen::ArrayXd logits = (p.out.matrix().transpose() * h.matrix()).array();
  return logits - logits.maxCoeff() - std::log((logits - logits.maxCoeff()).exp().sum());
}

/// The completions of a step. Every process has all of them.
struct Rollouts {
  std::vector<double> words, logp, ref_logp;   // (rows, longest), padded with 0
  std::vector<index_t> lengths;                // (rows)
  std::vector<double> correct, ended, scores;  // (rows) two rewards and their sum

  int word(index_t row, int t) const { return static_cast<int>(words[at(row * longest + t)]); }
  int previous(index_t row, int t) const { return t == 0 ? 0 : word(row, t - 1); }
};

/// Samples completions with the log-probs of the sampler, each process those of some prompts. What
/// the others sample is 0 here, so the sum over processes is all of them.
Rollouts sample(const gdpo::dist::Mpi& comm, const Policy& policy, int step) {
  Rollouts r;
  r.words.resize(rows * longest), r.logp.resize(rows * longest);
  std::vector<double> lengths(rows);
  for (int row = 0; row < rows; ++row) {
    const int prompt = row / completions;
    if (prompt % comm.size() != comm.rank()) continue;
    int t = 0, word = 0;
    do {
      const Eigen::ArrayXd logp = log_probs(policy, hidden(policy, prompt, word));
      double left = random_at(std::uint64_t(step), std::uint64_t(row), std::uint64_t(t));
      word = 0;
      while (word + 1 < vocabulary && (left -= std::exp(logp(word))) > 0) ++word;
      r.words[at(row * longest + t)] = word, r.logp[at(row * longest + t)] = logp(word);
      ++t;
    } while (t < longest && word != 0);
    lengths[at(row)] = t;
  }
  r.words = gdpo::dist::all_merge(comm, r.words);
  r.logp = gdpo::dist::all_merge(comm, r.logp);
  for (const double length : gdpo::dist::all_merge(comm, lengths))
    r.lengths.push_back(static_cast<index_t>(length));
  return r;
}

/// Log-probs of the sampled words under the reference, once for all optimizer steps; the work is
/// shared as in sample().
void add_reference(const gdpo::dist::Mpi& comm, const Policy& reference, Rollouts& r) {
  r.ref_logp.resize(rows * longest);
  for (int row = 0; row < rows; ++row) {
    const int prompt = row / completions;
    if (prompt % comm.size() != comm.rank()) continue;
    for (int t = 0; t < static_cast<int>(r.lengths[at(row)]); ++t) {
      r.ref_logp[at(row * longest + t)] =
          log_probs(reference, hidden(reference, prompt, r.previous(row, t)))(r.word(row, t));
    }
  }
  r.ref_logp = gdpo::dist::all_merge(comm, r.ref_logp);
}

/// Rewards: the share of words that count on from the prompt's number, and an end in time, which is
/// punished gradually before the longest completion (DAPO).
void score(Rollouts& r) {
  for (index_t row = 0; row < rows; ++row) {
    const auto length = static_cast<int>(r.lengths[at(row)]);
    int right = 0;
    for (int t = 0; t < length; ++t)
      right += r.word(row, t) == 1 + (int(row) / completions + t) % (vocabulary - 1);
    r.correct.push_back(double(right) / length);
    r.ended.push_back(r.word(row, length - 1) == 0 ? 1 : 0);
  }
  gdpo::update::shape_rewards(gdpo::view(r.ended), gdpo::view(r.lengths),
                              gdpo::update::shaping::SoftOverlong{longest, 4});
  for (std::size_t i = 0; i < rows; ++i) r.scores.push_back(r.correct[i] + r.ended[i]);
}

/// The arrays of one micro-batch, which is packed, and its part of the gradient.
struct MicroBatch {
  std::vector<index_t> row, offsets{0};
  std::vector<double> logp, old_logp, ref_logp, entropies, advantages, dlogp;
  gdpo::TokenBatch<double> batch;

  /// Some rows, without the log-probs of the policy, which change with every optimizer step.
  MicroBatch(const Rollouts& r, const std::vector<double>& advantage, std::vector<index_t> some)
      : row(std::move(some)) {
    for (const index_t i : row) {
      for (index_t t = 0; t < r.lengths[at(i)]; ++t) {
        old_logp.push_back(r.logp[at(i * longest + t)]);
        ref_logp.push_back(r.ref_logp[at(i * longest + t)]);
      }
      offsets.push_back(static_cast<index_t>(old_logp.size()));
      advantages.push_back(advantage[at(i)]);
    }
    logp.resize(old_logp.size()), entropies = dlogp = logp;
    batch.logp = gdpo::view(logp), batch.old_logp = gdpo::view(old_logp);
    batch.ref_logp = gdpo::view(ref_logp), batch.entropies = gdpo::view(entropies);
    batch.advantages = gdpo::view(advantages), batch.offsets = gdpo::view(offsets);
  }
  void forward(const Policy& p, const Rollouts& r) {
    for_each_token(r, [&](index_t i, int t, std::size_t token) {
      const auto logp_of =
          log_probs(p, hidden(p, static_cast<int>(i) / completions, r.previous(i, t)));
      logp[token] = logp_of(r.word(i, t));
      entropies[token] = -(logp_of.exp() * logp_of).sum();
    });
  }
  /// Adds the gradient by the parameters, from `dlogp` times a factor.
  void backward(const Policy& p, const Rollouts& r, double factor, Policy& gradient) const {
    for_each_token(r, [&](index_t i, int t, std::size_t token) {
      const int prompt = static_cast<int>(i) / completions, previous = r.previous(i, t);
      const Eigen::ArrayXd h = hidden(p, prompt, previous);
      const double by_logp = factor * dlogp[token];
      Eigen::VectorXd by_logits = (-by_logp * log_probs(p, h).exp()).matrix();
      by_logits(r.word(i, t)) += by_logp;
      gradient.out.matrix() += h.matrix() * by_logits.transpose();
      const Eigen::ArrayXd by_sum = (p.out.matrix() * by_logits).array() * (1 - h.square());
      gradient.prompt.row(prompt) += by_sum.transpose();
      gradient.word.row(previous) += by_sum.transpose();
    });
  }
  template <class F>
  void for_each_token(const Rollouts& r, const F& f) const {
    std::size_t token = 0;
    for (const index_t i : row) {
      for (int t = 0; t < static_cast<int>(r.lengths[at(i)]); ++t) f(i, t, token++);
    }
  }
};

/// Averages a gradient over the processes, as DistributedDataParallel does.
void average_over_ranks(const gdpo::dist::Mpi& comm, Policy& gradient) {
  gradient.for_each([&](Matrix Policy::*member) {
    Matrix& g = gradient.*member;
    const std::vector<double> own(g.data(), g.data() + g.size());
    const std::vector<double> sum = gdpo::dist::all_merge(comm, own);
    g = Eigen::Map<const Matrix>(sum.data(), g.rows(), g.cols()) / comm.size();
  });
}

/// Adam (Kingma, Ba, arXiv 1412.6980) with PyTorch's defaults.
struct Adam {
  Policy first, second;
  double lr;
  int steps = 0;

  void step(Policy& p, Policy& gradient) {
    ++steps;
    p.for_each([&](Matrix Policy::*member) {
      const Matrix& g = gradient.*member;
      Matrix &m = first.*member, &v = second.*member;
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g.square();
      p.*member -= lr * (m / (1 - std::pow(0.9, steps))) /
                   ((v / (1 - std::pow(0.999, steps))).sqrt() + 1e-8);
    });
  }
};

/// What the optimizer steps of one training step log, besides the data.
struct UpdateLog {
  gdpo::LossMetrics metrics;
  double policy_loss = 0, kl_loss = 0, tokens = 0, grad_norm = 0, steps = 0;
  // Of this process: the tokens, four estimates of the KL to the reference, and the first two
  // moments of the mean ratio of a micro-batch about 1, all weighted by tokens.
  std::vector<double> sums = std::vector<double>(7);

  void add(const MicroBatch& m, const gdpo::LossResult& result) {
    for (std::size_t j = 0; j < m.logp.size(); ++j) {
      const double d = std::clamp(m.logp[j] - m.ref_logp[j], -40.0, 40.0);
      sums[0] += 1, sums[1] += d, sums[2] += d * d / 2, sums[3] += std::expm1(-d) + d;
      sums[4] += std::exp(m.logp[j] - m.old_logp[j]) * d;
    }
    const auto weight = double(m.logp.size()), off = result.metrics.ratio.mean() - 1;
    sums[5] += weight * off, sums[6] += weight * off * off;
  }
  void add(const gdpo::LossResult& total, double norm) {
    metrics = gdpo::merge(metrics, total.metrics);
    const double weight = total.normalizer.tokens;
    policy_loss += weight * total.policy_loss, kl_loss += weight * total.kl_loss, tokens += weight;
    grad_norm += norm, steps += 1;
  }
  void write(const gdpo::dist::Mpi& comm, Log& log) const {
    const std::vector<double> s = gdpo::dist::all_merge(comm, sums);
    for (int k = 0; k < 4; ++k)
      log["objective/kl" + std::to_string(k) + "_avg"] = s[at(k + 1)] / s[0];
    log["loss/policy_avg"] = policy_loss / tokens, log["loss/kl_avg"] = kl_loss / tokens;
    log["loss/total_avg"] = (policy_loss + kl_loss) / tokens;
    log["policy/clipfrac_avg"] = metrics.clip_fraction.mean();
    log["policy/entropy_avg"] = metrics.entropy.mean();
    log["val/ratio"] = metrics.ratio.mean();
    log["val/ratio_var"] = s[6] / s[0] - s[5] / s[0] * (s[5] / s[0]);
    log["optim/grad_norm"] = grad_norm / steps;
  }
};

/// What open-instruct logs of the completions that are trained on. One is solved if its score is
/// the best one, 2.
void log_data(const Rollouts& r, const std::vector<double>& advantages,
              const gdpo::update::SelectedGroups& selected, const gdpo::update::Packing& packing,
              Log& log) {
  const auto kept = index_t(selected.rows.size());
  log["real_batch_size_ratio"] = double(selected.groups.size()) / prompts;
  if (kept == 0) return;
  Eigen::ArrayXd score(kept), length(kept), advantage(kept);
  double unsolved = 0, stopped = 0;
  for (index_t k = 0; k < kept; ++k) {
    const index_t row = selected.rows[at(k)];
    score(k) = r.scores[at(row)], advantage(k) = advantages[at(row)];
    length(k) = double(r.lengths[at(row)]);
    unsolved += score(k) < 2;
    stopped += r.word(row, static_cast<int>(r.lengths[at(row)]) - 1) == 0;
  }
  log["scores"] = score.mean();
  log["val/sequence_lengths"] = length.mean();
  log["val/sequence_lengths_min"] = length.minCoeff();
  log["val/sequence_lengths_max"] = length.maxCoeff();
  log["val/stop_rate"] = stopped / double(kept);
  log["val/advantages_mean"] = advantage.mean();
  log["val/advantages_min"] = advantage.minCoeff();
  log["val/advantages_max"] = advantage.maxCoeff();
  log["unsolved_batch_size_ratio"] = unsolved / double(kept);
  log["packed_ratio"] = double(packing.packs()) / double(kept);
}

struct Settings {
  int steps = 40;
  index_t epochs = 1, mini_batches = 2;
  double learning_rate = 0.05, max_grad_norm = 1, kl_target = 0;
  gdpo::update::Refresh refresh{4, 0.6};  // ref_policy_update_freq, alpha
};

void print(int step, const Log& log) {
  std::printf("{\"training_step\": %d", step);
  // Adding 0 turns -0 into 0: which of the two a sum of roundings gives, depends on their order.
  for (const auto& [key, value] : log)
    std::printf(", \"%s\": %.6f", key.c_str(), std::round(value * 1e6) / 1e6 + 0.0);
  std::printf("}\n");
  std::fflush(stdout);
}

void train(const gdpo::dist::Mpi& comm, const Settings& settings) {
  Policy policy;
  policy.for_each([&](Matrix Policy::*member) {
    Matrix& m = policy.*member;
    for (index_t i = 0; i < m.size(); ++i)
      m.data()[i] = random_at(99, std::uint64_t(m.size()), std::uint64_t(i)) - 0.5;
  });
  Policy reference = policy;
  Adam adam{{}, {}, settings.learning_rate};
  auto loss = gdpo::open_instruct::dapo_loss;
  const gdpo::Gdpo estimator;
  gdpo::dist::agree_on(comm, estimator, loss, settings.steps, settings.epochs,
                       settings.mini_batches, settings.learning_rate, settings.max_grad_norm,
                       settings.kl_target, settings.refresh.every, settings.refresh.tau);

  for (int step = 1; step <= settings.steps; ++step) {
    Log log;
    // Data preparation: every process does it for all rows, with the same result.
    Rollouts r = sample(comm, policy, step);
    score(r);
    add_reference(comm, reference, r);
    std::vector<double> rewards = r.correct;
    rewards.insert(rewards.end(), r.ended.begin(), r.ended.end());
    const gdpo::RewardBatch batch{gdpo::view(rewards.data(), {rows, 2}, {1, rows}),
                                  gdpo::groups_of(completions)};
    gdpo::GroupReport report;
    const std::vector<double> advantages = gdpo::advantages(gdpo::simd, batch, estimator, &report);
    // Groups without a signal are left out. A trainer would sample `refill` prompts in their place.
    gdpo::update::GroupSelection selection;
    selection.wanted = prompts;
    const gdpo::update::SelectedGroups selected = gdpo::update::select_groups(batch, selection);
    std::vector<index_t> lengths;
    for (const index_t row : selected.rows) lengths.push_back(r.lengths[at(row)]);
    const gdpo::update::Packing packing = gdpo::update::pack(lengths, pack_length);

    log_data(r, advantages, selected, packing, log);

    // Which packs go into which optimizer step, process and micro-batch. Packs come out of pack()
    // by length, so they are shuffled. open-instruct leaves out what does not come out even; here
    // every completion is used.
    gdpo::update::PlanSettings cut;
    cut.epochs = settings.epochs;
    cut.mini_batches =
        std::clamp(settings.mini_batches, index_t{1}, (std::max)(packing.packs(), index_t{1}));
    cut.micro_batch = 1, cut.ranks = comm.size();
    cut.remainder = gdpo::update::Remainder::Spread;
    cut.shuffle = gdpo::update::Shuffle::Once, cut.seed = std::uint64_t(step);
    const gdpo::update::Plan plan = gdpo::update::plan(packing.packs(), cut);

    UpdateLog update;
    for (index_t s = 0; s < plan.steps(); ++s) {
      std::vector<MicroBatch> micro;
      micro.reserve(at(plan.accumulation()));  // the batches refer to their own arrays
      for (index_t k = 0; k < plan.accumulation(); ++k) {
        std::vector<index_t> some;
        const auto packs = plan.rows(s, comm.rank(), k);
        for (index_t p = 0; p < packs.extent[0]; ++p) {
          const auto in_pack = packing.rows(packs(p));
          for (index_t i = 0; i < in_pack.extent[0]; ++i)
            some.push_back(selected.rows[at(in_pack(i))]);
        }
        micro.emplace_back(r, advantages, std::move(some));
      }
      // The tokens of all micro-batches and processes, before the first loss.
      auto accumulated = gdpo::update::Step(
          comm, plan.accumulation(), [&](index_t k) { return gdpo::count(micro[at(k)].batch); });
      accumulated.set_given(accumulated.normalizer().tokens);
      const double factor = gdpo::dist::grad_scale(comm.size(), 1, gdpo::dist::Engine::Ddp);
      Policy gradient;
      for (index_t k = 0; k < plan.accumulation(); ++k) {
        MicroBatch& m = micro[at(k)];
        accumulated.add(k, [&] {
          m.forward(policy, r);
          const gdpo::LossResult result =
              loss(m.batch, accumulated.normalizer(), gdpo::view(m.dlogp));
          m.backward(policy, r, factor, gradient);
          update.add(m, result);
          return result;
        });
      }
      const gdpo::LossResult total = accumulated.finish();
      average_over_ranks(comm, gradient);
      const gdpo::update::ClippedGradient clipped =
          gdpo::update::clip_grad_norm(gdpo::simd, comm, gradient.views(), settings.max_grad_norm);
      if (clipped.take_step) adam.step(policy, gradient);
      adam.lr -= settings.learning_rate / (settings.steps * double(plan.steps()));
      update.add(total, clipped.norm);
    }
    if (settings.refresh.due(step))
      gdpo::update::polyak(reference.views(), policy.views(), settings.refresh.tau);
    if (plan.steps() > 0) update.write(comm, log);
    log["lr"] = adam.lr;
    if (settings.kl_target > 0) {  // open-instruct's beta is fixed
      gdpo::AdaptiveKl controller;
      controller.target = settings.kl_target, controller.horizon = 1000;
      log["objective/kl_coef"] = loss.kl.beta;
      loss.kl.beta = controller(loss.kl.beta, update.metrics.kl.mean(), rows);
    }

    if (comm.rank() == 0) print(step, log);
  }
  if (comm.rank() == 0) std::printf("{\"parameters\": %.9f}\n", policy.out.square().sum());
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("The policy update of open-instruct on the processes that mpirun starts.");
  app.add_option("--steps", settings.steps, "training steps")->check(CLI::PositiveNumber);
  app.add_option("--epochs", settings.epochs, "times each row is used");
  app.add_option("--mini-batches", settings.mini_batches, "optimizer steps of an epoch");
  app.add_option("--learning-rate", settings.learning_rate, "at the first step; falls to 0");
  app.add_option("--max-grad-norm", settings.max_grad_norm,
                 "bound of the gradient's norm; 0: none");
  app.add_option("--refresh", settings.refresh.every, "steps between updates of the reference");
  app.add_option("--alpha", settings.refresh.tau, "weight of the policy in such an update");
  app.add_option("--kl-target", settings.kl_target, "KL that beta is moved to; 0: beta is fixed");
  CLI11_PARSE(app, argc, argv);
  if (settings.max_grad_norm == 0) settings.max_grad_norm = gdpo::math::infinity;

  MPI_Init(&argc, &argv);
  int failed = 0;
  try {
    train(gdpo::dist::Mpi(MPI_COMM_WORLD, 60), settings);
  } catch (const std::exception& e) {
    // Every process has the same data and settings, so what one throws all of them throw.
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) std::fprintf(stderr, "update_step: %s\n", e.what());
    failed = 1;
  }
  MPI_Finalize();
  return failed;
}
