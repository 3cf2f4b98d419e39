// labels: sanitizers
// all_merge of mismatch reports: every rank ends with the bits of one report of all rows, however
// the rows are spread; ranks with different settings are refused.
#include "support/mismatch.hpp"

#include <gdpo/dist.hpp>
#include <gdpo/mismatch.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/thread_ranks.hpp"

namespace dist_mismatch_test {

namespace {

using gdpo::MismatchReport;
using test::on_ranks, test::ThreadRank;
constexpr gdpo::index_t width = 4;

/// What all ranks have thrown, if that is the same; else a complaint.
std::string thrown_by_all(const std::vector<std::string>& thrown) {
  for (const std::string& what : thrown)
    if (what != thrown[0]) return "different: " + thrown[0] + " and " + what;
  return thrown[0];
}

struct Tokens {
  std::vector<double> old_logp, rollout_logp;
};
MismatchReport report_of(const Tokens& all, gdpo::index_t first, gdpo::index_t last,
                         const gdpo::MismatchSettings& settings = {}) {
  gdpo::TokenBatch<double> batch;
  batch.old_logp = gdpo::view(all.old_logp.data() + first * width, last - first, width);
  batch.rollout_logp = gdpo::view(all.rollout_logp.data() + first * width, last - first, width);
  return gdpo::mismatch(batch, settings, first);
}

}  // namespace

TEST_CASE("the report of all ranks has the bits of one process", "[dist]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const int ranks = 1 + random.below(5), rows = random.below(9);
    Tokens all;
    for (int k = 0; k < rows * static_cast<int>(width); ++k) {
      all.old_logp.push_back(-3 * random.uniform());
      all.rollout_logp.push_back(all.old_logp.back() + random.uniform() - 0.5);
    }
    std::vector<gdpo::index_t> cuts{0, rows};
    for (int r = 1; r < ranks; ++r) cuts.push_back(random.below(rows + 1));
    std::sort(cuts.begin(), cuts.end());
    const MismatchReport whole = report_of(all, 0, rows);
    std::vector<MismatchReport> got(static_cast<std::size_t>(ranks));
    std::vector<double> sums(got.size());
    CHECK(thrown_by_all(on_ranks(ranks, [&](const ThreadRank& comm) {
            const auto r = static_cast<std::size_t>(comm.rank());
            got[r] =
                gdpo::dist::all_merge(comm, [&] { return report_of(all, cuts[r], cuts[r + 1]); });
            sums[r] = gdpo::dist::all_merge(comm, got[r].k3).value();
          })) == "");
    for (std::size_t r = 0; r < got.size(); ++r) {
      CHECK(mismatch_support::differs(got[r], whole) == "");
      CHECK(sums[r] == sums[0]);
    }
  }
}

TEST_CASE("ranks with different settings are refused; one without rows is not asked", "[dist]") {
  Tokens all{{-1, -2, -1, -2, -1, -2, -1, -2}, std::vector<double>(8, -1.5)};
  gdpo::MismatchSettings other;
  other.clamp = 10;
  const auto call = [&](gdpo::index_t last) {
    return thrown_by_all(on_ranks(2, [&](const ThreadRank& comm) {
      gdpo::dist::all_merge(
          comm, comm.rank() == 0 ? report_of(all, 0, 1) : report_of(all, 1, last, other));
    }));
  };
  CHECK(call(2).find("gdpo::dist::all_merge: settings: given token_low 0.5") == 0);
  CHECK(call(1) == "");
}

}  // namespace dist_mismatch_test
