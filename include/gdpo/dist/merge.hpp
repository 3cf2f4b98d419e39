#pragma once
// all_merge: the records of all ranks merged in rank order.
#include <gdpo/advantage/combined_moments.hpp>
#include <gdpo/advantage/report.hpp>
#include <gdpo/constraint/shortfall.hpp>
#include <gdpo/dist/agree.hpp>
#include <gdpo/logits/distillation_result.hpp>
#include <gdpo/loss/loss_result.hpp>
#include <gdpo/mismatch/report.hpp>
#include <gdpo/prepass/report.hpp>
#include <gdpo/value/value_result.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

// The sum of the records of two ranks. Where the library has a merge() of its own, it is that.
template <class X>
X sum_of(const X& a, const X& b) {
  return gdpo::merge(a, b);
}
inline double sum_of(double a, double b) { return a + b; }
inline Normalizer sum_of(const Normalizer& a, const Normalizer& b) { return a + b; }
inline SumCount sum_of(const SumCount& a, const SumCount& b) {
  return {a.sum + b.sum, a.count + b.count};
}
template <class X>
std::vector<X> sum_of(const std::vector<X>& a, const std::vector<X>& b) {
  std::vector<X> all;
  for (std::size_t i = 0; i < a.size(); ++i) all.push_back(sum_of(a[i], b[i]));
  return all;
}

/// Adds the records of all ranks in the order of the ranks. Above 256 they form a tree: blocks of
/// 256 consecutive ranks, whose sums are added in the same way. The tree is an order of additions;
/// messages do not follow it.
template <class X>
X sum_in_rank_order(std::vector<X> parts) {
  constexpr std::size_t block = 256;
  while (parts.size() > 1) {
    std::size_t blocks = 0;
    for (std::size_t first = 0; first < parts.size(); first += block) {
      X sum = std::move(parts[first]);
      for (std::size_t r = first + 1; r < (std::min)(first + block, parts.size()); ++r)
        sum = sum_of(sum, parts[r]);
      parts[blocks++] = std::move(sum);
    }
    parts.resize(blocks);
  }
  return std::move(parts[0]);
}

/// Whether all_merge() takes an X, apart from lists.
template <class X>
constexpr bool is_record_v =
    std::is_same_v<X, Normalizer> || std::is_same_v<X, Moments> ||
    std::is_same_v<X, CombinedMoments> || std::is_same_v<X, LossMetrics> ||
    std::is_same_v<X, LossResult> || std::is_same_v<X, ValueMetrics> ||
    std::is_same_v<X, ValueLossResult> || std::is_same_v<X, DistillationMetrics> ||
    std::is_same_v<X, DistillationResult> || std::is_same_v<X, GroupReport> ||
    std::is_same_v<X, SumCount> || std::is_same_v<X, ConstraintMetrics> ||
    std::is_same_v<X, MismatchReport> || std::is_same_v<X, GateReport> ||
    std::is_same_v<X, ExactSum> || std::is_same_v<X, double>;
template <class X>
constexpr bool is_record_v<std::vector<X>> = is_record_v<X>;

/// Writes an X to a message and reads it back: its bytes, one after the other.
template <class X>
struct Serializer {
  static_assert(std::is_trivially_copyable_v<X>,
                "a record is sent as its bytes, unless Serializer is specialized");
  static void put(Contribution& message, const X& x) { message.put(&x, 1); }
  static X get(RecordReader& reader) { return reader.get<X>(); }
};
template <class X>
struct Serializer<std::vector<X>> {
  static void put(Contribution& message, const std::vector<X>& x) {
    const std::uint64_t n = x.size();
    message.put(&n, 1);
    for (const X& item : x) Serializer<X>::put(message, item);
  }
  static std::vector<X> get(RecordReader& reader) {
    std::vector<X> x;
    const auto n = reader.get<std::uint64_t>();
    for (std::uint64_t i = 0; i < n; ++i) x.push_back(Serializer<X>::get(reader));
    return x;
  }
};
template <>
struct Serializer<GroupReport> {
  /// Calls f for each member that merge() reads; the others follow from these.
  template <class Report, class F>
  static void for_each(Report& r, const F& f) {
    f(r.rewards), f(r.pairs);
    for (const ReportCount& count : report_counts) f(r.*count.member);
    for_each_report_list([&](const auto member) { f(r.*member); });
    for (const auto& moments : report_moments) f(r.*moments.second);
    for (const auto& sum : report_sums) f(r.*sum.second);
  }
  static void put(Contribution& message, const GroupReport& r) {
    for_each(r, [&](const auto& x) { Serializer<std::decay_t<decltype(x)>>::put(message, x); });
  }
  static GroupReport get(RecordReader& reader) {
    GroupReport r;
    for_each(r, [&](auto& x) { x = Serializer<std::decay_t<decltype(x)>>::get(reader); });
    derive(r);
    return r;
  }
};

/// What must be the same on all ranks for their records to be added: the type, and the length of a
/// list.
template <class X>
std::string record_settings(const X&) {
  return type_name<X>();
}
template <class X>
std::string record_settings(const std::vector<X>& list) {
  return type_name<X>() + ", " + std::to_string(list.size()) + " of them";
}

/// Throws, the same on all ranks, where records of ranks do not belong to one step.
template <class X>
void check_records(const char*, const std::vector<X>&) {}
/// Losses have been divided by the same counts, and by those of all their rows. A rank without rows
/// may have no counts.
template <class Result>
void check_losses(const char* function, const std::vector<Result>& parts) {
  const char* const needed =
      "losses that were divided by the counts of the whole step: all_merge(comm, count)";
  std::size_t first = parts.size();
  Normalizer total;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].metrics.rows == 0) continue;
    if (first == parts.size()) first = r;
    total += seen_by(parts[r].metrics);
    const Normalizer &a = parts[first].normalizer, &b = parts[r].normalizer;
    if (!same_counts(a, b)) {
      fail_between(function, "normalizer", counts_in_words(a), first, counts_in_words(b), r,
                   needed);
    }
  }
  if (first == parts.size()) return;
  const Normalizer& n = parts[first].normalizer;
  for (const StepCount& c : step_counts) {
    const bool divides = static_cast<index_t>(c.over) == parts[first].over;
    const double counted = n.*c.count, held = total.*c.count;
    if ((c.over != Over::Rows && !divides) || !(counted > 0) || held <= counted) continue;
    contract::fail(function, "normalizer",
                   contract::text(counted) + " " + c.name + ", for losses of " +
                       contract::text(held) + " " + c.name + " on all ranks",
                   needed);
  }
}
inline void check_records(const char* function, const std::vector<LossResult>& parts) {
  check_losses(function, parts);
}
inline void check_records(const char* function, const std::vector<ValueLossResult>& parts) {
  check_losses(function, parts);
}
inline void check_records(const char* function, const std::vector<DistillationResult>& parts) {
  check_losses(function, parts);
}
/// Reports are of the same rewards. A rank without rows may have none.
inline void check_records(const char* function, const std::vector<GroupReport>& parts) {
  std::size_t first = parts.size();
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].rewards.empty()) continue;
    if (first == parts.size()) first = r;
    const std::size_t a = parts[first].rewards.size(), b = parts[r].rewards.size();
    if (a != b) {
      fail_between(function, "report", std::to_string(a) + " rewards", first, std::to_string(b), r,
                   "the same rewards on all ranks");
    }
  }
}
/// Reports of a mismatch have the same settings. A rank without rows may have others.
inline void check_records(const char* function, const std::vector<MismatchReport>& parts) {
  std::size_t first = parts.size();
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].rows == 0) continue;
    if (first == parts.size()) first = r;
    if (!same_settings(parts[first].settings, parts[r].settings)) {
      fail_between(function, "settings", settings_in_words(parts[first].settings), first,
                   settings_in_words(parts[r].settings), r, "the same settings on all ranks");
    }
  }
}
/// Reports of a gate are of one gate. A rank without rows may have others.
inline void check_records(const char* function, const std::vector<GateReport>& parts) {
  std::size_t first = parts.size();
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].rows == 0) continue;
    if (first == parts.size()) first = r;
    if (!same_gate(parts[first], parts[r])) {
      fail_between(function, "report", gate_in_words(parts[first]), first, gate_in_words(parts[r]),
                   r, "reports of one gate on all ranks");
    }
  }
}
/// In lists of one length, the records at each place belong together.
template <class X>
void check_records(const char* function, const std::vector<std::vector<X>>& parts) {
  for (std::size_t i = 0; i < parts[0].size(); ++i) {
    std::vector<X> records;
    for (const std::vector<X>& list : parts) records.push_back(list[i]);
    check_records(function, records);
  }
}

template <class X>
constexpr bool is_list_of_lists_v = false;
template <class X>
constexpr bool is_list_of_lists_v<std::vector<std::vector<X>>> = true;

/// What local() returns on each rank, in the order of the ranks: the collective `function`. An X is
/// copied as bytes, unless Serializer is specialized for it.
template <class X, class Comm, class Local>
std::vector<X> gathered(const char* function, const Comm& comm, const Local& local) {
  const Records records = exchange(function, comm, [&](Contribution& mine) {
    const X& record = local();
    mine.settings = record_settings(record);
    Serializer<X>::put(mine, record);
  });
  std::vector<X> parts;
  parts.reserve(static_cast<std::size_t>(records.ranks()));
  for (int rank = 0; rank < records.ranks(); ++rank) {
    RecordReader reader(records, rank);
    parts.push_back(Serializer<X>::get(reader));
  }
  return parts;
}

/// all_merge() of the record that local() returns, in the name of `function`.
template <class X, class Comm, class Local>
X merged(const char* function, const Comm& comm, const Local& local) {
  static_assert(!is_list_of_lists_v<X>, "all_merge takes lists, and no lists of lists");
  static_assert(is_record_v<X>,
                "all_merge takes Normalizer, Moments, CombinedMoments, LossMetrics, LossResult, "
                "ValueMetrics, ValueLossResult, DistillationMetrics, DistillationResult, "
                "GroupReport, SumCount, ConstraintMetrics, MismatchReport, GateReport, ExactSum "
                "and double, or a std::vector of them");
  std::vector<X> parts = gathered<X>(function, comm, local);
  check_records(function, parts);
  X sum = sum_in_rank_order(std::move(parts));
  // These are the counts of no single batch, also where there is one rank.
  if constexpr (std::is_same_v<X, Normalizer>) sum.counted = CountedBatch{};
  return sum;
}

}  // namespace detail

namespace dist {

/// The sum of what all ranks have: one record from each, added on every rank in the order of the
/// ranks, so that all ranks end with the same bits.
///
///     const auto step = gdpo::dist::all_merge(comm, [&] { return gdpo::count(batch); });
///
/// x: the record of this rank, or a function that returns it. What the function throws all ranks
/// throw, as in agree(). The record is one of these, or a std::vector of them, of one length on all
/// ranks:
///
///     Normalizer         the counts of all ranks, before the first loss. `given` is added up as
///                        well, so set it on the result
///     CombinedMoments    for finish() (advantage/two_stages.hpp)
///     LossMetrics        what was measured; a rank without rows may pass LossMetrics{}. The row of
///                        a NonFinite is that of the first rank that has one
///     LossResult         the losses add up, the metrics merge. Refused are ranks that have divided
///                        by different counts, and losses of more rows than were counted, or of
///                        more than the count that divided: some rank has forgotten the others
///     ValueMetrics, ValueLossResult
///                        the same of a critic (value/value_loss.hpp)
///     DistillationMetrics, DistillationResult
///                        the same of distillation from logits (logits/distill.hpp)
///     GroupReport        as if the groups of rank 0 came first; each group on one rank. The report
///                        of rows that were gathered is that of all rows already: do not merge it
///     SumCount, ConstraintMetrics
///                        for the controller of constraints: pid.update(...) on every rank
///     MismatchReport, GateReport, ExactSum
///                        sums are exact: the bits of one process, whatever rows each rank has.
///                        Refused are ranks with different settings
///     Moments, double    of anything else, such as the gradient of a small policy
///
/// Up to 256 ranks are added one after the other. Above, blocks of 256 consecutive ranks are, and
/// then their sums. Counts and ranges are exact; sums are within 1e-12 relative of those of one
/// process, by the rounding of additions in another order. Bytes: 64 and the record from each rank,
/// and 8 for the length of a list.
template <class Comm, class X>
auto all_merge(const Comm& comm, const X& x) {
  using namespace gdpo::detail;
  constexpr const char* function = "gdpo::dist::all_merge";
  if constexpr (std::is_invocable_v<const X&>) {
    using Record = std::decay_t<std::invoke_result_t<const X&>>;
    return merged<Record>(function, comm, [&] { return x(); });
  } else {
    // NOLINTNEXTLINE(bugprone-return-const-ref-from-parameter): it is called before this returns
    return merged<X>(function, comm, [&]() -> const X& { return x; });
  }
}

}  // namespace dist
GDPO_END_NAMESPACE
