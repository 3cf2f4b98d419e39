#pragma once
// The host of the estimator: loops over groups and columns, and what size and degeneracy leave to the policies. The
// formulas are in the policies. This is the general path; dense_groups.hpp takes the groups that need nothing special.
#include <algorithm>
#include <gdpo/advantage/dense_groups.hpp>
#include <gdpo/advantage/report.hpp>
#include <gdpo/core/exec.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a row is to the batch statistics.
enum class RowState : unsigned char {
  Counted,  ///< in all of them
  Unused,   ///< valid == 0: in none; gets what its group's moments give
  Excluded  ///< no reward at all, used or not: in none; gets 0
};

template <class T, class Groups, class Estimator>
class Evaluation;

/// One call of advantages_into up to the combined values: fills work.row_sums and work.row_state. A *column* is what is
/// centred and scaled by itself: each reward with a weight (NormalizeThenSum), or their weighted sum (SumThenNormalize).
template <class T, class Groups, class Baseline, class Scale, class Combine, class Renorm>
class Evaluation<T, Groups, GroupAdvantage<Baseline, Scale, Combine, Renorm>> {
  static constexpr bool sums_first = std::is_same_v<Combine, combine::SumThenNormalize>;
  static constexpr bool centres = !std::is_same_v<Baseline, baseline::None>;
  static constexpr bool once_a_group = per_group_v<Baseline> && per_group_v<Scale>;

 public:
  using Estimator = GroupAdvantage<Baseline, Scale, Combine, Renorm>;
  using Reader = RewardReader<T, Groups, sums_first>;
  using Order = typename Groups::Order;

  /// The combined values of a group sum to 0, groups with a raw singleton apart.
  static constexpr bool zero_sum = zero_sum_v<Baseline> && per_group_v<Scale>;

  Evaluation(const char* function, const RewardBatch<T, Groups>& batch, const Estimator& estimator, Workspace& work,
             GroupReport* report)
      : function_(function),
        batch_(batch),
        estimator_(estimator),
        work_(work),
        report_(report),
        reader_(function, batch, estimator, work),
        groups_(batch.groups.count(batch.rewards.extent[0])),
        columns_(sums_first ? 1 : static_cast<index_t>(work.channels.size())),
        scale_reads_batch_(ReadsBatch<Scale>::of(estimator.scale)),
        reads_batch_(scale_reads_batch_ || ReadsBatch<Baseline>::of(estimator.baseline)) {
    Checks<Baseline>::run(estimator.baseline, function);
    Checks<Scale>::run(estimator.scale, function);
    index_t longest = 0;
    for (index_t g = 0; g < groups_; ++g) longest = (std::max)(longest, batch.groups.length(g));
    const std::size_t rows = at(batch.rewards.extent[0]), members = at(longest);
    for (auto* v :
         {&work.column, &work.scores, &work.magnitudes, &work.values, &work.tokens, &work.weights, &work.external}) {
      v->resize(members);
    }
    work.terms.resize(members * 8);
    work.used.assign(members, 1);
    work.present.resize(members);
    work.batch_stats.assign(at(columns_), BatchStat{});
    work.row_sums.resize(rows);
    work.row_weights.resize(rows);
    if (reads_batch_ || report) {
      work.raw.reserve((std::max)(rows, at(groups_)));
      work.centred.reserve(rows);
    }
    work.row_state.assign(rows, static_cast<unsigned char>(RowState::Counted));
    if (report) report->degenerate.assign(at(groups_), 1);  // what an empty group is
  }

  void operator()() {
    for (index_t c = 0; reads_batch_ && c < columns_; ++c) read_batch(c);
    if constexpr (zero_sum && takes_lanes_v<Baseline> && takes_lanes_v<Scale>) {
      DenseGroups<T, Groups, Estimator, Reader, sums_first> dense(batch_, estimator_, reader_, work_);
      bool equal[decltype(dense)::most_groups];
      for (index_t g = 0, done = 0; g < groups_; g += (std::max<index_t>)(done, 1)) {
        done = reads_batch_ ? 0 : dense.combine(g, equal);
        if (done == 0) combine_group(g);
        for (index_t p = 0; report_ && p < done; ++p) report_->degenerate[at(g + p)] = equal[p];
      }
    } else {
      for (index_t g = 0; g < groups_; ++g) combine_group(g);
    }
  }

  bool any_raw_singleton() const { return raw_singleton_; }
  bool every_row_counts() const { return every_row_counts_; }
  const Reader& reader() const { return reader_; }

 private:
  // ---- one group ------------------------------------------------------------------------------------------------------

  index_t row(index_t k) const { return batch_.groups.row(group_, k); }
  bool used(index_t k) const { return work_.used[at(k)] != 0; }
  /// Has no reward and is to be excluded. Known when all columns were read.
  bool excluded(index_t k) const { return reader_.excludes() && !work_.present[at(k)]; }
  bool missing(index_t k) const { return reader_.skips() && math::is_nan(work_.column[at(k)]); }

  void begin_group(index_t g) {
    group_ = g;
    members_ = batch_.groups.length(g);
    std::fill_n(work_.scores.data(), members_, 0.0);
    std::fill_n(work_.magnitudes.data(), members_, 0.0);
    std::fill_n(work_.present.data(), members_, static_cast<unsigned char>(0));
    for (index_t k = 0; batch_.valid && k < members_; ++k) work_.used[at(k)] = batch_.valid(row(k)) != 0;
    raw_in_group_ = false;
  }

  /// score_k = sum over the columns of w (x - baseline) multiplier, in blocks of 8 columns, the terms of a block as a tree.
  void combine_group(index_t g) {
    begin_group(g);
    if (members_ == 0) return;
    for (index_t first = 0; first < columns_; first += 8) {
      std::fill_n(work_.terms.data(), members_ * 8, 0.0);
      const index_t lanes = (std::min<index_t>)(8, columns_ - first);
      for (index_t j = 0; j < lanes; ++j) add_terms(first + j, j);
      for (index_t k = 0; k < members_; ++k) {
        work_.scores[at(k)] += tree_sum(math::Pack<8>::load(work_.terms.data() + k * 8));
      }
    }
    end_group();
  }

  /// Degeneracy of the combined values, then scores -> row_sums.
  void end_group() {
    double low = math::infinity, high = -math::infinity, magnitude = 0;
    bool unknown = false;
    for (index_t k = 0; k < members_; ++k) {
      if (!used(k) || excluded(k)) continue;
      const double score = work_.scores[at(k)];
      unknown = unknown || math::is_nan(score);
      low = (math::min)(low, score);
      high = (math::max)(high, score);
      magnitude = (math::max)(magnitude, work_.magnitudes[at(k)]);
    }
    bool equal = !unknown && !(low < high);
    if (!sums_first && !unknown && !math::is_inf(magnitude)) {
      equal = equal || high - low <= rounding_of_sum(columns_, magnitude);
    }
    if (report_) report_->degenerate[at(group_)] = equal;
    for (index_t k = 0; k < members_; ++k) {
      const std::size_t i = at(row(k));
      const RowState state = excluded(k) ? RowState::Excluded : used(k) ? RowState::Counted : RowState::Unused;
      work_.row_sums[i] = zero_sum && equal && !raw_in_group_ && used(k) ? 0.0 : work_.scores[at(k)];
      work_.row_state[i] = static_cast<unsigned char>(state);
      every_row_counts_ = every_row_counts_ && state == RowState::Counted;
    }
  }

  // ---- what size and degeneracy leave to the policies -------------------------------------------------------------------

  enum class Rule { Policies, Zero, Raw, Nan };

  Rule rule_of(const GroupStat& stat) {
    if (centres && stat.unknown) return Rule::Nan;
    if (stat.n == 0) return Rule::Zero;
    if (centres && stat.n == 1) {
      switch (estimator_.singleton) {
        case Singleton::Zero:
          return Rule::Zero;
        case Singleton::Nan:
          return Rule::Nan;
        case Singleton::Raw:
          raw_singleton_ = raw_in_group_ = true;
          return Rule::Raw;
        case Singleton::Error:
          contract::fail(function_, "groups", "one used row in group " + contract::text(group_),
                         "two or more, because singleton is Error");
      }
    }
    return stat.degenerate && from_group_v<Baseline> ? Rule::Zero : Rule::Policies;
  }
  Split<double> base_of(Rule rule, const MemberArgs& args) const {
    if (rule != Rule::Policies) return {rule == Rule::Nan ? math::nan() : 0.0, 0.0};
    const auto base = estimator_.baseline(args);
    if constexpr (std::is_same_v<decltype(base), const Split<double>>) {
      return base;
    } else {
      return {static_cast<double>(base), 0.0};
    }
  }
  double factor_of(Rule rule, const MemberArgs& args, double centred) const {
    return rule == Rule::Zero ? 0.0 : rule == Rule::Nan ? 1.0 : estimator_.scale(ScaleArgs{args, centred});
  }

  // ---- one column of one group --------------------------------------------------------------------------------------------

  /// Reads column c. visit(k, args, rule) for every member with a value: the used ones, and the unused ones with own = -1.
  template <class Visit>
  void visit_members(index_t c, const Visit& visit) {
    double* x = work_.column.data();
    index_t n = 0;
    for (index_t k = 0; k < members_; ++k) {
      const index_t i = row(k);
      x[k] = sums_first ? reader_.weighted_sum(i, work_.magnitudes[at(k)]) : reader_(i, work_.channels[at(c)]);
      if (math::is_nan(x[k]) && reader_.skips()) continue;
      work_.present[at(k)] = 1;
      if (!used(k)) continue;
      work_.values[at(n)] = x[k];
      if (batch_.tokens) work_.tokens[at(n)] = batch_.tokens(i);
      if (batch_.weights) work_.weights[at(n)] = batch_.weights(i);
      if (batch_.baseline) work_.external[at(n)] = batch_.baseline(i);
      ++n;
    }
    GroupStat stat = group_stat(Order{}, work_.values.data(), n);
    order_statistics(stat, work_.values.data(), n);
    if (sums_first && n > 0 && !stat.degenerate && !stat.unknown) {
      double magnitude = 0;
      for (index_t k = 0; k < members_; ++k) {
        if (used(k)) magnitude = (math::max)(magnitude, work_.magnitudes[at(k)]);
      }
      stat.degenerate = !math::is_inf(magnitude) && stat.max - stat.min <= rounding_of_sum(reader_.terms(), magnitude);
      if (stat.degenerate) stat.m2 = 0;
    }
    const auto column = [n](const std::vector<double>& values, bool given) {
      return given ? gdpo::view(values.data(), n) : View<const double, 1>{};
    };
    MemberArgs args{column(work_.values, true),
                    column(work_.tokens, static_cast<bool>(batch_.tokens)),
                    column(work_.weights, static_cast<bool>(batch_.weights)),
                    column(work_.external, static_cast<bool>(batch_.baseline)),
                    stat,
                    work_.batch_stats[at(c)],
                    -1,
                    stat.mean};
    const Rule rule = rule_of(stat);
    index_t own = 0;
    for (index_t k = 0; k < members_; ++k) {
      if (missing(k)) continue;
      args.own = used(k) ? own++ : -1;
      args.value = x[k];
      visit(k, args, rule);
    }
  }

  /// terms (K, 8) of column c into lane j. A factor 0 selects 0, a missing entry adds 0.
  void add_terms(index_t c, index_t j) {
    const double weight = sums_first ? 1.0 : work_.channel_weights[at(c)];
    Split<double> base{0.0, 0.0};
    double factor = 0;
    bool known = false;
    visit_members(c, [&](index_t k, const MemberArgs& args, Rule rule) {
      if (!known || !per_group_v<Baseline>) base = base_of(rule, args);
      const double centred = centre(args.value, base);
      if (!known || !once_a_group) factor = math::mul(weight, factor_of(rule, args, centred));
      known = true;
      const double term = math::is_zero(factor) ? 0.0 : math::mul(centred, factor);
      work_.terms[at(k * 8 + j)] = term;
      if (!sums_first) work_.magnitudes[at(k)] += math::abs(term);
    });
  }

  // ---- statistics of one column over the batch ------------------------------------------------------------------------------

  /// Of all used values, then of what the baseline leaves of them.
  void read_batch(index_t c) {
    BatchStat& batch = work_.batch_stats[at(c)];
    work_.raw.clear();
    visit_used(c, [&](const MemberArgs& args, Rule) {
      work_.raw.push_back(args.value);
      if (args.value != 0) ++batch.nonzero;
    });
    batch.used = static_cast<index_t>(work_.raw.size());
    batch.raw = moments_of(Order{}, work_.raw.data(), nullptr, batch.used);
    if (!scale_reads_batch_) return;
    work_.centred.clear();
    visit_used(c, [&](const MemberArgs& args, Rule rule) {
      work_.centred.push_back(rule == Rule::Zero ? 0.0 : centre(args.value, base_of(rule, args)));
    });
    batch.centred = moments_of(Order{}, work_.centred.data(), nullptr, batch.used);
  }
  template <class Visit>
  void visit_used(index_t c, const Visit& visit) {
    for (index_t g = 0; g < groups_; ++g) {
      begin_group(g);
      visit_members(c, [&](index_t, const MemberArgs& args, Rule rule) {
        if (args.own >= 0) visit(args, rule);
      });
    }
  }

  const char* function_;
  const RewardBatch<T, Groups>& batch_;
  const Estimator& estimator_;
  Workspace& work_;
  GroupReport* report_;
  Reader reader_;
  index_t groups_, columns_;
  bool scale_reads_batch_, reads_batch_;
  bool raw_singleton_ = false, every_row_counts_ = true;
  // of the group at hand
  index_t group_ = 0, members_ = 0;
  bool raw_in_group_ = false;
};

}  // namespace detail
GDPO_END_NAMESPACE
