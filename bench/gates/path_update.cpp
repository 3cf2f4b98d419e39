// Paths of gdpo/update.hpp: parameters, plans of rows, selection of groups, shaping, running
// states.
#include <gdpo/runtime.hpp>
#include <gdpo/update.hpp>
#include <gdpo/with/openmp.hpp>
#include <memory>
#include <random>

#include "experiments.hpp"
#include "machine.hpp"
#include "paths.hpp"
#include "probes.hpp"

namespace gates {
namespace {

using gdpo::index_t;
using gdpo::update::ParameterView;

/// Parameters in arrays of one size, and others to average them with.
template <class T>
struct Parameters {
  std::vector<T> a, b;
  std::vector<ParameterView> views, others;
  double bound = 1e30;

  Parameters(index_t arrays, index_t each) : a(std::size_t(arrays * each)), b(a.size()) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (std::size_t i = 0; i < a.size(); ++i)
      gdpo::store(a[i], uniform(random)), gdpo::store(b[i], uniform(random));
    for (index_t i = 0; i < arrays; ++i) {
      views.push_back(gdpo::view(a.data() + i * each, each));
      others.push_back(gdpo::view(b.data() + i * each, each));
    }
  }
  double elements() const { return static_cast<double>(a.size()); }
};

template <class T>
void add_parameters(Paths& paths, const std::string& name, index_t arrays, index_t each) {
  const double n = static_cast<double>(arrays * each), size = sizeof(T);
  const auto data = std::make_shared<std::weak_ptr<Parameters<T>>>();
  const auto parameters = [=] {
    auto p = data->lock();
    if (!p) *data = p = std::make_shared<Parameters<T>>(arrays, each);
    return p;
  };
  const auto measuring = [=](const auto& exec) -> Paths::Run {
    return [=, p = parameters()] {
      gdpo::update::clip_grad_norm(exec, p->views, gdpo::math::infinity);
    };
  };
  const auto blending = [=](const auto& exec) -> Paths::Run {
    return [=, p = parameters()] { gdpo::update::polyak(exec, p->views, p->others, 0.01); };
  };
  paths.add(name + ": norm", n, size, [=] { return measuring(gdpo::simd); });
  paths.add(name + ": clip_grad_norm", n, 3 * size, [=]() -> Paths::Run {
    return [p = parameters()] {  // each call has to scale, by a factor next to 1
      p->bound =
          std::min(p->bound, gdpo::update::clip_grad_norm(p->views, p->bound).norm) * (1 - 1e-6);
    };
  });
  paths.add(name + ": max norm", n, size, [=]() -> Paths::Run {
    return [p = parameters()] {
      gdpo::update::clip_grad_norm(p->views, gdpo::math::infinity, {gdpo::update::Norm::Max});
    };
  });
  paths.add(name + ": polyak", n, 3 * size, [=] { return blending(gdpo::simd); });
  if (two_processors()) {
    const auto two = gdpo::parallel(gdpo::OpenMp{2});
    paths.add(name + ": norm, two threads", n, size, [=] { return measuring(two); });
    paths.add(name + ": polyak, two threads", n, 3 * size, [=] { return blending(two); });
  }
}

Experiment of_parameters(index_t arrays, index_t each) {
  Paths paths("Parameters, " + std::to_string(arrays) + " arrays of " + std::to_string(each),
              "element", "copying an array");
  paths.add("copying an array", static_cast<double>(arrays * each), 8, [=]() -> Paths::Run {
    return [p = std::make_shared<Parameters<float>>(arrays, each)] {
      probes::copy(p->a.data(), p->b.data(), static_cast<std::ptrdiff_t>(p->a.size()));
    };
  });
  add_parameters<float>(paths, "float", arrays, each);
  add_parameters<gdpo::BFloat16>(paths, "bfloat16", arrays, each);
  add_parameters<gdpo::Float16>(paths, "half", arrays, each);
  add_parameters<double>(paths, "double", arrays, each);
  paths.add("strided float: norm", static_cast<double>(arrays * each), 4, [=]() -> Paths::Run {
    const auto p = std::make_shared<Parameters<float>>(2 * arrays, each);
    auto views = std::make_shared<std::vector<ParameterView>>();
    for (index_t i = 0; i < arrays; ++i) {
      views->push_back(gdpo::View<float, 1>{p->a.data() + 2 * i * each, {each}, {2}});
    }
    return [=] {
      static_cast<void>(p);
      gdpo::update::clip_grad_norm(*views, gdpo::math::infinity);
    };
  });
  return std::move(paths).experiment();
}

constexpr index_t rows = 65536;

/// The rows of a step.
struct Rows {
  std::vector<float> rewards, now, kl;
  std::vector<double> out;
  std::vector<index_t> lengths, ids, roles;
  std::vector<unsigned char> valid;

  explicit Rows(index_t n = rows) : rewards(std::size_t(4 * n)), out(std::size_t(n)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform;
    for (float& reward : rewards) reward = static_cast<float>(random() % 2);
    for (index_t i = 0; i < n; ++i) {
      lengths.push_back(static_cast<index_t>(std::exp2(3 + 9 * uniform(random))));
      ids.push_back(i / 16), roles.push_back(static_cast<index_t>(random() % 64));
      valid.push_back(uniform(random) > 0.01f);
    }
    std::shuffle(ids.begin(), ids.end(), random);
    now.resize(std::size_t(n));
  }
};

Experiment of_rows(index_t n) {
  using namespace gdpo::update;
  Paths paths("Plans of " + std::to_string(n) + " rows", "row", "copying an array");
  const double count = static_cast<double>(n);
  paths.add("copying an array", count, 16, [=]() -> Paths::Run {
    return [r = std::make_shared<Rows>(n)] {
      std::vector<index_t> copy(r->lengths);
      volatile index_t last = copy.back();
      static_cast<void>(last);
    };
  });
  const auto add = [&](const std::string& name, const auto& call) {
    paths.add(name, no_gate(), count, 16,
              [=]() -> Paths::Run { return [=, r = std::make_shared<Rows>(n)] { call(*r); }; });
  };
  PlanSettings settings;
  settings.epochs = 1, settings.mini_batches = 4, settings.ranks = 8, settings.micro_batch = 4;
  settings.remainder = Remainder::Spread;
  add("plan", [=](const Rows&) { plan(n, settings); });
  PlanSettings shuffled = settings;
  shuffled.shuffle = Shuffle::Once;
  add("plan, shuffled", [=](const Rows&) { plan(n, shuffled); });
  PlanSettings whole = shuffled;
  whole.whole = Whole::InMicroBatch, whole.micro_batch = 64;
  add("plan, whole groups", [=](const Rows&) { plan(n, gdpo::groups_of(16), whole); });
  add("pack", [=](const Rows& r) { pack(r.lengths, 8192); });
  add("pack, budget 32768", [=](const Rows& r) { pack(r.lengths, 32768); });
  add("shard over 8", [=](const Rows& r) { shard(r.lengths, 8); });
  add("shard over 1024", [=](const Rows& r) { shard(r.lengths, 1024); });
  add("shard over 64, equal",
      [=](const Rows& r) { shard(r.lengths, 64, cost::Tokens{}, ShardSizes::Equal); });
  add("shard over 64, attention", [=](const Rows& r) { shard(r.lengths, 64, cost::Attention{}); });
  add("shard over 64, groups of 16",
      [=](const Rows& r) { shard(gdpo::view(r.lengths), gdpo::groups_of(16), 64); });
  return std::move(paths).experiment();
}

Experiment of_groups() {
  using namespace gdpo::update;
  Paths paths("select_groups, 65536 rows of 4 rewards, groups of 16", "reward", "every_reward");
  const auto add = [&](const std::string& name, const GroupSelection& settings, bool by_id = false,
                       bool valid = false) {
    paths.add(name, no_gate(), 4.0 * rows, 4, [=]() -> Paths::Run {
      const auto r = std::make_shared<Rows>();
      const auto ids = std::make_shared<gdpo::ById>(gdpo::by_id(r->ids));
      return [=] {
        const auto call = [&](const auto& groups) {
          gdpo::RewardBatch batch{gdpo::view(r->rewards.data(), rows, index_t{4}), groups};
          if (valid) batch.valid = gdpo::view(r->valid);
          select_groups(batch, settings);
        };
        by_id ? call(*ids) : call(gdpo::groups_of(16));
      };
    });
  };
  GroupSelection settings;
  add("every_reward", settings);
  add("every_reward, by_id", settings, true);
  add("every_reward, 1 % not valid", settings, false, true);
  settings.top_p = 0.9;
  add("every_reward, top_p", settings);
  settings = {}, settings.flat_in = FlatIn::Sum;
  add("sum", settings);
  settings.flat_in = FlatIn::Reward;
  add("reward", settings);
  paths.add("advantages of gdpo", 4.0 * rows, 5, [=]() -> Paths::Run {
    const auto r = std::make_shared<Rows>();
    const auto workspace = std::make_shared<gdpo::Workspace>();
    return [=] {
      const gdpo::RewardBatch batch{gdpo::view(r->rewards.data(), rows, index_t{4}),
                                    gdpo::groups_of(16)};
      gdpo::advantages_into(gdpo::simd, batch, gdpo::Gdpo{}, gdpo::view(r->out), *workspace);
    };
  });
  return std::move(paths).experiment();
}

Experiment of_shaping() {
  using namespace gdpo::update;
  Paths paths("Shaping of 65536 rewards, groups of 16", "reward", "copying an array");
  const auto fresh = [] { return std::make_shared<Rows>(); };
  const auto reset = [](Rows& r) { std::copy_n(r.rewards.begin(), r.now.size(), r.now.begin()); };
  paths.add("copying an array", rows, 8,
            [=]() -> Paths::Run { return [r = fresh(), reset] { reset(*r); }; });
  for (const std::string& name : gdpo::runtime::shaping_names()) {
    paths.add(name, no_gate(), rows, 8 + 8 + 8, [=]() -> Paths::Run {
      gdpo::runtime::Shaping rule = gdpo::runtime::shaping(name);
      if (auto* const overlong = std::get_if<shaping::SoftOverlong>(&rule))
        overlong->max_length = 4096, overlong->buffer = 1024;
      return [=, r = fresh(), rules = std::vector<gdpo::runtime::Shaping>{rule}] {
        reset(*r);
        shaping::Columns columns;
        columns.lengths = columns.input_lengths = columns.turns = gdpo::view(r->lengths);
        gdpo::runtime::shape_rewards(gdpo::view(r->now), gdpo::groups_of(16), columns, rules);
      };
    });
  }
  paths.add("clip and soft_overlong, without groups", rows, 24, [=]() -> Paths::Run {
    return [=, r = fresh()] {
      reset(*r);
      shape_rewards(gdpo::view(r->now), gdpo::view(r->lengths), shaping::Clip{-1, 1},
                    shaping::SoftOverlong{4096, 1024});
    };
  });
  for (const std::string& name : gdpo::runtime::running_names()) {
    paths.add(name, no_gate(), rows, 4 + 8 + 8, [=] {
      const auto r = fresh();
      reset(*r);
      return std::visit(
          [=](const auto& running) -> Paths::Run {
            using Running = std::decay_t<decltype(running)>;
            if constexpr (std::is_same_v<Running, EmaBaseline>) {
              return [=, state = std::make_shared<gdpo::EmaState>()] {
                running.baselines_into(*state, gdpo::view(r->now), gdpo::view(r->roles),
                                       gdpo::view(r->out));
              };
            } else if constexpr (std::is_same_v<Running, ReturnScale>) {
              return [=, state = std::make_shared<gdpo::ReturnScaleState>()] {
                running.update(*state, running.observe(*state, gdpo::view(r->now)));
              };
            } else {
              return [=, state = std::make_shared<gdpo::Moments>()] {
                running.update(*state, gdpo::update::measure(gdpo::view(r->now)));
              };
            }
          },
          gdpo::runtime::running(name));
    });
  }
  return std::move(paths).experiment();
}

}  // namespace

std::vector<Experiment> path_update() {
  return {of_parameters(4, 1 << 22),
          of_parameters(4, 1 << 14),
          of_parameters(512, 128),
          of_rows(65536),
          of_rows(1 << 20),
          of_groups(),
          of_shaping()};
}

}  // namespace gates
