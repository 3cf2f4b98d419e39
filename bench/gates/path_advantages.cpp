// Paths of gdpo/advantages.hpp: groupings, missing rewards, gates, reports, and every estimator.
#include <gdpo/advantages.hpp>
#include <gdpo/runtime.hpp>
#include <memory>
#include <random>

#include "experiments.hpp"
#include "paths.hpp"

namespace gates {
namespace {

using gdpo::index_t;

/// What the rewards of a batch look like.
enum class Kind {
  Uniform,   // in 0 to 1
  Canceled,  // the rewards of a row add up to the same in every row
  Tied       // equal within each group
};

/// Rewards (rows, C) with outputs.
struct Rollouts {
  index_t rows, C;
  std::vector<float> rewards, out, tokens, kl;
  std::vector<unsigned char> valid;
  std::vector<index_t> offsets, ids;
  gdpo::Workspace workspace;
  gdpo::GroupReport report;

  Rollouts(index_t rows_, index_t K, index_t C_, Kind kind = Kind::Uniform, double missing = 0)
      : rows(rows_), C(C_), rewards(size(rows * C)), out(size(rows)), valid(size(rows), 1) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform;
    for (float& reward : rewards) reward = uniform(random);
    for (index_t i = 0; i < rows; ++i) {
      float* const row = rewards.data() + i * C;
      if (kind == Kind::Canceled) {
        for (index_t c = 0; c < C; ++c) row[c] = static_cast<float>((c + i) % 2);
      }
      if (kind == Kind::Tied) std::copy_n(rewards.data() + i / K * K * C, C, row);
    }
    for (float& reward : rewards) {
      if (uniform(random) < missing) reward = std::numeric_limits<float>::quiet_NaN();
    }
    for (index_t i = 0; i < rows; ++i) ids.push_back(i / K);
    std::shuffle(ids.begin(), ids.end(), random);
    std::uniform_int_distribution<index_t> length(4, 28);
    for (index_t i = 0; i < rows; i += length(random)) offsets.push_back(i);
    offsets.push_back(rows);
    for (index_t i = 0; i < rows; ++i) {
      tokens.push_back(100 + 1000 * uniform(random));
      kl.push_back(uniform(random));
    }
    for (unsigned char& flag : valid) flag = uniform(random) > 0.01f;
  }
  template <class Groups>
  gdpo::RewardBatch<float, Groups> batch(const Groups& groups) const {
    return {gdpo::view(rewards.data(), rows, C), groups};
  }

 private:
  static std::size_t size(index_t n) { return static_cast<std::size_t>(n); }
};
using Shared = std::shared_ptr<Rollouts>;

constexpr index_t rows = 65536;

/// A run of an estimator in groups of K.
template <class Estimator = gdpo::Gdpo>
Paths::Run run(const Shared& r, index_t K, const Estimator& estimator = {}) {
  return [=] {
    gdpo::advantages_into(gdpo::simd, r->batch(gdpo::groups_of(K)), estimator, gdpo::view(r->out),
                          r->workspace);
  };
}
template <class Estimator = gdpo::Gdpo>
Paths::Run run_with_report(const Shared& r, index_t K, const Estimator& estimator = {}) {
  return [=] {
    gdpo::advantages_into(gdpo::simd, r->batch(gdpo::groups_of(K)), estimator, gdpo::view(r->out),
                          r->workspace, &r->report);
  };
}

constexpr double bytes = 4 + 4.0 / 4;  // a reward, and a fourth of an advantage

Experiment of_groups() {
  Paths paths("Advantages of GDPO, 65536 completions, 4 rewards: groups", "reward", "groups of 8");
  for (const index_t K : {8, 2, 3, 4, 16, 64, 1024}) {
    const Gate goal = K < 8 ? at_most(2) : at_most(1.2);
    paths.add("groups of " + std::to_string(K), goal, 4.0 * double(rows / K * K), bytes,
              [=] { return run(std::make_shared<Rollouts>(rows / K * K, K, 4), K); });
  }
  for (const index_t K : {2, 4}) {
    for (const auto& [kind, what] :
         {std::pair(Kind::Canceled, "all cancel"), std::pair(Kind::Tied, "all tie")}) {
      paths.add("groups of " + std::to_string(K) + ", " + what, at_most(2), 4.0 * rows, bytes,
                [=, kind = kind] { return run(std::make_shared<Rollouts>(rows, K, 4, kind), K); });
    }
  }
  paths.add("ragged groups of 4 to 28, by_offsets", at_most(1.5), 4.0 * rows, bytes, [] {
    const auto r = std::make_shared<Rollouts>(rows, 16, 4);
    return [=] {
      gdpo::advantages_into(gdpo::simd, r->batch(gdpo::by_offsets(r->offsets)), gdpo::Gdpo{},
                            gdpo::view(r->out), r->workspace);
    };
  });
  paths.add("by_id, shuffled groups of 16", 4.0 * rows, bytes + 2, [] {
    const auto r = std::make_shared<Rollouts>(rows, 16, 4);
    return [=, groups = std::make_shared<gdpo::ById>(gdpo::by_id(r->ids))] {
      gdpo::advantages_into(gdpo::simd, r->batch(gdpo::ById(*groups)), gdpo::Gdpo{},
                            gdpo::view(r->out), r->workspace);
    };
  });
  return std::move(paths).experiment();
}

Experiment of_settings() {
  Paths paths("Advantages of GDPO, 65536 completions, 4 rewards, groups of 16", "reward", "plain");
  const auto fresh = [](double missing = 0) {
    return std::make_shared<Rollouts>(rows, 16, 4, Kind::Uniform, missing);
  };
  paths.add("plain", 4.0 * rows, bytes, [=] { return run(fresh(), 16); });
  paths.add("1 % missing", at_most(1.5), 4.0 * rows, bytes, [=] { return run(fresh(0.01), 16); });
  paths.add("1 % missing, zero in their place", at_most(1.5), 4.0 * rows, bytes, [=] {
    gdpo::Gdpo e;
    e.missing.entry = gdpo::MissingEntry::Zero;
    return run(fresh(0.01), 16, e);
  });
  paths.add("a gate", at_most(1.5), 4.0 * rows, bytes, [=] {
    gdpo::Gdpo e;
    e.gates = {gdpo::Gate{0, 1, 0.3}};
    return run(fresh(), 16, e);
  });
  paths.add("weights", at_most(1.5), 4.0 * rows, bytes, [=] {
    gdpo::Gdpo e;
    e.weights = {1, 0.5, 0.25, 2};
    return run(fresh(), 16, e);
  });
  paths.add("a reward of weight 0", at_most(1.5), 4.0 * rows, bytes, [=] {
    gdpo::Gdpo e;
    e.weights = {1, 0, 0.25, 2};
    return run(fresh(), 16, e);
  });
  paths.add("reward_clip", at_most(1.5), 4.0 * rows, bytes, [=] {
    gdpo::Gdpo e;
    e.reward_clip = {0.1, 0.9};
    return run(fresh(), 16, e);
  });
  paths.add("1 % of the rows not valid", at_most(1.5), 4.0 * rows, bytes + 0.25, [=] {
    const auto r = fresh();
    return [=] {
      auto batch = r->batch(gdpo::groups_of(16));
      batch.valid = gdpo::view(r->valid);
      gdpo::advantages_into(gdpo::simd, batch, gdpo::Gdpo{}, gdpo::view(r->out), r->workspace);
    };
  });
  paths.add("a report", at_most(2), 4.0 * rows, bytes,
            [=] { return run_with_report(fresh(), 16); });
  paths.add("a report, 1 % missing", at_most(3), 4.0 * rows, bytes,
            [=] { return run_with_report(fresh(0.01), 16); });
  paths.add("median and mad", at_most(8), 4.0 * rows, bytes, [=] {
    return run(fresh(), 16, gdpo::GroupAdvantage<gdpo::baseline::Median, gdpo::scale::Mad>{});
  });
  for (const index_t C : {1, 2, 3, 8, 16}) {
    paths.add(std::to_string(C) + " rewards", double(C * rows), 4 + 4.0 / double(C),
              [=] { return run(std::make_shared<Rollouts>(rows, 16, C), 16); });
  }
  return std::move(paths).experiment();
}

Experiment of_names() {
  Paths paths("Advantages of every estimator, 65536 completions, 4 rewards, groups of 16", "reward",
              "gdpo");
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    paths.add(name, no_gate(), 4.0 * rows, bytes, [=] {
      const auto r = std::make_shared<Rollouts>(rows, 16, 4);
      return std::visit(
          [&](const auto& estimator) -> Paths::Run {
            return [=] {
              auto batch = r->batch(gdpo::groups_of(16));
              batch.tokens = gdpo::view(r->tokens), batch.penalty = gdpo::view(r->kl);
              gdpo::advantages_into(gdpo::simd, batch, estimator, gdpo::view(r->out), r->workspace);
            };
          },
          gdpo::runtime::estimator(name));
    });
  }
  return std::move(paths).experiment();
}

Experiment of_ids() {
  Paths paths("Groups of 65536 rows by id", "row", "sorted ids");
  const auto build = [](bool sorted) {
    const auto r = std::make_shared<Rollouts>(rows, 16, 1);
    if (sorted) std::sort(r->ids.begin(), r->ids.end());
    return [=] { static_cast<void>(gdpo::by_id(r->ids).count(0)); };
  };
  paths.add("sorted ids", rows, 8 + 8, [=] { return build(true); });
  paths.add("shuffled ids", rows, 8 + 8, [=] { return build(false); });
  return std::move(paths).experiment();
}

}  // namespace

std::vector<Experiment> path_advantages() {
  return {of_groups(), of_settings(), of_names(), of_ids()};
}

}  // namespace gates
