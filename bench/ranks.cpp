// gdpo_ranks simulates up to 10,000 ranks in one process. It prints what one of them needs, in time
// and bytes, and how rounding errors grow with the number of ranks. The messages of all ranks are
// made first (ranks/recorded.hpp). No network is simulated: what one would take is computed, and
// stands in columns called MODEL. Absolute times depend on the machine and on what else runs there.
//
//     gdpo_ranks [--most-ranks N] [--markdown]
//
// The exit status is 1 where a result is not that of one process, and 2 for bad usage.
#include <cstdlib>
#include <cstring>
#include <gdpo/advantages.hpp>
#include <gdpo/dist.hpp>

#include "ranks/errors.hpp"
#include "ranks/rows.hpp"
#include "ranks/table.hpp"
#include "timing.hpp"
#include "token_data.hpp"

namespace {

using gdpo::index_t;
constexpr std::uint64_t seed = 20260601;
constexpr index_t sequences = 4, width = 32;  // of the loss call of each rank

bool good = true;
void require(bool right, int ranks, const char* what) {
  if (!right) std::fprintf(stderr, "WRONG with %d ranks: %s\n", ranks, what);
  good = good && right;
}

/// The median of what f() returns, the seconds of one call, over 20 ms or five calls.
template <class F>
double median_of(const F& f) {
  std::vector<double> times;
  f();
  for (double all = 0; times.size() < 5 || all < 0.02; all += times.back()) times.push_back(f());
  return quantile(times, 0.5);
}

// ---- rows ----

void time_rows(int ranks, Table& table) {
  const SpreadRows rows(static_cast<std::size_t>(ranks), seed);
  const Recording recording = rehearse(ranks, [&](const auto& comm, int r) {
    const OwnRows own(rows, static_cast<std::size_t>(r));
    gdpo::dist::gather_rows(comm, batch_of(own.rewards, own.prompts), gdpo::view(own.keys));
  });

  const int rank = ranks / 2;
  const ReplayedRank comm(recording, rank);
  const OwnRows mine(rows, static_cast<std::size_t>(rank));
  const auto batch = batch_of(mine.rewards, mine.prompts);
  const auto gather = [&] { return gdpo::dist::gather_rows(comm, batch, gdpo::view(mine.keys)); };
  const double gathering = median_of([&] { return comm.time_without_messages([&] { gather(); }); });
  const auto all = gather();

  gdpo::Workspace workspace;
  std::vector<float> got(rows.prompts.size()), want(got.size()), own(mine.keys.size());
  const auto compute = [&] {
    gdpo::advantages_into(gdpo::simd, all.batch(), gdpo::Gdpo{}, gdpo::view(got), workspace);
  };
  const auto choose = [&] { all.own_into(gdpo::view(std::as_const(got)), gdpo::view(own)); };
  const double computing = median_of([&] { return comm.time_without_messages(compute); });
  const double choosing = time_of(choose, 0.01);  // too short to be timed alone

  gdpo::advantages_into(gdpo::simd, batch_of(rows.rewards, rows.prompts), gdpo::Gdpo{},
                        gdpo::view(want), workspace);
  require(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0, ranks,
          "advantages are not those of one process");
  bool same = all.split_groups() == static_cast<index_t>(got.size() / SpreadRows::group);
  for (std::size_t i = 0; i < own.size(); ++i)
    same = same && own[i] == want[rows.of_rank[static_cast<std::size_t>(rank)][i]];
  require(same, ranks, "own() takes other rows, or groups were not split");

  table.add({std::to_string(ranks), std::to_string(got.size()), digits(comm.received() / 1e6),
             digits(gathering * 1e3), digits(gathering * 1e9 / static_cast<double>(got.size())),
             digits(computing * 1e3), digits(choosing * 1e6),
             digits(comm.modeled_network() * 1e3)});
}

// ---- records ----

/// Times all_merge of record(r) on one rank; returns the sum.
template <class Record>
auto time_merge(int ranks, const char* name, Table& table, const Record& record) {
  const auto merge = [&](const auto& comm, int r) {
    return gdpo::dist::all_merge(comm, record(r));
  };
  const Recording recording = rehearse(ranks, merge);
  const ReplayedRank comm(recording, ranks / 2);
  const auto own = record(ranks / 2);
  const double seconds = median_of(
      [&] { return comm.time_without_messages([&] { gdpo::dist::all_merge(comm, own); }); });
  table.add({name, std::to_string(ranks), digits(comm.received() / 1e6), digits(seconds * 1e6),
             digits(seconds * 1e9 / ranks), digits(comm.modeled_network() * 1e6)});
  return merge(comm, ranks / 2);
}

/// Merges counts, metrics and results of real loss calls, one on each rank, and raises `errors` to
/// how far they are from those of one call over all rows.
void time_records(int ranks, Table& table, Errors& errors) {
  TokenData data(ranks * sequences, width, 0.1, static_cast<unsigned>(seed));
  std::vector<float> one_process(data.gradient.size());
  const auto part = [&](index_t first, index_t rows) {
    const auto tokens = [&](const auto& array) {
      return gdpo::view(std::as_const(array).data() + first * width, rows, width);
    };
    gdpo::TokenBatch<float> batch;
    batch.logp = tokens(data.logp), batch.old_logp = tokens(data.old_logp);
    batch.ref_logp = tokens(data.ref_logp), batch.mask = tokens(data.mask);
    batch.advantages = gdpo::view(std::as_const(data.advantages).data() + first, rows);
    return batch;
  };
  const auto own = [&](int r) { return part(r * sequences, sequences); };
  const auto loss = [](const gdpo::TokenBatch<float>& batch, const gdpo::Normalizer& n, float* to) {
    return gdpo::grpo_loss(batch, n, gdpo::view(to, batch.advantages.size(), width));
  };

  const gdpo::Normalizer counts =
      time_merge(ranks, "Normalizer", table, [&](int r) { return gdpo::count(own(r)); });
  std::vector<gdpo::LossResult> results;
  for (int r = 0; r < ranks; ++r)
    results.push_back(loss(own(r), counts, data.gradient.data() + r * sequences * width));
  const auto of_rank = [&](int r) -> const gdpo::LossResult& {
    return results[static_cast<std::size_t>(r)];
  };
  time_merge(ranks, "LossMetrics", table, [&](int r) { return of_rank(r).metrics; });
  time_merge(ranks, "LossResult", table, of_rank);

  const auto whole = part(0, ranks * sequences);
  const gdpo::LossResult want = loss(whole, gdpo::count(whole), one_process.data());
  require(std::memcmp(one_process.data(), data.gradient.data(),
                      one_process.size() * sizeof(float)) == 0,
          ranks, "gradients are not those of one process");
  const gdpo::Normalizer& n = want.normalizer;
  require(counts.tokens == n.tokens && counts.rows == n.rows &&
              counts.non_empty_rows == n.non_empty_rows,
          ranks, "counts are not those of one process");
  const auto numbers = [](const gdpo::LossResult& r) {
    return std::vector<double>{r.loss, r.policy_loss, r.kl_loss, r.metrics.kl.sum,
                               r.metrics.ratio.row_sum};
  };
  std::vector<Exact> exact;
  for (const double x : numbers(want)) exact.push_back({x, std::fabs(x)});
  compare(
      errors, results, exact,
      [](const gdpo::LossResult& a, const gdpo::LossResult& b) { return merge(a, b); }, numbers);
}

// ---- errors ----

void add_errors(Table& table, const char* what, int ranks, const Errors& errors, bool bounded) {
  const double ulp = 0x1p-53, bound = 1e-12;
  require(errors.merged * ulp < bound, ranks, what);
  // Every addition on the longest way to the result rounds once.
  const int blocks = (ranks + 255) / 256, longest = (std::min)(ranks, 256) - 1 + blocks - 1;
  table.add({what, std::to_string(ranks), digits(errors.merged), digits(errors.one_by_one),
             bounded ? std::to_string(longest) : "-", bounded ? std::to_string(ranks - 1) : "-",
             errors.merged * ulp < bound ? "yes" : "NO"});
}

void measure_errors(int ranks, const Errors& of_results, Table& table) {
  UnitRandom random(seed);
  Errors one_sign, both_signs, measurement, moments;
  for (int trial = 0; trial < 5; ++trial) {
    errors_of_metrics(one_sign, ranks, 0, random);
    errors_of_metrics(both_signs, ranks, -1, random);
    errors_of_measurement(measurement, ranks, random);
    errors_of_moments(moments, ranks, random);
  }
  add_errors(table, "LossMetrics, sums of one sign", ranks, one_sign, true);
  add_errors(table, "LossMetrics, sums of both signs", ranks, both_signs, true);
  add_errors(table, "SumCount, terms of 1e-3 to 1e3", ranks, measurement, true);
  add_errors(table, "Moments, mean and m2", ranks, moments, false);
  add_errors(table, "LossResult, from one process", ranks, of_results, false);
}

struct Options {
  int most_ranks = 10000;
  bool markdown = false;
};

void print_tables(const Options& options) {
  Table rows(
      "Rows: 64 a rank, 4 float rewards, groups of 8 by id, keys; one rank, one thread",
      {"ranks", "rows", "received, MB", "gather_rows without messages, ms", "the same, ns a row",
       "advantages of all rows, simd, ms", "own rows chosen, us", "MODEL: network, ms"});
  Table records("Records: all_merge on one rank, one thread",
                {"record", "ranks", "received, MB", "all_merge without messages, us",
                 "the same, ns a rank", "MODEL: network, us"});
  Table growth(
      "Relative errors of sums over ranks, in units of 2^-53: the largest that was seen",
      {"what", "ranks", "all_merge: blocks of 256 ranks", "one rank after the other",
       "the same, bound by additions: blocks", "one after the other", "all_merge below 1e-12"});
  for (const int ranks : {8, 64, 1024, 10000}) {
    if (ranks > options.most_ranks) break;
    Errors of_results;
    time_rows(ranks, rows);
    time_records(ranks, records, of_results);
    measure_errors(ranks, of_results, growth);
  }
  std::printf(
      "Seed %llu. Times are measured: medians of at least five calls, for own rows a mean. The\n"
      "columns MODEL are computed: messages * ceil(log2 ranks) * 5 us + received / 25 GB/s, with "
      "two\n"
      "messages a call.\n",
      static_cast<unsigned long long>(seed));
  for (const Table* table : {&rows, &records, &growth}) table->print(options.markdown);
}

}  // namespace

int main(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--markdown") {
      options.markdown = true;
    } else if (word == "--most-ranks" && i + 1 < count && std::atoi(words[i + 1]) >= 8) {
      options.most_ranks = std::atoi(words[++i]);
    } else {
      std::fputs("usage: gdpo_ranks [--most-ranks N, at least 8] [--markdown]\n", stderr);
      return 2;
    }
  }
  print_tables(options);
  return good ? 0 : 1;
}
