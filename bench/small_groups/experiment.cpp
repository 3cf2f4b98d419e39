#include "experiment.hpp"

#include <cmath>
#include <gdpo/with/thread_pool.hpp>
#include <limits>
#include <mutex>

#include "../../examples/resolution/progress.hpp"

namespace small_groups {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

/// The 97.5 % quantile of Student's t: from tables up to 30 degrees of freedom, by the first terms
/// of its expansion around that of the normal law above.
double t_quantile(std::size_t dof) {
  constexpr double table[] = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060,
                              2.2622,  2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199,
                              2.1098,  2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639,
                              2.0595,  2.0555, 2.0518, 2.0484, 2.0452, 2.0423};
  if (dof <= std::size(table)) return table[dof - 1];
  const double z = 1.959964, n = static_cast<double>(dof);
  return z + (z * z * z + z) / (4 * n) +
         (5 * z * z * z * z * z + 16 * z * z * z + 3 * z) / (96 * n * n);
}

}  // namespace

Interval interval_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / n;
  for (const double v : values) squares += (v - mean) * (v - mean);
  if (values.size() < 2) return {mean, unknown};
  return {mean, t_quantile(values.size() - 1) * std::sqrt(squares / (n - 1) / n)};
}

std::vector<double> Cell::values(std::size_t estimator, Measure measure) const {
  std::vector<double> out;
  for (const auto& seed : by_seed) out.push_back(seed[estimator][measure]);
  return out;
}

std::vector<double> Cell::differences(std::size_t a, std::size_t b, Measure measure) const {
  std::vector<double> out;
  for (const auto& seed : by_seed) out.push_back(seed[a][measure] - seed[b][measure]);
  return out;
}

std::size_t Cell::best(Measure measure) const {
  std::size_t best = 0;
  double highest = -std::numeric_limits<double>::infinity();
  for (std::size_t e = 0; e < by_seed.front().size(); ++e) {
    const double mean = interval(e, measure).mean;
    // Formulas that agree but for a factor differ by rounding; the first of them counts.
    if (mean > highest + 1e-12) best = e, highest = mean;
  }
  return best;
}

bool Cell::among_best(std::size_t estimator, Measure measure) const {
  const Interval d = interval_of(differences(best(measure), estimator, measure));
  return d.mean <= 1e-12 || d.mean <= d.half_width;
}

Results run(const Settings& settings, const std::vector<Law>& laws,
            const std::vector<Estimator>& estimators, const Logs& logs, int threads) {
  Results results{settings, laws, estimators, true, {}};
  results.complete =
      laws.size() == all_laws().size() && estimators.size() == all_estimators().size();
  const std::size_t ks = settings.ks.size(), cells = laws.size() * ks;
  std::vector<Measured> measured(cells * settings.seeds);
  resolution::Progress progress("measuring", measured.size(), "run");
  std::mutex mutex;
  std::size_t done = 0;

  gdpo::ThreadPool pool(threads);
  pool.for_each(static_cast<gdpo::index_t>(measured.size()), [&](gdpo::index_t job) {
    const auto number = static_cast<std::size_t>(job);
    const std::size_t seed = number % settings.seeds, cell = number / settings.seeds;
    const Law& law = laws[cell / ks];
    const std::size_t k = settings.ks[cell % ks];
    // Prompts depend on law and seed, batches on K as well; estimators all see the same ones.
    const std::uint64_t of_law = Random::number_of(law.name);
    const Bandits bandits =
        make_bandits(law, settings.prompts, Random(settings.seed, of_law, seed), logs);
    measured[number] = measure(bandits, estimators, k, settings.batches, [&](std::size_t batch) {
      return Random(settings.seed, of_law, seed, k, batch);
    });
    const std::lock_guard<std::mutex> lock(mutex);
    progress.update_at(++done, 0, resolution::Progress::Clock::now());
  });

  for (std::size_t l = 0; l < laws.size(); ++l) {
    results.cells.emplace_back(ks);
    for (std::size_t c = 0; c < ks; ++c) {
      Cell& cell = results.cells[l][c];
      for (std::size_t s = 0; s < settings.seeds; ++s) {
        Measured& m = measured[(l * ks + c) * settings.seeds + s];
        cell.flat += m.flat / static_cast<double>(settings.seeds);
        cell.by_seed.push_back(std::move(m.estimators));
      }
    }
  }
  return results;
}

}  // namespace small_groups
