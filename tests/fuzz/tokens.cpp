// Calls with a batch of tokens: count, losses, prepare.
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <reference/naive_entropy_clip.hpp>
#include <reference/naive_loss.hpp>

#include "fuzz/token_arrays.hpp"

namespace fuzz {
namespace {

/// A batch and what its arrays are. S: its scalar.
template <class S>
struct Batch : TokenRows {
  Numbers<S> logp, old_logp, ref_logp, rollout_logp, token_advantages, weights, level_log_weights;
  Tokens<gdpo::TokenView<std::int64_t>> segments;
  AnyColumn<double> advantages, row_weights;

  explicit Batch(Trial& trial) : TokenRows(trial) {}

  void give_logp(Numbers<S>& to) {
    give<S>(to, [&] { return t.in.number() - 2; });
  }
  /// Says what every call with a batch needs, and finds out rows and tokens.
  void need_shapes(bool with_logp) {
    if (with_logp) {
      shape_from(logp);
      t.need(logp.shaped, "batch.logp");
    }
    need_one_shape(
        [&](const auto& visit) {
          visit(logp), visit(old_logp), visit(ref_logp), visit(rollout_logp);
          visit(token_advantages), visit(weights), visit(level_log_weights);
          visit(mask), visit(segments);
        },
        EmptyArrays::OfAnyShape);
    need_column(advantages), need_column(row_weights);
  }

  gdpo::TokenBatch<S> make() const {
    gdpo::TokenBatch<S> b;
    b.logp = logp.view, b.old_logp = old_logp.view, b.ref_logp = ref_logp.view;
    b.rollout_logp = rollout_logp.view, b.token_advantages = token_advantages.view;
    b.level_log_weights = level_log_weights.view;
    b.weights = weights.view, b.mask = mask.view, b.segments = segments.view;
    b.advantages = advantages.make(), b.row_weights = row_weights.make();
    b.offsets = offsets.make();
    return b;
  }
  /// The batch as the oracle takes it: padded rows, with mask 0 behind the end of packed ones.
  naive_loss::Data data() const {
    naive_loss::Data d;
    d.rows = static_cast<int>(rows);
    for (index_t i = 0; i < rows; ++i) d.width = std::max(d.width, static_cast<int>(length(i)));
    const auto add = [&](auto& to, const auto& from, index_t i) {
      if (!from.given) return;
      for (index_t j = 0; j < d.width; ++j) {
        using To = typename std::decay_t<decltype(to)>::value_type;
        to.push_back(j < length(i) ? static_cast<To>(from.numbers[at(i, j)]) : To(0));
      }
    };
    for (index_t i = 0; i < rows; ++i) {
      add(d.logp, logp, i), add(d.old_logp, old_logp, i), add(d.ref_logp, ref_logp, i);
      add(d.token_advantages, token_advantages, i), add(d.weights, weights, i);
      add(d.level_log_weights, level_log_weights, i), add(d.segments, segments, i);
      for (index_t j = 0; j < d.width; ++j) d.mask.push_back(j < length(i) && valid(at(i, j)));
    }
    if (advantages.present) d.advantages = advantages.numbers;
    if (row_weights.present) d.row_weights = row_weights.numbers;
    return d;
  }
};

template <class S>
void count(Trial& t) {
  Batch<S> b(t);
  if (t.in.chance(96)) b.give_logp(b.logp);
  if (t.in.chance(32)) b.give_logp(b.rollout_logp);
  b.give_marks();
  b.give_offsets();
  if (t.in.chance(64)) b.advantages = b.row_column([&] { return t.in.number(); });
  b.need_shapes(false);
  // Offsets alone may say that there are many tokens: none of them is looked at.
  t.leave_out_if(t.well_formed() && (b.large || b.rows > most_work));
  gdpo::Normalizer n;
  if (!t.make_call({"gdpo::count", "gdpo::Column"}, [&] { n = gdpo::count(b.make()); })) return;
  b.compare_counts(n);
}

/// The settings of the losses below, as the oracle calls them.
naive_loss::Settings of_grpo() {
  naive_loss::Settings s;
  s.kl = {{}};
  return s;
}
naive_loss::Settings of_dapo() {
  naive_loss::Settings s;
  s.surrogate = naive_loss::Ratio{0.2, 0.28};
  s.aggregate = naive_loss::Aggregate::TokenMean, s.over = naive_loss::Over::Tokens;
  return s;
}
naive_loss::Settings of_dr_grpo() {
  naive_loss::Settings s;
  s.aggregate = naive_loss::Aggregate::SeqMeanTokenSumNorm;
  return s;
}
naive_loss::Settings of_gspo() {
  naive_loss::Settings s;
  s.level = naive_loss::Level::Sequence;
  s.surrogate = naive_loss::Ratio{3e-4, 4e-4};
  return s;
}

template <class S, class Exec, class Loss>
void run_loss(Trial& t, Loss loss, naive_loss::Settings settings) {
  Batch<S> b(t);
  if (!t.in.hostile(6)) b.give_logp(b.logp);
  if (!t.in.chance(48)) b.give_logp(b.old_logp);
  const bool kl = !settings.kl.empty();
  if (kl && t.in.chance(64)) loss.kl.beta = 0, settings.kl.clear();
  if (kl ? !t.in.hostile(12) : t.in.chance(24)) b.give_logp(b.ref_logp);
  b.give_marks();
  b.give_offsets();
  if (t.in.chance(48)) b.template give<std::int64_t>(b.segments, [&] { return t.in.below(2); });
  if (t.in.chance(48)) b.template give<S>(b.weights, [&] { return 0.5 * t.in.below(4); });
  const bool of_segment = settings.level != naive_loss::Level::Token;
  if (of_segment ? t.in.chance(48) : t.in.hostile(12))
    b.template give<S>(b.level_log_weights, [&] { return 1e-4 * t.in.below(4); });
  if (t.in.chance(48)) b.row_weights = b.row_column([&] { return t.in.below(4); });
  const bool of_tokens = t.in.chance(64);
  if (of_tokens) b.template give<S>(b.token_advantages, [&] { return t.in.number(); });
  if (of_tokens ? t.in.hostile(12) : !t.in.hostile(12))
    b.advantages = b.row_column([&] { return t.in.number(); });
  Written<S> gradient;
  if (!t.in.chance(64)) b.give_output(gradient);

  b.need_shapes(true);
  t.need(of_segment || !b.level_log_weights.given, "no batch.level_log_weights");
  if (t.well_formed() && b.tokens > 0) {
    t.need(b.advantages.present != b.token_advantages.given, "advantages of rows or of tokens");
    t.need(settings.kl.empty() || b.ref_logp.given, "batch.ref_logp");
  }
  if (gradient.given) t.need(gradient.has_shape_of(b.logp), "gradient");
  if (t.in.chance(48)) {
    settings.count_eps = loss.aggregate.count_eps = t.in.hostile(64) ? odd_number(t.in) : 0.5;
    t.need(settings.count_eps >= 0 && std::isfinite(settings.count_eps), "aggregate.count_eps");
  }
  if (settings.aggregate == naive_loss::Aggregate::SeqMeanTokenSumNorm) {
    loss.aggregate.constant = settings.constant = t.in.hostile(24) ? odd_number(t.in) : 8;
    t.need(settings.constant > 0 && std::isfinite(settings.constant), "aggregate.constant");
  }
  t.leave_out_if(t.well_formed() && b.too_long());
  naive_loss::Data data;
  naive_loss::Counts counts;
  if (t.well_formed() && !b.too_long()) {
    data = b.data();
    counts = naive_loss::count(data);
  }
  const bool any = counts.tokens > 0;
  if (t.in.hostile(24)) {
    double* const of[] = {&counts.tokens, &counts.rows, &counts.non_empty_rows, &counts.given};
    *of[t.in.below(4)] = odd_number(t.in);
  }
  for (const double n : {counts.tokens, counts.rows, counts.non_empty_rows, counts.given})
    t.need(n >= 0 && std::isfinite(n), "a count");
  const double divides = settings.over == naive_loss::Over::Tokens ? counts.tokens : counts.rows;
  t.need(!any || divides > 0, "a count of more than 0");
  gdpo::LossResult result;
  gdpo::LossWorkspace<S> workspace;
  if (!t.make_call({"gdpo::PolicyLoss", "gdpo::Column"}, [&] {
        const gdpo::Normalizer n{counts.tokens, counts.rows, counts.non_empty_rows, counts.given};
        result = loss(Exec{}, b.make(), n, gradient.make(), workspace);
      }))
    return;
  const naive_loss::Result expected = naive_loss::loss(settings, data, counts);
  const real unit = std::is_same_v<S, float> ? 4e-6L : 1e-12L;
  const real tolerance = unit * (1 + expected.sums.magnitude);
  t.compare("loss", result.loss, expected.loss, tolerance);
  t.compare("policy_loss", result.policy_loss, expected.policy_loss, tolerance);
  t.compare("kl_loss", result.kl_loss, expected.kl_loss, tolerance);
  if (!gradient.given) return;
  const std::vector<double> got = gradient.now();
  real largest = 1;
  for (const real g : expected.gradient) largest = std::fmax(largest, std::fabs(g));
  for (index_t i = 0; i < b.rows; ++i) {
    for (index_t j = 0; j < b.length(i); ++j) {
      const bool counts_here = b.valid(b.at(i, j));
      t.compare("gradient", got[b.at(i, j)],
                expected.gradient[data.at(static_cast<int>(i), static_cast<int>(j))],
                counts_here ? unit * largest : 0);
    }
  }
}
void grpo(Trial& t) { run_loss<double, gdpo::Seq>(t, gdpo::grpo_loss, of_grpo()); }
void dapo(Trial& t) { run_loss<float, gdpo::Simd>(t, gdpo::dapo_loss, of_dapo()); }
void dr_grpo(Trial& t) { run_loss<double, gdpo::Simd>(t, gdpo::dr_grpo_loss, of_dr_grpo()); }
void gspo(Trial& t) { run_loss<float, gdpo::Seq>(t, gdpo::gspo_loss, of_gspo()); }

/// Leaves out a call of prepare() with much work. It makes room for the longest row before it knows
/// whether the pre-passes have what they need.
void leave_out_if_long(Trial& t, const Batch<double>& b) {
  bool too_long = b.tokens > most_work || b.rows > most_work || (t.well_formed() && b.large);
  for (const real x : b.offsets.integers) {
    too_long =
        too_long || (x > static_cast<real>(most_work) && x <= static_cast<real>(most_elements));
  }
  t.leave_out_if(too_long);
}

/// A mask of truncated rows, and importance weights clipped at 2.
void prepare(Trial& t) {
  Batch<double> b(t);
  if (t.in.chance(160)) b.give_logp(b.logp);
  if (t.in.chance(128)) b.give_logp(b.old_logp);
  if (!t.in.hostile(24)) b.give_logp(b.rollout_logp);
  b.give_marks();
  b.give_offsets();
  if (t.in.chance(32)) b.advantages = b.row_column([&] { return t.in.number(); });
  AnyColumn<double> truncated;
  if (!t.in.hostile(24)) truncated = b.row_column([&] { return t.in.below(4) == 3; });
  const bool drops = !t.in.chance(64), weighs = !t.in.chance(64);
  gdpo::prepass::Importance importance;
  importance.clip.hi = t.in.hostile(16) ? odd_number(t.in) : 2;
  importance.clip.lo = 0;
  importance.reach = weighs ? gdpo::Reach::Surrogate : gdpo::Reach::None;
  t.need(importance.clip.hi > 0, "clip");
  b.need_shapes(false);
  t.need(truncated.constructible, "truncated");
  if (drops && t.well_formed()) {
    t.need(truncated.present || b.rows == 0, "truncated");
    b.need_column(truncated);
  }
  if (weighs && t.well_formed() && b.tokens > 0) {
    t.need(b.rollout_logp.given, "batch.rollout_logp");
    t.need(b.old_logp.given || b.logp.given, "batch.logp");
  }
  leave_out_if_long(t, b);
  gdpo::PrepassMemory<double> memory;
  gdpo::TokenBatch<double> prepared;
  if (!t.make_call({"gdpo::prepare", "gdpo::Column"}, [&] {
        gdpo::prepass::Overlong overlong{truncated.make()};
        if (!drops) overlong.reach = gdpo::Reach::None;
        prepared = gdpo::prepare(b.make(), memory, overlong, importance);
      }))
    return;
  if (b.tokens > 0) {  // an array of no elements may be null
    t.compare("mask", bool(prepared.mask), drops || b.mask.given, 0);
    t.compare("weights", bool(prepared.weights), weighs, 0);
  }
  for (index_t i = 0; i < b.rows; ++i) {
    const bool cut = drops && truncated.numbers[static_cast<std::size_t>(i)] != 0;
    for (index_t j = 0; j < b.length(i); ++j) {
      const std::size_t k = b.at(i, j);
      const bool stays = b.valid(k) && !cut;
      if (drops) t.compare("mask of a token", memory.mask[k] != 0, stays, 0);
      if (!weighs || !stays) continue;
      const std::vector<double>& old = b.old_logp.given ? b.old_logp.numbers : b.logp.numbers;
      const real ratio = std::exp(static_cast<real>(old[k] - b.rollout_logp.numbers[k]));
      const real clipped = std::fmin(ratio, static_cast<real>(importance.clip.hi));
      t.compare("weight", memory.weights[k], clipped, 1e-12L);
    }
  }
}

/// The tokens that Clip-B and Clip-V drop.
void entropy_clip(Trial& t) {
  Batch<double> b(t);
  Numbers<double> entropies, tags;
  if (t.in.chance(160)) b.give_logp(b.logp);
  if (t.in.chance(128)) b.give_logp(b.old_logp);
  if (!t.in.hostile(12))
    b.give<double>(entropies, [&] { return t.in.chance(6) ? nan : 0.5 * t.in.below(5); });
  b.give_marks();
  b.give_offsets();
  const bool of_tags = t.in.chance(96);
  if (of_tags ? !t.in.hostile(24) : t.in.chance(24))
    b.give<double>(tags, [&] { return 0.25 * t.in.number(); });
  if (!t.in.hostile(12)) b.advantages = b.row_column([&] { return t.in.number(); });
  gdpo::prepass::EntropyClip pass;
  naive::EntropyClipSettings settings;
  pass.mu = t.in.hostile(12) ? odd_number(t.in) : t.in.pick({0.5, 0.0, 2.5});
  pass.max_share = t.in.hostile(12) ? odd_number(t.in) : t.in.pick({1.0, 0.0, 0.25});
  pass.center = of_tags ? gdpo::EntropyCenter::Tags : gdpo::EntropyCenter::Batch;
  pass.zero_advantage = settings.zero_advantage = t.in.chance(64);
  t.need(pass.mu >= 0, "mu");
  t.need(pass.max_share >= 0 && pass.max_share <= 1, "max_share");
  settings.mu = static_cast<real>(pass.mu);
  settings.max_share = static_cast<real>(pass.max_share), settings.own_mean = !of_tags;
  b.need_one_shape(
      [&](const auto& visit) {
        visit(b.logp), visit(b.old_logp), visit(b.mask), visit(entropies), visit(tags);
      },
      EmptyArrays::OfAnyShape);
  b.need_column(b.advantages);
  if (t.well_formed() && b.tokens > 0) {
    t.need(b.old_logp.given || b.logp.given, "batch.logp");
    t.need(entropies.given, "batch.entropies");
    t.need(tags.given || !of_tags, "batch.tags");
    t.need(b.advantages.present, "batch.advantages");
  }
  leave_out_if_long(t, b);
  gdpo::PrepassMemory<double> memory;
  if (!t.make_call({"gdpo::prepare", "gdpo::Column"}, [&] {
        gdpo::TokenBatch<double> batch = b.make();
        batch.entropies = entropies.view, batch.tags = tags.view;
        gdpo::prepare(batch, memory, pass);
      }))
    return;
  if (b.tokens == 0) return;
  std::vector<naive::EntropyToken> tokens;
  std::vector<std::size_t> places;
  const std::vector<double>& logp = b.old_logp.given ? b.old_logp.numbers : b.logp.numbers;
  for (index_t i = 0; i < b.rows; ++i) {
    for (index_t j = 0; j < b.length(i); ++j) {
      const std::size_t k = b.at(i, j);
      if (!b.valid(k)) {
        t.compare("mask of a masked token", memory.mask[k] != 0, 0, 0);
        continue;
      }
      places.push_back(k);
      tokens.push_back({static_cast<real>(logp[k]), static_cast<real>(entropies.numbers[k]),
                        of_tags ? static_cast<real>(tags.numbers[k]) : 0,
                        static_cast<real>(b.advantages.numbers[static_cast<std::size_t>(i)])});
    }
  }
  const naive::EntropyClipResult expected = naive::entropy_clip(tokens, settings);
  if (expected.margin < 1e-12L) return;  // rounding decides
  for (std::size_t k = 0; k < places.size(); ++k)
    t.compare("mask of a token", memory.mask[places[k]] != 0, !expected.dropped[k], 0);
}

}  // namespace

const std::vector<Case>& token_cases() {
  static const std::vector<Case> cases{{"count", count<float>},  {"loss, seq", grpo},
                                       {"loss, simd", dapo},     {"loss, simd", dr_grpo},
                                       {"loss, seq", gspo},      {"prepare", prepare},
                                       {"prepare", entropy_clip}};
  return cases;
}

}  // namespace fuzz
