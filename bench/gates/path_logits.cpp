// Paths of gdpo/logits.hpp: forward, backward and the fused loss, by storage, mask and vocabulary.
#include <gdpo/logits.hpp>
#include <gdpo/with/openmp.hpp>
#include <memory>
#include <type_traits>

#include "../logits_data.hpp"
#include "experiments.hpp"
#include "machine.hpp"
#include "paths.hpp"
#include "probes.hpp"

namespace gates {
namespace {

using gdpo::index_t;

/// Rows of logits stored as T, with everything that a call reads or writes.
template <class T>
struct Logits {
  index_t rows, vocabulary;
  std::vector<T> logits, dlogits;
  std::vector<std::int64_t> targets;
  std::vector<float> logp, entropy, by_logp, by_entropy, old_logp, advantages;
  std::vector<double> logsumexp;
  std::vector<unsigned char> mask;  // every fourth row is in
  gdpo::LogitsWorkspace workspace;

  Logits(index_t rows_, index_t vocabulary_) : rows(rows_), vocabulary(vocabulary_) {
    const LogitsData data(rows, vocabulary);
    logits.resize(data.logits.size()), dlogits.resize(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) gdpo::store(logits[i], data.logits[i]);
    targets = data.targets, by_logp = by_entropy = data.upstream;
    const auto n = static_cast<std::size_t>(rows);
    logp.resize(n), entropy.resize(n), logsumexp.resize(n), advantages.assign(n, 1);
    for (std::size_t i = 0; i < n; ++i) mask.push_back(i % 4 == 0);
    gdpo::token_logprobs_into(gdpo::simd, batch(false), outputs());
    old_logp = logp;
  }
  double elements() const { return static_cast<double>(rows) * static_cast<double>(vocabulary); }
  gdpo::LogitBatch<T, 2> batch(bool masked, double temperature = 1) const {
    gdpo::LogitBatch<T, 2> b;
    b.logits = gdpo::view(logits.data(), rows, vocabulary);
    b.targets = gdpo::view(targets);
    if (masked) b.mask = gdpo::view(mask);
    b.temperature = temperature;
    return b;
  }
  gdpo::TokenLogprobsOut outputs() {
    return {gdpo::view(logp), gdpo::view(entropy), gdpo::view(logsumexp)};
  }
  gdpo::View<T, 2> gradient() { return gdpo::view(dlogits.data(), rows, vocabulary); }
};

template <class T, class Exec = gdpo::Simd>
Paths::Run forward(const std::shared_ptr<Logits<T>>& l, bool masked = false, double temperature = 1,
                   const Exec& exec = {}) {
  return [=] { gdpo::token_logprobs_into(exec, l->batch(masked, temperature), l->outputs()); };
}
template <class T, class Exec = gdpo::Simd>
Paths::Run backward(const std::shared_ptr<Logits<T>>& l, bool with_entropy, bool masked = false,
                    double temperature = 1, const Exec& exec = {}) {
  return [=] {
    gdpo::TokenLogprobsGrad grad{gdpo::view(l->by_logp), {}};
    if (with_entropy) grad.entropy = gdpo::view(l->by_entropy);
    gdpo::token_logprobs_backward(exec, l->batch(masked, temperature), grad,
                                  gdpo::view(l->logsumexp), gdpo::view(l->entropy), l->gradient());
  };
}
template <class T, class Loss, class Exec = gdpo::Simd>
Paths::Run fused(const std::shared_ptr<Logits<T>>& l, const Loss& loss, bool masked = false,
                 const Exec& exec = {}) {
  const auto tokens = [=] {  // 8 rows of packed tokens
    gdpo::TokenBatch<float> b;
    b.old_logp = gdpo::view(l->old_logp);
    b.advantages = gdpo::view(l->advantages.data(), index_t{8});
    return b;
  };
  auto offsets = std::make_shared<std::vector<index_t>>();
  for (index_t i = 0; i <= 8; ++i) offsets->push_back(l->rows * i / 8);
  return [=] {
    gdpo::TokenBatch<float> b = tokens();
    b.offsets = gdpo::view(*offsets);
    const auto logits = l->batch(masked);
    gdpo::policy_loss_from_logits(exec, loss, logits, b, gdpo::count(logits, b), l->gradient(),
                                  l->workspace);
  };
}

Experiment of_settings(index_t rows, index_t vocabulary) {
  Paths paths(
      "Logits, " + std::to_string(rows) + " rows of " + std::to_string(vocabulary) + ", float",
      "logit", "forward");
  const auto data = std::make_shared<std::weak_ptr<Logits<float>>>();
  const auto floats = [=] {
    auto l = data->lock();
    if (!l) *data = l = std::make_shared<Logits<float>>(rows, vocabulary);
    return l;
  };
  const double n = static_cast<double>(rows * vocabulary);
  paths.add("forward", n, 4, [=] { return forward(floats()); });
  paths.add("reading an array", n, 4, [=]() -> Paths::Run {
    return [l = floats()] {
      volatile std::uint32_t sum =
          probes::read(l->logits.data(), static_cast<std::ptrdiff_t>(l->logits.size()));
      static_cast<void>(sum);
    };
  });
  paths.add("copying an array", n, 8, [=]() -> Paths::Run {
    return [l = floats()] {
      probes::copy(l->dlogits.data(), l->logits.data(),
                   static_cast<std::ptrdiff_t>(l->logits.size()));
    };
  });
  paths.add("forward, temperature 0.7", at_most(1.05), n, 4,
            [=] { return forward(floats(), false, 0.7); });
  paths.add("forward, entropy alone", at_most(1.05), n, 4, [=]() -> Paths::Run {
    return [l = floats()] {
      gdpo::LogitBatch<float, 2> batch = l->batch(false);
      batch.targets = {};
      gdpo::token_logprobs_into(gdpo::simd, batch, {{}, gdpo::view(l->entropy), {}});
    };
  });
  paths.add("forward, 1 row of 4 in the mask", at_most(1.1), n / 4, 4,
            [=] { return forward(floats(), true); });
  paths.add("logit_rows", at_most(1.05), n, 4, [=]() -> Paths::Run {
    return [l = floats(), sums = std::make_shared<std::vector<gdpo::LogitRow>>(std::size_t(rows))] {
      gdpo::logit_rows(gdpo::simd, l->batch(false), gdpo::view(*sums));
    };
  });
  paths.add("backward", n, 8, [=] { return backward(floats(), false); });
  paths.add("backward with entropies", n, 8, [=] { return backward(floats(), true); });
  paths.add("backward, temperature 0.7", n, 8,
            [=] { return backward(floats(), false, false, 0.7); });
  paths.add("backward, 1 row of 4 in the mask", n, 4 + 8.0 / 4,
            [=] { return backward(floats(), false, true); });
  paths.add("fused dapo", n, 8, [=] { return fused(floats(), gdpo::dapo_loss); });
  paths.add("fused dapo, 1 row of 4 in the mask", n, 4 + 8.0 / 4,
            [=] { return fused(floats(), gdpo::dapo_loss, true); });
  paths.add("fused gspo (two passes)", n, 12, [=] { return fused(floats(), gdpo::gspo_loss); });
  if (two_processors()) {
    const auto two = gdpo::parallel(gdpo::OpenMp{2});
    paths.add("forward, two threads", at_most(1 / 1.7), n, 4,
              [=] { return forward(floats(), false, 1, two); });
    paths.add("backward, two threads", n, 8,
              [=] { return backward(floats(), false, false, 1, two); });
    paths.add("fused dapo, two threads", n, 8,
              [=] { return fused(floats(), gdpo::dapo_loss, false, two); });
  }
  return std::move(paths).experiment();
}

Experiment of_types() {
  Paths paths("Logits by storage, 128 rows of 32000", "logit", "float, forward");
  const auto add = [&](const std::string& name, auto zero, Gate goal) {
    using T = decltype(zero);
    const auto data = std::make_shared<std::weak_ptr<Logits<T>>>();
    const auto logits = [=] {
      auto l = data->lock();
      if (!l) *data = l = std::make_shared<Logits<T>>(128, 32000);
      return l;
    };
    paths.add(name + ", forward", goal, 128.0 * 32000, sizeof(T),
              [=] { return forward(logits()); });
    paths.add(name + ", backward", 128.0 * 32000, 2 * sizeof(T),
              [=] { return backward(logits(), false); });
    paths.add(name + ", fused dapo", 128.0 * 32000, 2 * sizeof(T),
              [=] { return fused(logits(), gdpo::dapo_loss); });
  };
  add("float", float{}, no_gate());
  add("bfloat16", gdpo::BFloat16{}, at_most(1.1));
  add("half", gdpo::Float16{}, at_most(1.1));
  add("double", double{}, at_most(3));
  return std::move(paths).experiment();
}

// LogitsData looks for a target above 0 in each row, which rows of a few logits may lack.
Experiment of_vocabularies() {
  Paths paths("Logits by vocabulary, 2^22 of float", "logit", "forward, 32768 tokens");
  for (const index_t V : {32768, 64, 256, 1000, 4096, 131072, 152064}) {
    const index_t rows = (index_t{1} << 22) / V;
    const std::string tokens = std::to_string(V) + " tokens";
    const double n = static_cast<double>(rows * V);
    const auto data = std::make_shared<std::weak_ptr<Logits<float>>>();
    const auto logits = [=] {
      auto l = data->lock();
      if (!l) *data = l = std::make_shared<Logits<float>>(rows, V);
      return l;
    };
    paths.add("forward, " + tokens, V < 4096 ? no_gate() : at_most(1.2), n, 4,
              [=] { return forward(logits()); });
    paths.add("backward, " + tokens, n, 8, [=] { return backward(logits(), false); });
    paths.add("fused dapo, " + tokens, n, 8, [=] { return fused(logits(), gdpo::dapo_loss); });
  }
  return std::move(paths).experiment();
}

}  // namespace

std::vector<Experiment> path_logits() {
  return {of_settings(64, 152064), of_settings(8, 32000), of_types(), of_vocabularies()};
}

}  // namespace gates
