// Every loss that has a name, as a value of its own type and as runtime.hpp gives it; and every
// level, KL term, surrogate, aggregate and set of metrics. Each is called once, in the short form,
// which uses gdpo::simd (results.cpp compares the execution tags).
#pragma once
#include <gdpo/presets/all.hpp>
#include <gdpo/runtime.hpp>

#include "hash.hpp"
#include "inputs.hpp"

namespace {

/// The shape with this name.
constexpr const Shape& shape_of(const char* name) {
  for (const Shape& shape : shapes) {
    const char *a = shape.name, *b = name;
    while (*a && *a == *b) ++a, ++b;
    if (*a == *b) return shape;
  }
  return shapes[0];
}

/// Hashes the loss, its gradient and its metrics on a batch.
template <class S, class Loss>
void add_loss(Hash& hash, const Loss& loss, const gdpo::TokenBatch<S>& batch,
              const Tokens<S>& tokens) {
  gdpo::Normalizer normalizer = gdpo::count(batch);
  normalizer.given = 1234.5;
  std::vector<S> gradient(tokens.size(), S(-77));
  add(hash, loss(batch, normalizer, tokens.out(gradient)));
  hash.add(gradient);
}

/// Gives a length to an aggregate that divides by a constant length and has none.
void give_length(gdpo::Aggregate& aggregate) {
  if (!aggregate.padded_width && !(aggregate.constant > 0)) aggregate.constant = 64;
}

class Losses {
 public:
  explicit Losses(const Lines& lines) : line_(lines) {}

  void all() {
    named();
    presets();
    levels();
    kl_terms();
    surrogates();
    aggregates();
    metrics();
  }

 private:
  template <class S = float, class Loss>
  void one(const std::string& name, Loss loss, const char* shape) {
    give_length(loss.aggregate);
    const Tokens<S> tokens(shape_of(shape));
    Hash hash;
    add_loss(hash, loss, tokens.batch(), tokens);
    line_("loss", name + "." + shape, hash);
  }
  template <class S = float, class Loss>
  void on_shapes(const std::string& name, const Loss& loss) {
    for (const char* shape : {"padded", "packed", "full", "full_packed"}) one<S>(name, loss, shape);
  }

  /// What runtime.hpp gives for each name: as it is, with its KL term switched on, and at every
  /// level.
  void named() {
    for (const std::string& name : gdpo::runtime::loss_names()) {
      std::visit(
          [&](auto loss) {
            on_shapes("loss." + name, loss);
            if constexpr (!decltype(loss.level)::of_segment)
              on_shapes<double>("loss_double." + name, loss);
            loss.kl.beta = 0.0625;
            on_shapes("loss." + name + "/kl", loss);
          },
          gdpo::runtime::loss(name));
      for (const char* level : {"token", "sequence", "sequence_token"}) {
        std::visit(
            [&](const auto& loss) { one("loss." + name + "/" + level, loss, "full_packed"); },
            gdpo::runtime::loss(name, level));
      }
    }
  }

  /// The presets with the types of level and KL term that they have.
  void presets() {
    const auto preset = [this](const std::string& name, const auto& loss) {
      on_shapes("preset." + name, loss);
    };
    gdpo::presets::for_each_loss([&](const auto& of_list) {
      const std::string name = of_list.name;
      const bool of_paper = name.find("::") == std::string::npos;
      preset(of_paper ? "paper::" + name : name, of_list.value);
    });
  }

  /// Bounds of a segment's ratio at every level that has them, and the statistic that no name has.
  void levels() {
    for (const char* level : {"sequence", "sequence_token"}) {
      std::visit(
          [&](auto loss) {
            if constexpr (decltype(loss.level)::of_segment) {
              loss.level.bounds = {-0.015625, 0.03125};
              on_shapes(std::string("level.bounded/") + level, loss);
              loss.level.bounds = {};
              loss.level.statistic.count_eps = 1e-8;
              on_shapes(std::string("level.count_eps/") + level, loss);
            }
          },
          gdpo::runtime::loss("grpo", level));
    }
    using SumOfClamped = gdpo::level::Sequence<gdpo::map::Clamp, gdpo::statistic::Sum>;
    gdpo::PolicyLoss<SumOfClamped> sum;
    sum.level.map.lo = -0.25;
    sum.level.map.hi = 0.375;
    on_shapes("level.sequence_sum_of_clamped", sum);
  }

  void kl_terms() {
    constexpr std::pair<const char*, gdpo::KlEstimator> estimators[] = {
        {"k1", gdpo::KlEstimator::K1},
        {"abs", gdpo::KlEstimator::Abs},
        {"k2", gdpo::KlEstimator::K2},
        {"k3", gdpo::KlEstimator::K3}};
    constexpr std::pair<const char*, gdpo::KlGradient> gradients[] = {
        {"direct", gdpo::KlGradient::Direct},
        {"straight_through_k2", gdpo::KlGradient::StraightThroughK2},
        {"score_function", gdpo::KlGradient::ScoreFunction},
        {"importance_weighted", gdpo::KlGradient::ImportanceWeighted}};
    constexpr std::pair<const char*, gdpo::Against> others[] = {
        {"ref", gdpo::Against::Ref},
        {"old", gdpo::Against::Old},
        {"teacher", gdpo::Against::Teacher},
        {"rollout", gdpo::Against::Rollout}};
    for (const char* level : {"token", "sequence", "sequence_token"}) {
      std::visit(
          [&](auto loss) {
            for (const auto& [estimator, of] : estimators) {
              for (const auto& [gradient, rule] : gradients) {
                loss.kl = {};
                loss.kl.beta = 0.375;
                loss.kl.estimator = of;
                loss.kl.gradient = rule;
                const std::string name =
                    std::string("kl.") + estimator + "/" + gradient + "/" + level;
                for (const auto& [other, against] : others) {
                  loss.kl.against = against;
                  one(name + "/" + other, loss, "full_packed");
                }
                loss.kl.against = gdpo::Against::Ref;
                loss.kl.input = {-0.03125, 0.046875};
                one(name + "/input", loss, "masked");
                loss.kl.output = {-0.0078125, 0.015625};
                one(name + "/input_output", loss, "masked");
              }
            }
          },
          gdpo::runtime::loss("grpo", level));
    }
    // Kernels for one KL term whose type is known when they are compiled.
    typed_kl<gdpo::kl::K1, gdpo::kl::ScoreFunction>("k1/score_function");
    typed_kl<gdpo::kl::Abs, gdpo::kl::Direct>("abs/direct");
    typed_kl<gdpo::kl::K2, gdpo::kl::StraightThroughK2>("k2/straight_through_k2");
    typed_kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>("k3/importance_weighted");
    // The names of verl.
    for (const char* name :
         {"kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "abs+", "k2+", "k3+"}) {
      std::visit(
          [&](auto loss) {
            loss.kl = gdpo::runtime::kl(name, loss.kl);
            one(std::string("kl.named/") + name, loss, "masked");
          },
          gdpo::runtime::loss("grpo"));
    }
  }
  template <class Estimator, class Gradient>
  void typed_kl(const std::string& name) {
    gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<Estimator, Gradient>>
        loss;
    loss.kl.beta = 0.375;
    on_shapes("kl.typed/" + name, loss);
  }

  void surrogates() {
    constexpr double off = gdpo::math::infinity;
    struct Clips {
      const char* name;
      double low, high, delta, dual;
    };
    for (const Clips& c :
         {Clips{"asymmetric", 0.125, 0.375, off, off}, Clips{"delta", 0.2, 0.2, 1.5, off},
          Clips{"delta_inside", 0.2, 0.2, 1.0625, off}, Clips{"delta_below", 0.2, 0.2, 0.5, off},
          Clips{"dual", 0.2, 0.2, off, 3}, Clips{"dual_inside", 0.2, 0.2, off, 1.0625},
          Clips{"delta_dual", 0.2, 0.28, 2, 1.75}, Clips{"unclipped", off, off, off, off},
          Clips{"always_clipped", 0, 0, off, off}}) {
      for (const char* level : {"token", "sequence", "sequence_token"}) {
        std::visit(
            [&](auto loss) {
              loss.surrogate = gdpo::surrogate::Ratio{c.low, c.high, c.delta, c.dual};
              on_shapes(std::string("surrogate.") + c.name + "/" + level, loss);
            },
            gdpo::runtime::loss("grpo", level));
      }
    }
    gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce> reinforce;
    on_shapes("surrogate.reinforce", reinforce);
  }

  void aggregates() {
    using Aggregate = gdpo::Aggregate;
    constexpr std::pair<const char*, Aggregate::Mode> modes[] = {
        {"seq_mean_token_mean", Aggregate::Mode::SeqMeanTokenMean},
        {"token_mean", Aggregate::Mode::TokenMean},
        {"seq_mean_token_sum", Aggregate::Mode::SeqMeanTokenSum},
        {"seq_mean_token_sum_norm", Aggregate::Mode::SeqMeanTokenSumNorm},
        {"token_sum", Aggregate::Mode::TokenSum}};
    constexpr std::pair<const char*, gdpo::Over> counts[] = {
        {"tokens", gdpo::Over::Tokens},
        {"rows", gdpo::Over::Rows},
        {"non_empty_rows", gdpo::Over::NonEmptyRows},
        {"given", gdpo::Over::Given}};
    std::visit(
        [&](auto loss) {
          for (const auto& [mode, of] : modes) {
            for (const auto& [count, over] : counts) {
              loss.aggregate = Aggregate();
              loss.aggregate.mode = of;
              loss.aggregate.over = over;
              loss.aggregate.constant = 48;
              const std::string name = std::string("aggregate.") + mode + "/" + count;
              on_shapes(name, loss);
              loss.aggregate.count_eps = 1e-8;
              loss.aggregate.row_count_eps = 0.5;
              loss.aggregate.scale = 0.75;
              one(name + "/eps_scale", loss, "packed");
              loss.aggregate.constant = 0;
              loss.aggregate.padded_width = true;
              one(name + "/padded_width", loss, "padded");
            }
          }
          for (const char* mode : {"token-mean", "token-sum", "seq-mean-token-sum",
                                   "seq-mean-token-sum-norm", "seq-mean-token-mean"}) {
            loss.aggregate = gdpo::runtime::aggregate(mode);
            one(std::string("aggregate.named/") + mode, loss, "full");
          }
        },
        gdpo::runtime::loss("grpo"));
  }

  void metrics() {
    on_shapes("metrics.means", gdpo::with_metrics<gdpo::metrics::Means>(gdpo::grpo_loss));
    on_shapes("metrics.none", gdpo::with_metrics<gdpo::metrics::None>(gdpo::grpo_loss));
  }

  Lines line_;
};

}  // namespace
