// Trains a small policy with GDPO on several processes, which speak MPI:
//
//     mpirun -n 4 mpi_trainer --steps 20
//
// Completions are spread over the processes so that prompts are split, some processes have more
// work than others, and the last one has none in every second step. The lines that rank 0 prints
// are the same for any number of processes, and after --checkpoint and --resume.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gdpo/gdpo.hpp>
#include <gdpo/with/mpi.hpp>

namespace {

constexpr int prompts = 6, completions = 8, longest = 5,
              vocabulary = 6;  // word 0 ends a completion
constexpr double learning_rate = 12;

/// The logits of every word at every position of the answer to every prompt.
using Policy = Eigen::Array<double, prompts * longest, vocabulary, Eigen::RowMajor>;

Eigen::Array<double, 1, vocabulary> log_probs(const Policy& policy, int prompt, int position) {
  const auto logits = policy.row(prompt * longest + position);
  return logits - logits.maxCoeff() - std::log((logits - logits.maxCoeff()).exp().sum());
}

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

/// The completions of one process in one step, packed: those of row i are the tokens
/// offsets[i] .. offsets[i + 1] - 1.
struct Rollouts {
  std::vector<int> number, prompt, offsets{0}, words;
  std::vector<double> old_logp, rewards;  // rewards: (rows, 2), the right words and an end
};

Rollouts sample(const Policy& policy, int step, int rank, int ranks) {
  Rollouts r;
  for (int number = 0; number < prompts * completions; ++number) {
    // Process p has every number whose remainder is p, and those of remainder 0 are shared anew in
    // each step. The last process of several rests in odd steps.
    const int busy = step % 2 == 1 && ranks > 1 ? ranks - 1 : ranks;
    if ((number % 3 == 0 ? number / 3 + step : number) % busy != rank) continue;
    const int prompt = number / completions;
    int right = 0, length = 0;
    bool ended = false;
    while (length < longest && !ended) {
      const auto logp = log_probs(policy, prompt, length);
      double left = random_at(std::uint64_t(step), std::uint64_t(number), std::uint64_t(length));
      int word = 0;
      while (word + 1 < vocabulary && (left -= std::exp(logp(word))) > 0) ++word;
      r.words.push_back(word);
      r.old_logp.push_back(logp(word));
      ended = word == 0;
      right += word == 1 + (prompt + length) % (vocabulary - 1);
      ++length;
    }
    r.number.push_back(number);
    r.prompt.push_back(prompt);
    r.offsets.push_back(static_cast<int>(r.words.size()));
    r.rewards.insert(r.rewards.end(), {double(right) / length, ended ? 1.0 : 0.0});
  }
  return r;
}

/// The log-probs of the sampled words under a policy.
std::vector<double> logp_of(const Policy& policy, const Rollouts& r) {
  std::vector<double> logp;
  for (std::size_t i = 0; i < r.prompt.size(); ++i) {
    for (int t = r.offsets[i]; t < r.offsets[i + 1]; ++t) {
      logp.push_back(log_probs(policy, r.prompt[i], t - r.offsets[i])(r.words[std::size_t(t)]));
    }
  }
  return logp;
}

/// The gradient by the logits, from that by the log-probs of the words.
std::vector<double> gradient_by_logits(const Policy& policy, const Rollouts& r,
                                       const std::vector<double>& dlogp) {
  Policy gradient = Policy::Zero();
  for (std::size_t i = 0; i < r.prompt.size(); ++i) {
    for (int t = r.offsets[i]; t < r.offsets[i + 1]; ++t) {
      const int position = t - r.offsets[i];
      auto row = gradient.row(r.prompt[i] * longest + position);
      row -= dlogp[std::size_t(t)] * log_probs(policy, r.prompt[i], position).exp();
      row(r.words[std::size_t(t)]) += dlogp[std::size_t(t)];
    }
  }
  return {gradient.data(), gradient.data() + gradient.size()};
}

constexpr std::streamsize bytes_of_policy = sizeof(double) * Policy::SizeAtCompileTime;

/// The state of the training, in a file that is replaced as a whole.
void save(const std::string& path, std::int64_t next_step, const Policy& policy) {
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&next_step), sizeof next_step);
  file.write(reinterpret_cast<const char*>(policy.data()), bytes_of_policy);
  if (!file.flush()) throw std::runtime_error("cannot write " + unfinished);
  std::filesystem::rename(unfinished, path);
}
std::int64_t load(const std::string& path, Policy& policy) {
  std::int64_t next_step = 0;
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&next_step), sizeof next_step);
  file.read(reinterpret_cast<char*>(policy.data()), bytes_of_policy);
  if (!file) throw std::runtime_error("cannot read a checkpoint from " + path);
  return next_step;
}

void train(const gdpo::dist::Mpi& comm, int steps, const std::string& checkpoint,
           const std::string& resume) {
  Policy policy = Policy::Zero();
  const gdpo::Gdpo estimator;
  auto loss = gdpo::dapo_loss;
  gdpo::dist::agree_on(comm, estimator, loss, steps, learning_rate);
  // Every process reads the checkpoint. If one cannot, or has another one, all of them stop.
  int first = 0;
  if (!resume.empty())
    first = gdpo::dist::agree(comm, [&] { return static_cast<int>(load(resume, policy)); });
  gdpo::dist::agree_on(comm, first, policy.square().sum());

  for (int step = first; step < steps; ++step) {
    const Rollouts r = sample(policy, step, comm.rank(), comm.size());
    const auto rows = static_cast<gdpo::index_t>(r.prompt.size());

    // Advantages: every process computes those of all completions, and keeps its own.
    const gdpo::RewardBatch own{gdpo::view(r.rewards.data(), rows, 2), gdpo::by_id(r.prompt)};
    const auto all = gdpo::dist::gather_rows(comm, own, gdpo::view(r.number));
    gdpo::GroupReport report;
    const std::vector<double> every = gdpo::advantages(gdpo::simd, all.batch(), estimator, &report);
    const std::vector<double> advantages = all.own(every);

    // Counts of all processes, before the first loss.
    gdpo::TokenBatch<double> batch;
    batch.offsets = gdpo::view(r.offsets);
    const gdpo::Normalizer counts = gdpo::dist::all_merge(comm, [&] { return gdpo::count(batch); });

    batch.old_logp = gdpo::view(r.old_logp);
    batch.advantages = gdpo::view(advantages);
    gdpo::LossResult result;
    for (int update = 0; update < 3; ++update) {
      const std::vector<double> logp = logp_of(policy, r);
      std::vector<double> dlogp(logp.size());
      batch.logp = gdpo::view(logp);
      const gdpo::LossResult part = gdpo::dist::agree(comm, [&] {
        return rows > 0 ? loss(batch, counts, gdpo::view(dlogp)) : gdpo::LossResult{};
      });
      result = gdpo::dist::all_merge(comm, part);
      // Nothing divides the sum of the gradients: dist::grad_scale() of Engine::Sum is 1.
      const std::vector<double> gradient =
          gdpo::dist::all_merge(comm, gradient_by_logits(policy, r, dlogp));
      policy -= learning_rate * Eigen::Map<const Policy>(gradient.data());
    }
    if (comm.rank() == 0) {
      double checksum = 0;
      for (std::size_t i = 0; i < every.size(); ++i) checksum += every[i] * double(i + 1);
      std::printf(
          "step %2d  reward %.6f  loss %9.6f  clipped %.4f  tokens %3.0f  advantages %.9f\n", step,
          report.reward_mean, result.loss, result.metrics.clip_fraction.mean(), counts.tokens,
          checksum);
      std::fflush(stdout);
    }
  }
  if (comm.rank() == 0) std::printf("parameters %.9f\n", policy.square().sum());
  // If rank 0 cannot write, the others hear of it.
  gdpo::dist::agree(comm, [&] {
    if (comm.rank() == 0 && !checkpoint.empty()) save(checkpoint, steps, policy);
  });
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 20;
  std::string checkpoint, resume;
  CLI::App app("Trains a small policy with GDPO on the processes that mpirun starts.");
  app.add_option("--steps", steps, "train up to this step")->check(CLI::NonNegativeNumber);
  app.add_option("--checkpoint", checkpoint, "write the state here at the end");
  app.add_option("--resume", resume, "begin with the state in this file");
  CLI11_PARSE(app, argc, argv);

  MPI_Init(&argc, &argv);
  int failed = 0;
  try {
    train(gdpo::dist::Mpi(MPI_COMM_WORLD, 60), steps, checkpoint, resume);
  } catch (const std::exception& e) {
    // What dist/ throws all ranks throw: one of them says it. Anything else is an error of this
    // rank alone, for which the others would wait.
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const bool of_all = std::string(e.what()).compare(0, 10, "gdpo::dist") == 0;
    if (rank == 0 || !of_all) std::fprintf(stderr, "mpi_trainer: rank %d: %s\n", rank, e.what());
    if (!of_all) MPI_Abort(MPI_COMM_WORLD, 1);
    failed = 1;
  }
  MPI_Finalize();
  return failed;
}
