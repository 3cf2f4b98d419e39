// K2: GDPO advantages from rewards.
#include <gdpo/advantages.hpp>
#include <memory>

#include "../naive.hpp"
#include "experiments.hpp"
#include "machine.hpp"
#include "torch_eager.hpp"

namespace gates {
namespace {

struct Rollouts {
  gdpo::index_t prompts, K, C;
  std::vector<float> rewards, want, out;
  gdpo::Workspace workspace;

  Rollouts(gdpo::index_t prompts_, gdpo::index_t K_, gdpo::index_t C_)
      : prompts(prompts_), K(K_), C(C_), rewards(static_cast<std::size_t>(prompts * K * C)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform;
    for (float& reward : rewards) reward = uniform(random);
    want.resize(static_cast<std::size_t>(prompts * K));
    out = want;
    naive::gdpo_advantages(rewards.data(), prompts, K, C, want.data());
  }
  /// Says what is wrong with `out`, or "". It may be off by some roundings to float of values below
  /// 10, which is 5e-6.
  std::string difference() const {
    double most = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double apart = std::abs(static_cast<double>(out[i]) - static_cast<double>(want[i]));
      if (!(apart <= most)) most = apart;
    }
    return most <= 5e-6 ? "" : "advantages off by " + std::to_string(most);
  }
};

void set_up(Bench& bench, gdpo::index_t prompts, gdpo::index_t K, gdpo::index_t C) {
  const auto rollouts = std::make_shared<Rollouts>(prompts, K, C);
  const auto work = static_cast<double>(prompts * K);
  const auto add = [&](const std::string& name, auto f) {
    bench.add(
        name, work, [=] { f(*rollouts); }, [=] { return rollouts->difference(); },
        4.0 * static_cast<double>(C) + 4);
  };
  add("gdpo 1T", [](Rollouts& r) {
    const gdpo::RewardBatch batch{gdpo::view(std::as_const(r.rewards).data(), r.prompts * r.K, r.C),
                                  gdpo::groups_of(r.K)};
    gdpo::advantages_into(gdpo::simd, batch, gdpo::Gdpo{}, gdpo::view(r.out), r.workspace);
  });
  if (bench.library_alone()) return;
  add("naive 1T", [](Rollouts& r) {
    naive::gdpo_advantages(r.rewards.data(), r.prompts, r.K, r.C, r.out.data());
  });
  if (const Torch* const torch = gates::torch()) {
    add("torch 1T", [torch](Rollouts& r) {
      torch->use_threads(1);
      torch->gdpo_advantages(r.rewards.data(), r.prompts, r.K, r.C, r.out.data());
    });
  } else {
    bench.absent("torch 1T", no_torch);
  }
}

}  // namespace

std::vector<Experiment> k2() {
  return {{"K2, 4096 prompts of 16 completions, 4 rewards",
           {{"speed over eager", at_least(15).on(zen5), "torch 1T", "gdpo 1T"},
            {"speed over naive scalar loops", at_least(3).on(zen5), "naive 1T", "gdpo 1T"}},
           [](Bench& bench) { set_up(bench, 4096, 16, 4); }},
          {"K2, 64 prompts of 8 completions, 3 rewards",
           {{"speed over eager", at_least(25).on(zen5), "torch 1T", "gdpo 1T"},
            {"speed over naive scalar loops", no_gate(), "naive 1T", "gdpo 1T"}},
           [](Bench& bench) { set_up(bench, 64, 8, 3); }}};
}

}  // namespace gates
