// Paths of gdpo/value.hpp: returns and advantages of tokens, token baselines, value losses.
#include <gdpo/runtime.hpp>
#include <gdpo/value.hpp>
#include <gdpo/with/openmp.hpp>
#include <map>
#include <memory>
#include <random>
#include <tuple>

#include "experiments.hpp"
#include "machine.hpp"
#include "paths.hpp"
#include "probes.hpp"

namespace gates {
namespace {

using gdpo::index_t;

/// Which tokens of a batch are valid, and how its rows are stored.
enum class Shape {
  Full,    // padded, all tokens valid, without a mask
  Masked,  // padded; the last tokens of a row, at most a sixteenth, are masked
  Holes,   // padded; runs of 32 to 512 tokens, every other one masked
  Short,   // padded; rows have 1 to `width` valid tokens
  Packed,  // packed, each row of `width` tokens
  Mixed    // packed, rows of 8 to 4096 tokens
};

/// Tokens with every array that a call of value.hpp reads or writes.
struct Tokens {
  index_t rows, width;
  Shape shape;
  std::vector<index_t> offsets{0};
  std::vector<float> rewards, values, old_values, logp, ref_logp, squares, scores;
  std::vector<float> advantages, returns;
  std::vector<unsigned char> mask;
  gdpo::ReturnsWorkspace<float> workspace;
  gdpo::OutcomeWorkspace<float> outcomes;
  gdpo::TokenBaselineWorkspace<float> baselines;
  gdpo::ValueWorkspace<float> losses;

  Tokens(index_t rows_, index_t width_, Shape shape_) : rows(rows_), width(width_), shape(shape_) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform;
    std::uniform_int_distribution<index_t> run(32, 512);
    if (shape == Shape::Mixed) {  // lengths of all sizes, as many tokens in all
      const index_t tokens = rows * width;
      while (offsets.back() < tokens) {
        const double length = std::exp2(3 + 9 * uniform(random));
        offsets.push_back(std::min(tokens, offsets.back() + static_cast<index_t>(length)));
      }
      rows = static_cast<index_t>(offsets.size()) - 1;
    } else {
      for (index_t i = 1; i <= rows; ++i) offsets.push_back(i * width);
    }
    const auto n = static_cast<std::size_t>(offsets.back());
    for (auto* array : {&rewards, &values, &old_values, &logp, &ref_logp, &squares}) {
      array->resize(n);
      for (float& x : *array) x = uniform(random);
    }
    for (float& x : logp) x = -x;
    for (float& x : ref_logp) x = -x;
    for (index_t i = 0; i < rows; ++i) scores.push_back(uniform(random));
    advantages.resize(n), returns.resize(n);
    for (index_t i = 0; i < rows && has_mask(); ++i) {
      index_t length = width;
      if (shape == Shape::Masked)
        length -= static_cast<index_t>(uniform(random) * float(width / 16));
      if (shape == Shape::Short)
        length = 1 + static_cast<index_t>(uniform(random) * float(width - 1));
      bool valid = true;
      for (index_t t = 0, next = run(random); t < width; ++t) {
        if (shape == Shape::Holes && t == next) valid = !valid, next += run(random);
        mask.push_back(valid && t < length);
      }
    }
  }
  bool has_mask() const {
    return shape == Shape::Masked || shape == Shape::Holes || shape == Shape::Short;
  }
  bool is_packed() const { return shape == Shape::Packed || shape == Shape::Mixed; }
  double tokens() const { return static_cast<double>(offsets.back()); }

  /// Binds arrays to a batch, or to what a call writes.
  template <class To, class From>
  void bind(To& to, From& from) const {
    if (is_packed())
      to = gdpo::view(from);
    else
      to = gdpo::view(from.data(), rows, width);
  }
  gdpo::TokenOut<float> out(std::vector<float>& array) const {
    gdpo::TokenOut<float> view;
    bind(view, array);
    return view;
  }
  template <class Batch>
  Batch batch() const {
    Batch b;
    if (has_mask()) bind(b.mask, mask);
    if (is_packed()) b.offsets = gdpo::view(offsets);
    return b;
  }
  gdpo::ReturnBatch<float> returns_batch() const {
    auto b = batch<gdpo::ReturnBatch<float>>();
    bind(b.values, values), bind(b.logp, logp), bind(b.ref_logp, ref_logp);
    b.row_rewards = gdpo::view(scores);
    return b;
  }
  gdpo::ValueBatch<float> value_batch() const {
    auto b = batch<gdpo::ValueBatch<float>>();
    bind(b.values, values), bind(b.old_values, old_values), bind(b.returns, rewards);
    return b;
  }
};
using Shared = std::shared_ptr<Tokens>;

/// Tokens of a shape, which all calls share that are set up while they live.
Shared tokens_of(index_t rows, index_t width, Shape shape) {
  static std::map<std::tuple<index_t, index_t, Shape>, std::weak_ptr<Tokens>> known;
  std::weak_ptr<Tokens>& entry = known[{rows, width, shape}];
  Shared tokens = entry.lock();
  if (!tokens) entry = tokens = std::make_shared<Tokens>(rows, width, shape);
  return tokens;
}

const gdpo::TokenAdvantage<> gae{{0.99, 0.95}};
// Reads values, writes advantages and returns.
constexpr double gae_bytes = 12;

template <class Estimator, class Exec = gdpo::Simd>
Paths::Run run(const Shared& t, const Estimator& estimator, bool with_returns = true,
               bool with_rewards = false, const Exec& exec = {}) {
  return [=] {
    gdpo::ReturnBatch<float> batch = t->returns_batch();
    if (with_rewards) t->bind(batch.rewards, t->rewards);
    gdpo::advantages_and_returns_into(exec, batch, estimator, t->out(t->advantages),
                                      with_returns ? t->out(t->returns) : gdpo::TokenOut<float>{},
                                      t->workspace);
  };
}
/// A copy of one array of the batch.
Paths::Run copying(const Shared& t) {
  return [=] { probes::copy(t->advantages.data(), t->values.data(), t->offsets.back()); };
}

/// Shapes of a batch, for a table that `call(tokens)` fills.
template <class Call>
void add_shapes(Paths& paths, index_t rows, index_t width, double bytes, const Call& call) {
  const auto add = [&](const std::string& name, index_t n, index_t length, Shape shape, Gate goal) {
    paths.add(name, goal, static_cast<double>(n * length), bytes,
              [=] { return call(tokens_of(n, length, shape)); });
  };
  const index_t tokens = rows * width;
  add("a mask, padding of at most 1/16", rows, width, Shape::Masked, at_most(1.3));
  add("a mask with holes", rows, width, Shape::Holes, at_most(1.5));
  add("a mask, rows of 1 to all tokens", rows, width, Shape::Short, no_gate());
  add("packed", rows, width, Shape::Packed, at_most(1.1));
  add("packed, rows of 8 to 4096", rows, width, Shape::Mixed, at_most(1.5));
  add("rows of 1024", tokens / 1024, 1024, Shape::Full, at_most(1.1));
  add("rows of 64", tokens / 64, 64, Shape::Full, at_most(1.5));
  add("rows of 8", tokens / 8, 8, Shape::Full, at_most(3));
}

Experiment of_gae(index_t rows, index_t width) {
  const std::string size = std::to_string(rows) + " x " + std::to_string(width);
  Paths paths("GAE, " + size + " tokens, float", "token", "advantages and returns");
  const double n = static_cast<double>(rows * width);
  const auto full = [=] { return tokens_of(rows, width, Shape::Full); };
  paths.add("advantages and returns", n, gae_bytes, [=] { return run(full(), gae); });
  paths.add("copying an array", n, 8, [=] { return copying(full()); });
  paths.add("advantages alone", at_most(1), n, 8, [=] { return run(full(), gae, false); });
  paths.add("rewards of tokens", at_most(1.3), n, 16, [=] { return run(full(), gae, true, true); });
  paths.add("reward to go", at_most(1), n, 8, [=] {
    return run(full(), gdpo::TokenAdvantage<gdpo::returns::RewardToGo>{{0.99}}, true, true);
  });
  paths.add("reward to go, a mask with holes", at_most(1.5), n, 9, [=] {
    return run(tokens_of(rows, width, Shape::Holes),
               gdpo::TokenAdvantage<gdpo::returns::RewardToGo>{{0.99}}, true, true);
  });
  paths.add("another lambda for returns", at_most(1.3), n, gae_bytes, [=] {
    auto e = gae;
    e.returns.lambda_returns = 1;
    return run(full(), e);
  });
  paths.add("a penalty", at_most(1.5), n, gae_bytes + 8, [=] {
    auto e = gae;
    e.penalty.coef = 0.01;
    return run(full(), e);
  });
  paths.add("whitening", at_most(1.6), n, gae_bytes + 12, [=] {
    auto e = gae;
    e.renorm = gdpo::renorm::token_weighted_batch();
    return run(full(), e);
  });
  paths.add("whitening, a mask with holes", at_most(2.2), n, gae_bytes + 15, [=] {
    auto e = gae;
    e.renorm = gdpo::renorm::token_weighted_batch();
    return run(tokens_of(rows, width, Shape::Holes), e);
  });
  for (const auto& [steps, name] : {std::pair(gdpo::Steps::Row, "all positions are steps"),
                                    std::pair(gdpo::Steps::RowRewardOnValid, "row_reward_on_valid"),
                                    std::pair(gdpo::Steps::Turns, "turns")}) {
    paths.add(std::string(name) + ", a mask with holes", at_most(1.5), n, gae_bytes + 1,
              [=, steps = steps] {
                auto e = gae;
                e.returns.steps = steps;
                return run(tokens_of(rows, width, Shape::Holes), e);
              });
  }
  add_shapes(paths, rows, width, gae_bytes, [](const Shared& t) { return run(t, gae); });
  if (two_processors()) {
    paths.add("two threads", at_most(1 / 1.7), n, gae_bytes,
              [=] { return run(full(), gae, true, false, gdpo::parallel(gdpo::OpenMp{2})); });
    paths.add("whitening, two threads", at_most(1.6 / 1.7), n, gae_bytes + 12, [=] {
      auto e = gae;
      e.renorm = gdpo::renorm::token_weighted_batch();
      return run(full(), e, true, false, gdpo::parallel(gdpo::OpenMp{2}));
    });
  }
  return std::move(paths).experiment();
}

Experiment of_names() {
  constexpr index_t rows = 32, width = 2048;
  constexpr double n = double(rows * width);
  Paths paths("Estimators over tokens, 32 x 2048, float, a mask with holes", "token",
              "copying an array");
  const auto tokens = [=] { return tokens_of(rows, width, Shape::Holes); };
  paths.add("copying an array", n, 8, [=] { return copying(tokens()); });
  for (const std::string& name : gdpo::runtime::token_advantage_names()) {
    paths.add(name, no_gate(), n, gae_bytes + 1, [=] {
      return std::visit([&](const auto& e) { return run(tokens(), e); },
                        gdpo::runtime::token_advantage(name));
    });
  }
  for (const std::string& name : gdpo::runtime::outcome_advantage_names()) {
    paths.add("outcome " + name, no_gate(), n, 9, [=] {
      const Shared t = tokens();
      return std::visit(
          [&](const auto& e) -> Paths::Run {
            return [=] {
              gdpo::ReturnBatch<float> batch = t->returns_batch();
              batch.row_rewards = {};
              const gdpo::RewardBatch rewards{gdpo::view(t->scores.data(), rows, index_t{1}),
                                              gdpo::groups_of(8)};
              gdpo::advantages_and_returns_into(gdpo::simd, rewards, batch, e,
                                                t->out(t->advantages), {}, t->outcomes);
            };
          },
          gdpo::runtime::outcome_advantage(name));
    });
  }
  for (const std::string& name : gdpo::runtime::token_baseline_names()) {
    for (const bool by_id : {false, true}) {
      paths.add(name + (by_id ? ", by_id" : ""), no_gate(), n, 17, [=] {
        const Shared t = tokens();
        std::vector<index_t> ids;
        for (index_t i = 0; i < rows; ++i) ids.push_back(i / 8);
        const auto groups = std::make_shared<gdpo::ById>(gdpo::by_id(ids));
        const gdpo::OptimalTokenBaseline baseline = gdpo::runtime::token_baseline(name);
        return [=] {
          auto batch = t->batch<gdpo::TokenBaselineBatch<float>>();
          t->bind(batch.returns, t->rewards), t->bind(batch.logp, t->logp);
          t->bind(batch.sum_pi_squared, t->squares);
          const auto call = [&](const auto& of) {
            gdpo::optimal_token_baseline_into(gdpo::simd, batch, of, baseline,
                                              t->out(t->advantages), t->baselines);
          };
          by_id ? call(*groups) : call(gdpo::groups_of(8));
        };
      });
    }
  }
  paths.add("place_turns", no_gate(), n, 5, [=] {
    const Shared t = tokens();
    const auto rewards = std::make_shared<std::vector<float>>(rows * 128, 1.0f);
    return [=] {
      gdpo::place_turns_into(gdpo::view(rewards->data(), rows, index_t{128}),
                             gdpo::view(t->mask.data(), rows, width),
                             gdpo::view(t->advantages.data(), rows, width));
    };
  });
  paths.add("token_advantages", no_gate(), n, 13, [=] {
    const Shared t = tokens();
    return [=] {
      gdpo::token_advantages_into(
          gdpo::view(t->scores), gdpo::view(t->mask.data(), rows, width),
          gdpo::view(t->logp.data(), rows, width), gdpo::view(t->ref_logp.data(), rows, width),
          gdpo::penalty::Token<>{0.01}, gdpo::view(t->advantages.data(), rows, width));
    };
  });
  return std::move(paths).experiment();
}

Experiment of_steps() {
  constexpr index_t rows = 65536;
  Paths paths("Advantages of the steps of agents, 65536 steps", "step", "gigpo");
  for (const std::string& name : gdpo::runtime::step_advantage_names()) {
    paths.add(name, no_gate(), rows, 4 + 4 + 16, [=] {
      const auto rewards = std::make_shared<std::vector<float>>(rows),
                 out = std::make_shared<std::vector<float>>(rows);
      const auto episodes = std::make_shared<std::vector<index_t>>(rows),
                 states = std::make_shared<std::vector<index_t>>(rows);
      std::mt19937 random(1);
      for (std::size_t i = 0; i < rewards->size(); ++i) {
        (*rewards)[i] = i % 16 == 15 ? static_cast<float>(random() % 2) : 0.0f;
        (*episodes)[i] = static_cast<index_t>(i / 16);
        (*states)[i] = static_cast<index_t>(i / 128 * 64 + random() % 64);
      }
      return std::visit(
          [&](const auto& e) -> Paths::Run {
            using Work = gdpo::GigpoWorkspace<float, gdpo::GroupsOf>;
            return [=, work = std::make_shared<Work>()] {
              const gdpo::RewardBatch batch{gdpo::view(rewards->data(), rows, index_t{1}),
                                            gdpo::groups_of(128)};
              gdpo::gigpo_into(gdpo::simd, batch, gdpo::view(*episodes), gdpo::view(*states), e,
                               gdpo::view(*out), *work);
            };
          },
          gdpo::runtime::step_advantage(name));
    });
  }
  return std::move(paths).experiment();
}

template <class Loss, class Exec = gdpo::Simd>
Paths::Run run_loss(const Shared& t, const Loss& loss, bool gradient = true,
                    const Exec& exec = {}) {
  const gdpo::Normalizer n = gdpo::count(t->value_batch());
  return [=] {
    loss(exec, t->value_batch(), n, gradient ? t->out(t->advantages) : gdpo::TokenOut<float>{},
         t->losses);
  };
}

Experiment of_losses(index_t rows, index_t width) {
  const std::string size = std::to_string(rows) + " x " + std::to_string(width);
  Paths paths("Value loss, " + size + " tokens, float", "token", "clipped, Means");
  const double n = static_cast<double>(rows * width);
  const auto full = [=] { return tokens_of(rows, width, Shape::Full); };
  gdpo::ValueLoss<gdpo::Aggregate, gdpo::metrics::Means> clipped;
  clipped.clip = 0.2;
  paths.add("clipped, Means", n, 16, [=] { return run_loss(full(), clipped); });
  paths.add("copying an array", n, 8, [=] { return copying(full()); });
  paths.add("clipped, All", at_most(1.25), n, 16,
            [=] { return run_loss(full(), gdpo::with_metrics<gdpo::metrics::All>(clipped)); });
  paths.add("clipped, None", at_most(1), n, 16,
            [=] { return run_loss(full(), gdpo::with_metrics<gdpo::metrics::None>(clipped)); });
  paths.add("clipped, Means, no gradient", at_most(1), n, 12,
            [=] { return run_loss(full(), clipped, false); });
  paths.add("no clip, Means", at_most(1), n, 12, [=] {
    auto loss = clipped;
    loss.clip = gdpo::math::infinity;
    return run_loss(full(), loss);
  });
  paths.add("dapo loss, Means", no_gate(), n, 12, [=] {
    const Shared t = full();
    const auto batch = [=] {
      gdpo::TokenBatch<float> b;
      t->bind(b.logp, t->logp), t->bind(b.old_logp, t->ref_logp);
      b.advantages = gdpo::view(t->scores);
      return b;
    };
    const gdpo::Normalizer counts = gdpo::count(batch());
    const auto loss = gdpo::with_metrics<gdpo::metrics::Means>(gdpo::dapo_loss);
    return [=, workspace = std::make_shared<gdpo::LossWorkspace<float>>()] {
      loss(gdpo::simd, batch(), counts, t->out(t->advantages), *workspace);
    };
  });
  add_shapes(paths, rows, width, 16, [=](const Shared& t) { return run_loss(t, clipped); });
  if (two_processors()) {
    paths.add("clipped, Means, two threads", at_most(1 / 1.7), n, 16,
              [=] { return run_loss(full(), clipped, true, gdpo::parallel(gdpo::OpenMp{2})); });
  }
  return std::move(paths).experiment();
}

Experiment of_loss_names() {
  constexpr index_t rows = 32, width = 2048;
  constexpr double n = double(rows * width);
  Paths paths("Value losses by name, 32 x 2048 tokens, float, a mask", "token", "copying an array");
  const auto tokens = [=] { return tokens_of(rows, width, Shape::Masked); };
  paths.add("copying an array", n, 8, [=] { return copying(tokens()); });
  for (const std::string& name : gdpo::runtime::value_loss_names()) {
    paths.add(name, no_gate(), n, 17,
              [=] { return run_loss(tokens(), gdpo::runtime::value_loss(name)); });
  }
  return std::move(paths).experiment();
}

}  // namespace

std::vector<Experiment> path_value() {
  return {of_gae(512, 4096),    of_gae(16, 4096),   of_names(),     of_steps(),
          of_losses(512, 4096), of_losses(8, 4096), of_loss_names()};
}

}  // namespace gates
