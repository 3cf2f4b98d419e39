#include "experiment.hpp"

#include <algorithm>
#include <cmath>
#include <gdpo/with/thread_pool.hpp>
#include <mutex>

#include "../../examples/resolution/progress.hpp"
#include "measure.hpp"

namespace corrections {
namespace {

/// One policy under one sampler.
struct Setup {
  Task task;
  Engine engine;
  Exact exact;
};

/// What one policy gives for one correction. Squares are relative to |g|^2.
struct OfPolicy {
  double bias_square = 0, bias_error = 0;  // with its standard error
  double length = 0, variance = 0, cosine = 0, of_chunk = 0, of_all = 0, gain = 0, gain_error = 0;
  double dropped = 0, effective = 0;
  bool exact = false;
};

/// The two known gradients, weighed so that the estimates vary least.
struct Controls {
  double none = 0, product = 0;
};

/// Sums over the chunks of one correction.
struct Total {
  double batches = 0, squares = 0, with_none = 0, with_product = 0;
  Table gradient{};
};
Total total_of(const std::vector<Chunk>& chunks, std::size_t correction) {
  Total total;
  for (const Chunk& chunk : chunks) {
    const Sums& sums = chunk.sums[correction];
    total.batches += static_cast<double>(chunk.batches);
    total.squares += sums.squares;
    total.with_none += sums.with_none;
    total.with_product += sums.with_product;
    total.gradient = plus(total.gradient, 1, sums.gradient);
  }
  return total;
}

/// Least squares of f on the two known gradients, about the means. Where the product's weights rest
/// on few sequences, its sample means are no guide, and it is left out.
Controls controls_of(const std::vector<Chunk>& chunks, std::size_t correction, bool with_product) {
  const Total f = total_of(chunks, correction), none = total_of(chunks, 0),
              product = total_of(chunks, 1);
  const double n = f.batches;
  const double f_none = f.with_none - dot(f.gradient, none.gradient) / n;
  const double f_product = f.with_product - dot(f.gradient, product.gradient) / n;
  const double none_none = none.squares - dot(none.gradient, none.gradient) / n;
  const double both = none.with_product - dot(none.gradient, product.gradient) / n;
  const double product_product = product.squares - dot(product.gradient, product.gradient) / n;
  const double determinant = none_none * product_product - both * both;
  if (!with_product || determinant <= 1e-6 * none_none * product_product)
    return {f_none / none_none, 0};
  return {(f_none * product_product - f_product * both) / determinant,
          (f_product * none_none - f_none * both) / determinant};
}

/// |mean of the residuals|^2 without the part that is noise, and its standard error by leaving out
/// one chunk after the other.
void estimate_bias(const std::vector<Table>& residuals, OfPolicy& out) {
  const auto n = static_cast<double>(residuals.size());
  Table sum{};
  double squares = 0;
  for (const Table& r : residuals) sum = plus(sum, 1, r), squares += dot(r, r);
  const auto pairs = [](const Table& s, double q, double m) {
    return (dot(s, s) - q) / (m * (m - 1));
  };
  out.bias_square = pairs(sum, squares, n);
  double spread = 0, mean = 0;
  std::vector<double> without;
  for (const Table& r : residuals) {
    without.push_back(pairs(plus(sum, -1, r), squares - dot(r, r), n - 1));
    mean += without.back() / n;
  }
  for (const double x : without) spread += (x - mean) * (x - mean);
  out.bias_error = std::sqrt((n - 1) / n * spread);
}

/// 0 where a vector is 0.
double cosine(const Table& a, const Table& b) {
  const double squares = dot(a, a) * dot(b, b);
  return squares > 0 ? dot(a, b) / std::sqrt(squares) : 0;
}

OfPolicy of_policy(const Exact& exact, const std::vector<Chunk>& chunks, std::size_t correction,
                   bool with_product) {
  OfPolicy out;
  const Table& g = exact.gradient;
  const double square = dot(g, g);
  const Controls controls = controls_of(chunks, correction, with_product);
  std::vector<Table> residuals;
  std::vector<double> gains;
  for (const Chunk& chunk : chunks) {
    const auto batches = static_cast<double>(chunk.batches);
    const Sums& sums = chunk.sums[correction];
    Table r = plus({}, 1 / batches, sums.gradient);
    r = plus(r, -controls.none,
             plus(plus({}, 1 / batches, chunk.sums[0].gradient), -1, exact.none));
    r = plus(r, -controls.product,
             plus(plus({}, 1 / batches, chunk.sums[1].gradient), -1, exact.product));
    residuals.push_back(plus(r, -1, g));
    gains.push_back((sums.cosines - chunk.sums[0].cosines) / batches);
    const double share = 1 / static_cast<double>(chunks.size());
    out.cosine += share * sums.cosines / batches;
    out.of_chunk += share * cosine(sums.gradient, g);
    out.dropped += share * sums.dropped / batches;
    out.effective += share * sums.effective / batches;
    out.gain += share * gains.back();
  }
  Table bias{};
  if (correction < 2) {
    bias = plus(correction == 0 ? exact.none : exact.product, -1, g);
    out.bias_square = dot(bias, bias);
    out.exact = true;
  } else {
    estimate_bias(residuals, out);
    for (const Table& r : residuals)
      bias = plus(bias, 1 / static_cast<double>(residuals.size()), r);
  }
  out.bias_square /= square, out.bias_error /= square;
  out.length = 1 + dot(bias, g) / square;
  const Total f = total_of(chunks, correction);
  out.of_all = cosine(f.gradient, g);
  out.variance = (f.squares - dot(f.gradient, f.gradient) / f.batches) / (f.batches - 1) / square;
  double spread = 0;
  for (const double x : gains) spread += (x - out.gain) * (x - out.gain);
  const auto n = static_cast<double>(gains.size());
  out.gain_error = std::sqrt(spread / (n - 1) / n);
  return out;
}

double root(double x) { return std::sqrt(std::max(0.0, x)); }

/// The mean over the policies.
Measured mean_of(const std::vector<OfPolicy>& policies) {
  Measured m;
  double bias_square = 0, bias_error = 0, gain = 0, gain_error = 0;
  const double share = 1 / static_cast<double>(policies.size());
  for (const OfPolicy& p : policies) {
    m.exact = p.exact;
    bias_square += share * p.bias_square;
    bias_error += share * share * p.bias_error * p.bias_error;
    gain += share * p.gain;
    gain_error += share * share * p.gain_error * p.gain_error;
    m.length += share * p.length;
    m.variance += share * p.variance;
    m.cosine += share * p.cosine;
    m.of_chunk += share * p.of_chunk;
    m.of_all += share * p.of_all;
    m.dropped += share * p.dropped;
    m.effective += share * p.effective;
    // |E f|^2 = |bias|^2 + 2 E f . g - |g|^2
    const double square = std::max(p.length * p.length, p.bias_square + 2 * p.length - 1);
    m.direction += share * (square > 0 ? p.length / std::sqrt(square) : 0);
  }
  const double two = 2 * std::sqrt(bias_error);
  m.bias = {root(bias_square), root(bias_square - two), root(bias_square + two)};
  m.error = m.variance + std::max(0.0, bias_square);
  m.gain = {gain, gain - 2 * std::sqrt(gain_error), gain + 2 * std::sqrt(gain_error)};
  return m;
}

}  // namespace

Results run(const Settings& settings, const std::vector<Sampler>& samplers,
            const std::vector<Correction>& corrections, int threads) {
  Results results{settings, corrections, {}, true};
  results.complete =
      samplers.size() == all_samplers().size() && corrections.size() >= all_corrections().size();
  // The two known ones come first; those that were not asked for are left out at the end.
  std::vector<Correction> run_all(all_corrections().begin(), all_corrections().begin() + 2);
  std::vector<std::size_t> places;
  for (const Correction& c : corrections) {
    const auto known = std::find_if(run_all.begin(), run_all.begin() + 2,
                                    [&](const Correction& k) { return k.name == c.name; });
    places.push_back(static_cast<std::size_t>(known - run_all.begin()));
    if (places.back() == 2) places.back() = run_all.size(), run_all.push_back(c);
  }
  std::vector<std::vector<gdpo::runtime::Prepass>> passes;
  for (const Correction& c : run_all) passes.push_back(passes_of(c));

  gdpo::ThreadPool pool(threads);
  const auto parallel = [&](const char* what, std::size_t n, const auto& f) {
    resolution::Progress progress(what, n, "run");
    std::mutex mutex;
    std::size_t done = 0;
    pool.for_each(static_cast<gdpo::index_t>(n), [&](gdpo::index_t job) {
      f(static_cast<std::size_t>(job));
      const std::lock_guard<std::mutex> lock(mutex);
      progress.update(++done);
    });
  };
  const std::size_t policies = settings.policies, chunks = settings.chunks;
  std::vector<Setup> setups(samplers.size() * policies);
  parallel("exact gradients", setups.size(), [&](std::size_t k) {
    const Sampler& s = samplers[k / policies];
    const std::size_t policy = k % policies;
    // A task depends on its length and number; engines on the sampler as well.
    Setup& setup = setups[k];
    setup.task = make_task(s.length, Random(settings.seed, 1, policy));
    setup.engine =
        make_engine(s, setup.task, Random(settings.seed, 2, Random::number_of(s.name), policy));
    setup.exact = make_exact(setup.task, setup.engine);
  });
  std::vector<Chunk> measured(setups.size() * chunks);
  parallel("measuring", measured.size(), [&](std::size_t k) {
    const Setup& setup = setups[k / chunks];
    const Sampler& s = samplers[k / chunks / policies];
    measured[k] = measure(
        setup.task, setup.engine, setup.exact, passes, settings.batches, settings.sequences,
        Random(settings.seed, 3, Random::number_of(s.name), k / chunks % policies, k % chunks));
  });

  for (std::size_t s = 0; s < samplers.size(); ++s) {
    Case of{samplers[s], 0, 0, 0, 0, {}};
    std::vector<std::vector<Chunk>> by_policy;
    const double batches = static_cast<double>(policies * chunks * settings.batches);
    for (std::size_t p = 0; p < policies; ++p) {
      const auto first =
          measured.begin() + static_cast<std::ptrdiff_t>((s * policies + p) * chunks);
      by_policy.emplace_back(first, first + static_cast<std::ptrdiff_t>(chunks));
      const Setup& setup = setups[s * policies + p];
      const double share = 1 / static_cast<double>(policies);
      of.reward += share * setup.exact.baseline;
      of.own_reward += share * mean_reward(setup.task, setup.task.policy);
      for (const Chunk& chunk : by_policy.back()) {
        of.distance += chunk.mismatch.distance / batches;
        of.product_share += chunk.mismatch.product_share / batches;
      }
    }
    for (const std::size_t place : places) {
      std::vector<OfPolicy> of_policies;
      for (std::size_t p = 0; p < policies; ++p) {
        of_policies.push_back(of_policy(setups[s * policies + p].exact, by_policy[p], place,
                                        of.product_share >= 0.5));
      }
      of.corrections.push_back(mean_of(of_policies));
    }
    results.cases.push_back(std::move(of));
  }
  return results;
}

}  // namespace corrections
