// Hashes of the results whose bits the library promises. The file is compiled once for every target
// and compiler. The object exports only the function at the end, so that objects for several
// instruction sets can stand in one program.
//   -DGDPO_BITS=<name of the function>
#include "results.hpp"

#include <gdpo/advantages.hpp>
#include <gdpo/constraint.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/mismatch.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/update/clip_grad_norm.hpp>
#include <gdpo/update/polyak.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <memory>
#include <string>

#include "hash.hpp"
#include "inputs.hpp"

namespace {

/// A detached factor and a surrogate that the library does not ship: products and quotients written
/// by the caller.
struct Truncated {
  static constexpr bool reads_tag = true;
  template <class V>
  V operator()(const gdpo::Token<V>& t) const {
    namespace math = gdpo::math;
    return math::mul((math::min)(t.ratio, math::constant<V>(2.0)), t.tag);
  }
};
struct Soft {
  template <class V>
  gdpo::Term<V> operator()(const gdpo::Token<V>& t) const {
    namespace math = gdpo::math;
    const V one = math::constant<V>(1.0), q = one / (one + math::exp_parts(one - t.ratio).exp);
    const V a = math::mul(-t.advantage, q);
    return {a, math::mul(math::mul(a, one - q), t.ratio), math::constant<V>(0.0)};
  }
};

class Results {
 public:
  Results(gdpo_bits_line line, void* to) : line_(line), to_(to) {
    for (int workers = 1; workers <= 7; ++workers)
      pools_.push_back(std::make_unique<gdpo::ThreadPool>(workers));
  }

  void all() {
    using namespace gdpo;
    // The plain loops of the kernel, with and without a reference policy; every metric; and each
    // kind of level, KL term, map and factor.
    loss<float>("grpo", grpo_loss);
    auto without_kl = grpo_loss;
    without_kl.kl.beta = 0, without_kl.surrogate.high = 0.28;
    loss<float>("grpo_without_kl", without_kl);
    auto vanilla = verl::vanilla_loss;
    vanilla.kl.beta = 0.01;
    loss<float>("vanilla", vanilla);
    loss<float>("gspo", gspo_loss);
    auto sequence_token = verl::gspo_loss;
    sequence_token.kl.beta = 0.5, sequence_token.surrogate.low = 0.1;
    loss<float>("sequence_token", sequence_token);
    PolicyLoss<level::Token<map::Clamp>, Soft,
               Kls<Kl<kl::K3, kl::ImportanceWeighted>, Kl<kl::K1, kl::ScoreFunction>>, Aggregate,
               Factors<Truncated>>
        several;
    several.aggregate = aggregate::token_mean();
    several.kl.rest.first.against = Against::Rollout;
    loss<float>("several", several);
    loss<double>("grpo_double", grpo_loss);

    estimators();
    controllers();
    logits<float>("float");
    logits<double>("double");
    logits<BFloat16>("bfloat16");
    parameters<float>("float");
    parameters<double>("double");
    parameters<BFloat16>("bfloat16");
    exponentials<float>("exp_float");
    exponentials<double>("exp_double");
    mismatch();
  }

 private:
  /// Calls once(exec, hash) on every target and writes one hash, or a complaint for a target that
  /// differs. `large` says that the work is enough for several threads.
  template <class Once>
  void on_every_target(const char* kind, const std::string& name, bool large, const Once& once) {
    Hash seq;
    once(gdpo::seq, seq);
    const auto same = [&](const auto& exec, const std::string& target) {
      Hash hash;
      once(exec, hash);
      if (hash.value() != seq.value())
        line_(to_, "differs", (name + " on " + target).c_str(), hash.value());
    };
    same(gdpo::simd, "simd");
    for (std::size_t n = large ? 1 : 7; n <= 7; ++n) {
      same(gdpo::parallel(*pools_[n - 1]), "parallel(" + std::to_string(n) + ")");
    }
    line_(to_, kind, name.c_str(), seq.value());
  }

  template <class S, class Loss>
  void loss(const std::string& name, const Loss& loss) {
    for (const Shape& shape : shapes) {
      const Tokens<S> tokens(shape);
      const gdpo::TokenBatch<S> batch = tokens.batch();
      const gdpo::Normalizer normalizer = gdpo::count(batch);
      gdpo::LossWorkspace<S> workspace;
      const bool threads = std::strncmp(shape.name, "threads", 7) == 0;
      on_every_target("loss", name + "." + shape.name, threads, [&](const auto& exec, Hash& hash) {
        std::vector<S> gradient(tokens.size(), S(-77));
        add(hash, loss(exec, batch, normalizer, tokens.out(gradient), workspace));
        hash.add(gradient);
      });
    }
  }

  void estimators() {
    Integers integers(11);
    constexpr int rows = 331, reward_count = 3;
    std::vector<double> rewards;
    std::vector<float> narrow;
    std::vector<std::int64_t> ids;
    std::vector<std::int32_t> lengths;
    for (int i = 0; i < rows; ++i) {
      ids.push_back(i * i % 61);
      lengths.push_back(i % 5 * 20);
      for (int c = 0; c < reward_count; ++c) {
        const std::int64_t x = integers(1 << 20), kind = ids.back() % 4;
        const double value = kind == 0   ? static_cast<double>(x % 2)
                             : kind == 1 ? 0.75
                                         : in_millionths<double>(kind == 2 ? x : x + (c << 24));
        rewards.push_back(integers.one_in(50) ? std::numeric_limits<double>::quiet_NaN() : value);
        narrow.push_back(static_cast<float>(rewards.back()));
      }
    }
    const auto groups = gdpo::by_id(ids);
    gdpo::RewardBatch batch{gdpo::view(std::as_const(rewards).data(), rows, reward_count), groups};
    batch.tokens = gdpo::view(lengths);
    gdpo::Workspace workspace;
    std::vector<double> out(rows);
    for (const std::string& estimator : gdpo::runtime::estimator_names()) {
      std::visit(
          [&](const auto& e) {
            Hash hash;
            gdpo::GroupReport report;
            gdpo::advantages_into(gdpo::seq, batch, e, gdpo::view(out), workspace, &report);
            hash.add(out), hash.add(report.group_std);
            for (const double x : {report.reward_mean, report.reward_std, report.combined_std})
              hash.add(x);
            line_(to_, "any", ("advantages." + estimator).c_str(), hash.value());
          },
          gdpo::runtime::estimator(estimator));
    }
    // Groups of one size in consecutive rows, several of which are computed side by side in lanes.
    // They are large enough for several threads.
    constexpr int many = 20480;
    std::vector<float> large, of_row(many);
    for (int i = 0; i < many * reward_count; ++i)
      large.push_back(in_millionths<float>(integers(1 << 20)));
    const gdpo::RewardBatch equal{gdpo::view(std::as_const(large).data(), many, reward_count),
                                  gdpo::groups_of(8)};
    on_every_target("any", "advantages.groups_of", true, [&](const auto& exec, Hash& hash) {
      gdpo::advantages_into(exec, equal, gdpo::Gdpo{}, gdpo::view(of_row), workspace);
      hash.add(of_row);
    });
    const gdpo::Constrained<> constrained{{}, {}, {{1, 0.75, 0.125, 0.5}, {2, 1.5, -0.25, 0.375}}};
    on_every_target("any", "advantages.constrained", true, [&](const auto& exec, Hash& hash) {
      gdpo::advantages_into(exec, equal, constrained, gdpo::view(of_row), workspace);
      hash.add(of_row);
    });
  }

  /// Gradients that are clipped, and a reference policy that follows another one.
  template <class T>
  void parameters(const std::string& name) {
    using gdpo::update::ParameterView;
    Integers integers(21);
    constexpr gdpo::index_t rows = 331, columns = 427;  // three units of work
    std::vector<T> gradient(rows * columns), policy(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gdpo::store(gradient[i], in_millionths<float>(integers(1 << 20)));
      gdpo::store(policy[i], in_millionths<float>(integers(1 << 20)));
    }
    const auto add = [](Hash& hash, const std::vector<T>& x) {
      for (const T& v : x) hash.add(gdpo::load(v));
    };
    on_every_target("any", "clip_grad_norm." + name, true, [&](const auto& exec, Hash& hash) {
      std::vector<T> x = gradient;
      for (const auto norm : {gdpo::update::Norm::Two, gdpo::update::Norm::Max}) {
        const std::vector<ParameterView> list{gdpo::view(x.data(), rows, columns)};
        hash.add(gdpo::update::clip_grad_norm(exec, list, 0.25, {norm}).norm);
        add(hash, x);
      }
    });
    on_every_target("loss", "polyak." + name, true, [&](const auto& exec, Hash& hash) {
      std::vector<T> x = gradient;
      const gdpo::View<T, 2> turned = gdpo::view(x.data(), {columns, rows}, {1, columns});
      const gdpo::View<T, 2> backwards =
          gdpo::view(policy.data() + policy.size() - 1, {columns, rows}, {-rows, -1});
      gdpo::update::polyak(exec, {turned}, {backwards}, 0.3);
      add(hash, x);
    });
  }

  /// The rules for multipliers, fed with the same sums and counts. Where the count is 0, the
  /// multiplier is held.
  void controllers() {
    const std::pair<const char*, gdpo::PidGains> rules[] = {
        {"default", gdpo::PidGains{}},
        {"omnisafe", gdpo::pid::omnisafe()},
        {"nupi", gdpo::pid::nupi(0.5, 0.1, 0.75)},
        {"adam", gdpo::pid::dual_ascent_adam()},
        {"rmsprop", gdpo::pid::dual_ascent_rmsprop()},
        {"safe_rlhf_log", gdpo::pid::safe_rlhf_log()},
        {"stooke", gdpo::pid::stooke(0.5, 0.25, 0.125)},
        {"omnisafe_none", gdpo::pid::omnisafe(gdpo::LambdaNorm::None, 0.5)},
        {"nupi_first", gdpo::pid::nupi(0.5, 0.1, 0.75, gdpo::EmaStart::FirstValue)},
        {"nupi_second", gdpo::pid::nupi(0.5, 0.1, 0.75, gdpo::EmaStart::AfterFirst)},
        {"dual_ascent", gdpo::pid::dual_ascent(0.0625)}};
    for (const auto& [name, gains] : rules) {
      Integers integers(7);
      gdpo::PidLagrangian pid(gains, {{0.5, 0.375, gdpo::Bound::AtMost}, {-0.25, 1.75}});
      Hash hash;
      for (int step = 0; step < 500; ++step) {
        for (const gdpo::PidStep& of :
             pid.update({{in_millionths<double>(integers(1 << 20)), 3.0},
                         {in_millionths<double>(integers(1 << 20)), step % 9 * 1.0}})) {
          for (const double x : {of.p, of.i, of.d, of.raw, of.lambda}) hash.add(x);
        }
      }
      const bool calls_exp = gains.form == gdpo::PidForm::Log;
      line_(to_, calls_exp ? "loss" : "any", (std::string("pid.") + name).c_str(), hash.value());
    }
  }

  /// From logits to log-probs and back. Logarithms are the C library's, so the kind is "libm" where
  /// one is computed.
  template <class T>
  void logits(const std::string& name) {
    for (const int vocabulary : {37, 1000, 9001}) {
      constexpr int rows = 8;
      Integers integers(static_cast<std::uint64_t>(vocabulary));
      std::vector<T> table;
      std::vector<std::int64_t> targets;
      std::vector<float> g, g_entropy;
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < vocabulary; ++j) {
          const std::int64_t x = integers(1 << 22) + (i == 3 ? j << 11 : 0);  // row 3 ascends
          T value;
          gdpo::store(value, integers.one_in(20) && i == 4 ? -std::numeric_limits<float>::infinity()
                                                           : in_millionths<float>(x));
          table.push_back(value);
        }
        targets.push_back(integers(1 << 20) + (1 << 20));
        targets.back() %= vocabulary;
        g.push_back(in_millionths<float>(i == 5 ? 0 : integers(1 << 20)));
        g_entropy.push_back(in_millionths<float>(i % 3 ? 0 : integers(1 << 20)));
      }
      gdpo::LogitBatch<T, 2> batch;
      batch.logits = gdpo::view(std::as_const(table).data(), rows, vocabulary);
      batch.targets = gdpo::view(targets);
      batch.temperature = 0.75;
      const std::string base = "logits." + name + "." + std::to_string(vocabulary);
      const bool threads = vocabulary > 9000;
      const auto flat = [&](std::vector<T>& x) { return gdpo::view(x.data(), rows, vocabulary); };
      const auto add_table = [](Hash& hash, const std::vector<T>& x) {
        for (const T& v : x) hash.add(gdpo::load(v));
      };
      on_every_target("loss", base + ".sums", threads, [&](const auto& exec, Hash& hash) {
        std::vector<gdpo::LogitRow> of_rows(rows);
        gdpo::logit_rows(exec, batch, gdpo::view(of_rows));
        for (const gdpo::LogitRow& r : of_rows) {
          for (const double x : {r.max, r.sum, r.weighted, r.target}) hash.add(x);
        }
      });
      gdpo::TokenLogprobs forward = gdpo::token_logprobs(gdpo::seq, batch);
      on_every_target("libm", base + ".forward", threads, [&](const auto& exec, Hash& hash) {
        const gdpo::TokenLogprobs own = gdpo::token_logprobs(exec, batch);
        hash.add(own.logp), hash.add(own.entropy), hash.add(own.logsumexp);
      });
      // The gradient, from values of logsumexp that need no logarithm.
      std::vector<double> given;
      std::vector<float> entropy;
      for (int i = 0; i < rows; ++i)
        given.push_back(8 + 0.5 * i), entropy.push_back(0.25f * static_cast<float>(i));
      on_every_target("loss", base + ".backward", threads, [&](const auto& exec, Hash& hash) {
        std::vector<T> gradient(table.size());
        gdpo::token_logprobs_backward(exec, batch, {gdpo::view(g), gdpo::view(g_entropy)},
                                      gdpo::view(given), gdpo::view(entropy), flat(gradient));
        add_table(hash, gradient);
      });
      if constexpr (std::is_same_v<T, float>) fused(base, batch, forward.logp);
    }
  }

  /// From logits to dlogits in one call, with old_logp a little away from the log-probs of the
  /// policy.
  void fused(const std::string& base, const gdpo::LogitBatch<float, 2>& logits,
             const std::vector<float>& logp) {
    const index_t rows = logits.logits.extent[0], vocabulary = logits.logits.extent[1];
    std::vector<float> old_logp;
    for (const float x : logp)
      old_logp.push_back(static_cast<float>(static_cast<int>(8 * x)) * 0.125f);
    const std::vector<float> advantages(static_cast<std::size_t>(rows), 0.5f);
    const std::vector<index_t> offsets{0, rows / 2, rows};
    gdpo::TokenBatch<float> tokens;
    tokens.old_logp = gdpo::view(old_logp);
    tokens.token_advantages = gdpo::view(advantages);
    tokens.offsets = gdpo::view(offsets);
    auto loss = gdpo::grpo_loss;
    loss.kl.beta = 0;
    const gdpo::Normalizer normalizer = gdpo::count(logits, tokens);
    gdpo::LogitsWorkspace workspace;
    on_every_target("libm", base + ".fused", vocabulary > 9000, [&](const auto& exec, Hash& hash) {
      std::vector<float> gradient(static_cast<std::size_t>(rows * vocabulary));
      add(hash,
          gdpo::policy_loss_from_logits(exec, loss, logits, tokens, normalizer,
                                        gdpo::view(gradient.data(), rows, vocabulary), workspace));
      hash.add(gradient);
    });
  }

  template <class S>
  void exponentials(const char* name) {
    Integers integers(5);
    Hash hash;
    const auto add = [&](S x) {
      const auto e = gdpo::math::exp_parts(x);
      hash.add(e.exp), hash.add(e.expm1), hash.add(e.k3);
    };
    for (int k = 0; k < 20000; ++k) {
      const std::int64_t n = integers(1 << 24);
      add(in_millionths<S>(n)), add(in_millionths<S>(n) * S(0x1p-14)),
          add(in_millionths<S>(n) * S(8));
    }
    line_(to_, "loss", name, hash.value());
  }

  /// The report of log-probs that differ by up to 2 nats, a few of them missing.
  void mismatch() {
    Integers integers(17);
    constexpr int rows = 23, width = 37, tokens = rows * width;
    std::vector<float> old_logp, rollout_logp, weights;
    std::vector<unsigned char> mask;
    for (int k = 0; k < tokens; ++k) {
      old_logp.push_back(in_millionths<float>(integers(1 << 20) - (1 << 21)));
      rollout_logp.push_back(old_logp.back() + in_millionths<float>(integers(1 << 21)));
      if (integers.one_in(9)) rollout_logp.back() = gdpo::math::nan<float>();
      weights.push_back(in_millionths<float>(integers(1 << 20) + (1 << 20)));
      mask.push_back(!integers.one_in(5));
    }
    gdpo::TokenBatch<float> batch;
    batch.old_logp = gdpo::view(old_logp.data(), rows, width);
    batch.rollout_logp = gdpo::view(rollout_logp.data(), rows, width);
    batch.weights = gdpo::view(weights.data(), rows, width);
    batch.mask = gdpo::view(mask.data(), rows, width);
    const gdpo::MismatchReport report = gdpo::mismatch(batch);
    Hash hash;
    for (const gdpo::detail::MismatchMetric& metric : gdpo::detail::mismatch_metrics)
      hash.add(metric.of(report));
    line_(to_, "loss", "mismatch", hash.value());
  }

  gdpo_bits_line line_;
  void* to_;
  std::vector<std::unique_ptr<gdpo::ThreadPool>> pools_;
};

}  // namespace

extern "C" int GDPO_BITS(gdpo_bits_line line, void* to) {
  Results(line, to).all();
  return GDPO_HAS_FMA;
}
