// Paths of gdpo/prepass.hpp and gdpo/mismatch.hpp: every pre-pass by name, several of them,
// statistics, masks, packed rows, and the reports of gates and of the mismatch.
#include <gdpo/loss.hpp>
#include <gdpo/mismatch.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <memory>
#include <random>

#include "experiments.hpp"
#include "paths.hpp"

namespace gates {
namespace {

using gdpo::index_t;
namespace prepass = gdpo::prepass;
using Statistic = prepass::Statistic;

constexpr index_t rows = 512, width = 4096, n = rows * width;

/// What the arrays of a batch look like.
enum class Form {
  Plain,   // padded, no mask
  Masked,  // padded; a mask with an end and a hole in each row
  Packed   // rows of 64 to 4096 tokens, no mask
};

/// The arrays of a batch, and the memory that it is prepared in.
struct Tokens {
  std::vector<float> logp, old_logp, rollout_logp, teacher_logp, entropies, tags, copied;
  std::vector<unsigned char> mask;
  std::vector<std::int64_t> segments, versions;
  std::vector<index_t> offsets;
  std::vector<double> advantages, flags, groups;
  gdpo::TokenBatch<float> batch;
  gdpo::PrepassMemory<float> memory;

  Tokens(const Tokens&) = delete;
  explicit Tokens(Form form) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform;
    const auto draw = [&](auto& to, const auto& number) {
      to.resize(size(n));
      for (index_t k = 0; k < n; ++k) to[size(k)] = number(size(k));
    };
    const auto near = [&](std::size_t k) { return logp[k] + 0.1f * (uniform(random) - 0.5f); };
    draw(logp, [&](std::size_t) { return -2 * uniform(random); });
    draw(old_logp, near), draw(rollout_logp, near), draw(teacher_logp, near);
    draw(entropies, [&](std::size_t) { return 2 * uniform(random) * uniform(random); });
    draw(tags, [&](std::size_t) { return uniform(random) - 0.5f; });
    draw(segments, [](std::size_t k) { return static_cast<std::int64_t>(k / 256 % 16); });
    draw(versions, [&](std::size_t) { return static_cast<std::int64_t>(5 + 5 * uniform(random)); });
    draw(mask, [](std::size_t k) {
      const std::size_t t = k % width, end = width - k / width * 2;
      return t < end && (t < 500 || t >= 750);
    });
    copied.resize(size(n));
    for (index_t i = 0; i < rows; ++i) {
      advantages.push_back(uniform(random) - 0.5), flags.push_back(i % 8 == 3);
      groups.push_back(static_cast<double>(i / 8));
    }
    offsets.push_back(0);
    while (n - offsets.back() > width)
      offsets.push_back(offsets.back() + 64 + static_cast<index_t>(4032 * uniform(random)));
    if (form == Form::Packed) {
      offsets.push_back(n);
      const std::size_t packed_rows = offsets.size() - 1;
      for (auto* column : {&advantages, &flags, &groups}) {
        while (column->size() < packed_rows) column->push_back((*column)[column->size() % 512]);
        column->resize(packed_rows);
      }
    }
    const auto view = [&](const auto& array) {
      using View = gdpo::TokenView<std::decay_t<decltype(array[0])>>;
      return form == Form::Packed ? View(gdpo::view(array))
                                  : View(gdpo::view(array.data(), rows, width));
    };
    batch.logp = view(logp), batch.old_logp = view(old_logp);
    batch.rollout_logp = view(rollout_logp), batch.teacher_logp = view(teacher_logp);
    batch.entropies = view(entropies), batch.tags = view(tags), batch.segments = view(segments);
    if (form == Form::Masked) batch.mask = view(mask);
    if (form == Form::Packed) batch.offsets = gdpo::view(offsets);
    batch.advantages = gdpo::view(advantages);
  }
  template <class... Passes>
  Paths::Run prepare(const std::shared_ptr<Tokens>& self, const Passes&... passes) {
    return [self, passes...] { gdpo::prepare(self->batch, self->memory, passes...); };
  }

 private:
  static std::size_t size(index_t k) { return static_cast<std::size_t>(k); }
};
using Shared = std::shared_ptr<Tokens>;

/// The tokens of a form. Those that no call uses any more are freed.
Shared tokens(Form form) {
  static std::map<Form, std::weak_ptr<Tokens>> made;
  Shared shared = made[form].lock();
  if (!shared) made[form] = shared = std::make_shared<Tokens>(form);
  return shared;
}
template <class... Passes>
Paths::Run run(Form form, const Passes&... passes) {
  const Shared t = tokens(form);
  return t->prepare(t, passes...);
}

prepass::Importance truncated(Statistic statistic = Statistic::Token) {
  prepass::Importance pass;
  pass.statistic = statistic, pass.clip.hi = 2;
  return pass;
}
prepass::Gate gate(Statistic statistic = Statistic::Token,
                   prepass::Estimator estimator = prepass::Estimator::K3) {
  prepass::Gate pass;
  pass.estimator = estimator, pass.statistic = statistic, pass.max = 1e-3;
  return pass;
}

constexpr double pair = 8, weight = 4;  // two log-probs that are read, a weight that is written

Experiment of_passes() {
  Paths paths("Pre-passes, 512 x 4096 tokens, float", "token", "copying an array");
  paths.add("copying an array", n, 8, [] {
    return
        [t = tokens(Form::Plain)] { std::copy(t->logp.begin(), t->logp.end(), t->copied.begin()); };
  });
  paths.add("count", n, 1, [] {
    return [t = tokens(Form::Masked)] { static_cast<void>(gdpo::count(t->batch)); };
  });
  for (const auto& [form, where] : {std::pair(Form::Plain, ""), std::pair(Form::Masked, ", masked"),
                                    std::pair(Form::Packed, ", packed")}) {
    const auto add = [&, form = form, where = where](const std::string& name, Gate goal,
                                                     double bytes, const auto&... passes) {
      paths.add(name + where, goal, n, bytes + (form == Form::Masked),
                [=] { return run(form, passes...); });
    };
    const auto of_rows = [&, form = form, where = where](const std::string& name, bool rollout,
                                                         const auto& make) {
      paths.add(name + where, no_gate(), n, 1 + (form == Form::Masked) + 4 * rollout, [=] {
        const auto t = tokens(form);
        return [=, pass = make(*t)] {
          gdpo::TokenBatch<float> batch = t->batch;
          if (!rollout) batch.rollout_logp = {};
          gdpo::prepare(batch, t->memory, pass);
        };
      });
    };
    const auto overlong = [](const Tokens& t) {
      return prepass::Overlong{gdpo::view(t.flags), gdpo::Reach::Mask};
    };
    of_rows("Overlong", false, overlong);
    of_rows("Overlong, with rollout_logp", true, overlong);
    of_rows("DegenerateGroups", false, [](const Tokens& t) {
      return prepass::DegenerateGroups{gdpo::view(t.flags), gdpo::Reach::SurrogateAndKl};
    });
    add("Importance", no_gate(), pair + weight, truncated());
    add("Gate, ratio", no_gate(), pair + weight, [] {
      auto pass = gate(Statistic::Token, prepass::Estimator::Ratio);
      pass.min = 0.97, pass.max = 1.03;
      return pass;
    }());
    add("Gate, k3", no_gate(), pair + weight, gate());
    add("Gate, k3, on the mask", no_gate(), pair + 2, [] {
      auto pass = gate();
      pass.reach = gdpo::Reach::Mask;
      return pass;
    }());
    add("TopEntropy", no_gate(), 4 + weight, [] { return prepass::TopEntropy{}; }());
    add("Importance and Gate", no_gate(), pair + weight, truncated(), gate());
    paths.add(std::string("Overlong, Importance, Gate, Gate of rows") + where, no_gate(), n,
              pair + weight + 1 + (form == Form::Masked), [form = form] {
                const auto t = tokens(form);
                return t->prepare(t, prepass::Overlong{gdpo::view(t->flags), gdpo::Reach::Mask},
                                  truncated(), gate(), gate(Statistic::SequenceMean));
              });
    add("Importance, Gate, TopEntropy, MeanOne", no_gate(), pair + 4 + weight, truncated(), gate(),
        prepass::TopEntropy{}, prepass::MeanOne{});
  }
  return std::move(paths).experiment();
}

Experiment of_statistics() {
  Paths paths("Statistics of pre-passes, 512 x 4096 tokens, float", "token", "Importance, token");
  for (const bool masked : {false, true}) {
    for (const auto& [word, statistic] : enumerators(Statistic{})) {
      for (const bool is_gate : {false, true}) {
        const std::string name = std::string(is_gate ? "Gate, k3, " : "Importance, ") + word +
                                 (masked ? ", masked" : "");
        paths.add(name, n, pair + weight + masked, [=, statistic = statistic] {
          const auto t = tokens(masked ? Form::Masked : Form::Plain);
          auto importance = truncated(statistic);
          auto k3 = gate(statistic);
          importance.groups = k3.groups = gdpo::view(t->groups);
          return is_gate ? t->prepare(t, k3) : t->prepare(t, importance);
        });
      }
    }
  }
  return std::move(paths).experiment();
}

Experiment of_estimators() {
  Paths paths("Estimators of gates, 512 x 4096 tokens, float", "token", "ratio");
  for (const auto& [word, estimator] : enumerators(prepass::Estimator{})) {
    paths.add(word, n, pair + weight, [estimator = estimator] {
      return run(Form::Plain, gate(Statistic::Token, estimator));
    });
  }
  return std::move(paths).experiment();
}

Experiment of_names() {
  Paths paths("Every pre-pass by name, 512 x 4096 tokens, float", "token", "importance");
  for (const std::string& name : gdpo::runtime::prepass_names()) {
    paths.add(name, n, pair + weight, [=] {
      return std::visit([](const auto& pass) { return run(Form::Masked, pass); },
                        gdpo::runtime::prepass(name));
    });
  }
  return std::move(paths).experiment();
}

Experiment of_reports() {
  Paths paths("Reports of gates and mismatch, and proximal_logp, 512 x 4096 tokens, float", "token",
              "copying an array");
  paths.add("copying an array", n, 8, [] {
    return
        [t = tokens(Form::Plain)] { std::copy(t->logp.begin(), t->logp.end(), t->copied.begin()); };
  });
  const auto add = [&](const std::string& name, Form form, const auto& pass) {
    paths.add(name, n, pair + (form == Form::Masked), [=] {
      return [t = tokens(form), pass] { static_cast<void>(gdpo::gate_report(t->batch, pass)); };
    });
  };
  add("gate_report, Gate k3", Form::Plain, gate());
  add("gate_report, Gate k3, masked", Form::Masked, gate());
  add("gate_report, Gate k3 of rows", Form::Plain, gate(Statistic::SequenceMean));
  add("gate_report, Importance", Form::Plain, truncated());
  add("gate_report, FutureKl", Form::Plain, prepass::FutureKl{});
  for (const auto& [form, where] : {std::pair(Form::Plain, ""), std::pair(Form::Masked, ", masked"),
                                    std::pair(Form::Packed, ", packed")}) {
    paths.add(std::string("mismatch") + where, n, pair + (form == Form::Masked), [form = form] {
      return [t = tokens(form)] { static_cast<void>(gdpo::mismatch(t->batch)); };
    });
  }
  for (const auto& [word, method] : enumerators(gdpo::ProximalMethod{})) {
    paths.add(std::string("proximal_logp, ") + word, n, pair + 8 + 4, [method = method] {
      const auto t = tokens(Form::Plain);
      return [=] {
        gdpo::proximal_logp_into(gdpo::view(t->logp.data(), rows, width),
                                 gdpo::view(t->rollout_logp.data(), rows, width),
                                 gdpo::view(t->versions.data(), rows, width), 10, method,
                                 gdpo::view(t->copied.data(), rows, width));
      };
    });
  }
  return std::move(paths).experiment();
}

}  // namespace

std::vector<Experiment> path_prepare() {
  return {of_passes(), of_statistics(), of_estimators(), of_names(), of_reports()};
}

}  // namespace gates
