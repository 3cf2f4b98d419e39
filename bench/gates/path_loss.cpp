// Paths of gdpo/loss.hpp: every loss, the optional arrays of a batch, its metrics, the types that
// it is stored in, and the shapes of its rows.
#include <algorithm>
#include <cmath>
#include <gdpo/loss.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <memory>
#include <random>

#include "experiments.hpp"
#include "paths.hpp"

namespace gates {
namespace {

using gdpo::index_t;
using gdpo::metrics::All, gdpo::metrics::Means, gdpo::metrics::None;

/// Arrays of tokens stored as T, packed in rows of the given lengths. Of padded rows the last
/// tokens, at most a sixteenth, are masked.
template <class T = float>
struct Tokens {
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  index_t rows, width;  // width 0: packed
  std::vector<T> logp, old_logp, ref_logp, rollout_logp, teacher_logp, advantages, entropies,
      weights, tags;
  std::vector<S> gradient;
  std::vector<float> row_advantages, group_tokens;
  std::vector<unsigned char> mask;
  std::vector<index_t> offsets{0};
  std::vector<std::int64_t> segments;  // of 4 tokens
  gdpo::LossWorkspace<S> workspace;

  Tokens(index_t rows_, index_t width_) : rows(rows_), width(width_) {
    fill(std::vector<index_t>(static_cast<std::size_t>(rows), width));
  }
  explicit Tokens(const std::vector<index_t>& lengths)
      : rows(static_cast<index_t>(lengths.size())), width(0) {
    fill(lengths);
  }

  double count() const { return static_cast<double>(logp.size()); }
  /// The batch of a plain call: log-probs, advantages of rows and a mask. Packed ones have none.
  gdpo::TokenBatch<S> batch() const {
    gdpo::TokenBatch<S> b;
    place(logp, b.logp), place(old_logp, b.old_logp);
    if (width > 0) {
      place(mask, b.mask);
    } else {
      b.offsets = gdpo::view(offsets);
    }
    b.advantages = gdpo::view(row_advantages);
    return b;
  }
  template <class X, class To>
  void place(X& values, To& to) const {
    if (width > 0) {
      to = gdpo::view(values.data(), rows, width);
    } else {
      to = gdpo::view(values.data(), static_cast<index_t>(values.size()));
    }
  }
  gdpo::TokenOut<S> out() {
    gdpo::TokenOut<S> to;
    place(gradient, to);
    return to;
  }

 private:
  void fill(const std::vector<index_t>& lengths) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.001f, 1);
    for (const index_t length : lengths) {
      row_advantages.push_back(0.5f + normal(random));
      const index_t padding = std::uniform_int_distribution<index_t>(0, length / 16)(random);
      for (index_t t = 0; t < length; ++t) {
        const float x = std::log(uniform(random));
        const auto store = [](std::vector<T>& array, float value) {
          array.emplace_back();
          gdpo::Storage<T>::store(array.back(), value);
        };
        store(logp, x);
        for (auto* other : {&old_logp, &ref_logp, &rollout_logp, &teacher_logp})
          store(*other, x + 0.1f * normal(random));
        store(advantages, normal(random));
        for (auto* other : {&entropies, &weights, &tags}) store(*other, uniform(random));
        mask.push_back(t < length - padding);
        segments.push_back(t / 4);
      }
      group_tokens.push_back(static_cast<float>(length));
      offsets.push_back(offsets.back() + length);
    }
    gradient.resize(logp.size());
  }
};
template <class T>
using Shared = std::shared_ptr<Tokens<T>>;

/// DAPO and GRPO, with and without their KL term, as most calls measure them.
const auto dapo = gdpo::with_metrics<Means>(gdpo::dapo_loss);
const auto grpo = gdpo::with_metrics<Means>(gdpo::grpo_loss);

/// A run of a loss with its gradient. change(batch, tokens) adds what the call has besides.
template <class T, class Loss, class Change, class Exec = gdpo::Simd>
Paths::Run run(const Shared<T>& tokens, const Loss& loss, const Change& change,
               const Exec& exec = {}) {
  return [=] {
    auto batch = tokens->batch();
    change(batch, *tokens);
    loss(exec, batch, gdpo::count(batch), tokens->out(), tokens->workspace);
  };
}
template <class T, class Loss>
Paths::Run run(const Shared<T>& tokens, const Loss& loss) {
  return run(tokens, loss, [](const auto&, const auto&) {});
}

/// Two threads, which outlive the calls.
auto& two_threads() {
  static gdpo::ThreadPool pool(2);
  return pool;
}

constexpr double bytes = 3 * 4 + 1;  // logp, old_logp, the gradient and the mask

/// The calls of one table: rows of 4096 tokens.
Experiment of_calls(const std::string& place, index_t rows, bool in_cache) {
  Paths paths("Policy loss, " + std::to_string(rows) + " x 4096 tokens " + place, "token",
              "DAPO, Means");
  const double n = static_cast<double>(rows) * 4096;
  const auto fresh = [=] { return std::make_shared<Tokens<float>>(rows, 4096); };
  const auto add = [&](const std::string& name, Gate goal, double more, const auto& loss,
                       const auto& change) {
    paths.add(name, goal, n, bytes + more, [=] { return run(fresh(), loss, change); });
  };
  const auto nothing = [](auto&, const auto&) {};
  add("DAPO, Means", no_gate(), 0, dapo, nothing);
  add("DAPO, All", in_cache ? at_most(1.25) : no_gate(), 0, gdpo::dapo_loss, nothing);
  add("DAPO, None", no_gate(), 0, gdpo::with_metrics<None>(gdpo::dapo_loss), nothing);
  paths.add("DAPO, no gradient", n, bytes - 4, [=] {
    const auto tokens = fresh();
    return [=] {
      const auto batch = tokens->batch();
      dapo(gdpo::simd, batch, gdpo::count(batch), {}, tokens->workspace);
    };
  });
  add("DAPO, no mask", no_gate(), -1, dapo, [](auto& b, const auto&) { b.mask = {}; });
  const auto reference = [](auto& b, const auto& tokens) {
    tokens.place(tokens.ref_logp, b.ref_logp);
  };
  add("GRPO + KL, Means", no_gate(), 4, grpo, reference);
  add("GRPO + KL, All", no_gate(), 4, gdpo::grpo_loss, reference);
  add("GSPO, Means", at_most(1.5), 0, gdpo::with_metrics<Means>(gdpo::gspo_loss), nothing);
  add("GSPO, All", at_most(1.5), 0, gdpo::gspo_loss, nothing);
  add("GSPO, segments of 4", at_most(4.5), 8, gdpo::with_metrics<Means>(gdpo::gspo_loss),
      [](auto& b, const auto& tokens) { tokens.place(tokens.segments, b.segments); });
  add("GSPO-token, Means", at_most(1.5), 0, gdpo::with_metrics<Means>(gdpo::gspo_token_loss),
      nothing);
  add("token advantages", at_most(1.3), 4, dapo, [](auto& b, const auto& tokens) {
    b.advantages = {}, tokens.place(tokens.advantages, b.token_advantages);
  });
  add("entropies", at_most(1.3), 4, dapo,
      [](auto& b, const auto& tokens) { tokens.place(tokens.entropies, b.entropies); });
  auto bonus = dapo;
  bonus.entropy.coef = 0.01;
  add("an entropy bonus", at_most(1.3), 4, bonus,
      [](auto& b, const auto& tokens) { tokens.place(tokens.entropies, b.entropies); });
  add("weights", at_most(1.3), 4, dapo,
      [](auto& b, const auto& tokens) { tokens.place(tokens.weights, b.weights); });
  add("kl_weights, with KL", no_gate(), 8, grpo, [](auto& b, const auto& tokens) {
    tokens.place(tokens.ref_logp, b.ref_logp), tokens.place(tokens.weights, b.kl_weights);
  });
  paths.add("packed", at_most(1.1), n, bytes - 1, [=] {
    return run(
        std::make_shared<Tokens<float>>(std::vector<index_t>(static_cast<std::size_t>(rows), 4096)),
        dapo);
  });
  paths.add("double", n, 3 * 8 + 1,
            [=] { return run(std::make_shared<Tokens<double>>(rows, 4096), dapo); });
  paths.add("bfloat16", n, 2 * 2 + 4 + 1,
            [=] { return run(std::make_shared<Tokens<gdpo::BFloat16>>(rows, 4096), dapo); });
  paths.add("half", n, 2 * 2 + 4 + 1,
            [=] { return run(std::make_shared<Tokens<gdpo::Float16>>(rows, 4096), dapo); });
  paths.add("two threads", in_cache ? no_gate() : at_most(1 / 1.7), n, bytes,
            [=] { return run(fresh(), dapo, nothing, gdpo::parallel(two_threads())); });
  paths.add("count", n, 1, [=] {
    const auto tokens = fresh();
    return [=] { static_cast<void>(gdpo::count(tokens->batch())); };
  });
  paths.add("copying an array", n, 4 + 4, [=] {
    const auto tokens = fresh();
    return [=] { std::copy(tokens->logp.begin(), tokens->logp.end(), tokens->gradient.begin()); };
  });
  return std::move(paths).experiment();
}

/// 65536 tokens in rows of other lengths than 1024.
Experiment of_shapes() {
  Paths paths("Policy loss of 65536 tokens by the length of rows", "token", "rows of 1024");
  constexpr index_t n = 65536;
  const auto rows_of = [](index_t width) {
    return std::make_shared<Tokens<float>>(n / width, width);
  };
  const auto goal_of = [](index_t width) {
    return width < 64 ? at_most(3) : width < 1024 ? at_most(1.5) : no_gate();
  };
  for (const index_t width : {1024, 8, 16, 64, 256}) {
    paths.add("rows of " + std::to_string(width), goal_of(width), n, bytes,
              [=] { return run(rows_of(width), dapo); });
  }
  for (const index_t width : {8, 64, 1024}) {
    paths.add("rows of " + std::to_string(width) + ", All", goal_of(width), n, bytes,
              [=] { return run(rows_of(width), gdpo::dapo_loss); });
    paths.add("rows of " + std::to_string(width) + ", KL", goal_of(width), n, bytes + 4, [=] {
      return run(rows_of(width), grpo,
                 [](auto& b, const auto& tokens) { tokens.place(tokens.ref_logp, b.ref_logp); });
    });
    const auto gspo = gdpo::with_metrics<Means>(gdpo::gspo_loss);
    paths.add("rows of " + std::to_string(width) + ", GSPO", goal_of(width), n, bytes,
              [=] { return run(rows_of(width), gspo); });
  }
  const auto packed = [](index_t least, index_t most, double goal, Paths& to) {
    // As many short rows as long ones: lengths are uniform in their logarithm.
    std::mt19937 random(2);
    std::uniform_real_distribution<double> power(std::log(static_cast<double>(least)),
                                                 std::log(static_cast<double>(most)));
    std::vector<index_t> lengths;
    index_t tokens = 0;
    while (tokens < n) {
      lengths.push_back(static_cast<index_t>(std::exp(power(random))));
      tokens += lengths.back();
    }
    to.add("packed, " + std::to_string(least) + " to " + std::to_string(most), at_most(goal),
           static_cast<double>(tokens), bytes - 1,
           [=] { return run(std::make_shared<Tokens<float>>(lengths), dapo); });
  };
  packed(8, 4096, 1.5, paths);
  packed(8, 64, 3, paths);
  return std::move(paths).experiment();
}

/// Every loss by its name, with all metrics and the arrays that it reads.
Experiment of_names() {
  Paths paths("Every policy loss, 2 x 4096 tokens", "token", "dapo");
  std::vector<std::string> names = gdpo::runtime::loss_names();
  std::stable_partition(names.begin(), names.end(), [](const auto& n) { return n == "dapo"; });
  for (const std::string& name : names) {
    paths.add(name, no_gate(), 2 * 4096, bytes, [=] {
      const auto tokens = std::make_shared<Tokens<float>>(2, 4096);
      return std::visit(
          [&](auto loss) -> Paths::Run {
            if (loss.aggregate.mode == gdpo::Aggregate::Mode::SeqMeanTokenSumNorm)
              loss.aggregate.constant = 4096;
            return [=] {
              auto batch = tokens->batch();
              tokens->place(tokens->ref_logp, batch.ref_logp);
              tokens->place(tokens->rollout_logp, batch.rollout_logp);
              tokens->place(tokens->teacher_logp, batch.teacher_logp);
              tokens->place(tokens->tags, batch.tags);
              if (loss.entropy.coef != 0) tokens->place(tokens->entropies, batch.entropies);
              batch.group_tokens = gdpo::view(tokens->group_tokens);
              auto counts = gdpo::count(batch);
              counts.given = 2;
              loss(gdpo::simd, batch, counts, tokens->out(), tokens->workspace);
            };
          },
          gdpo::runtime::loss(name));
    });
  }
  return std::move(paths).experiment();
}

}  // namespace

std::vector<Experiment> path_loss() {
  return {of_calls("in cache", 2, true), of_calls("from memory", 512, false), of_shapes(),
          of_names()};
}

}  // namespace gates
