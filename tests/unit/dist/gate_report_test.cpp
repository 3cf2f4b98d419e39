// labels: sanitizers
// all_merge of reports of a gate: every rank ends with the bits of one report of all rows; ranks
// with other gates are refused.
#include <gdpo/dist.hpp>
#include <gdpo/prepass.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/thread_ranks.hpp"

namespace dist_gate_report_test {

namespace {

using gdpo::GateReport;
using test::on_ranks, test::ThreadRank;
constexpr gdpo::index_t width = 3;

GateReport report_of(const std::vector<double>& old_logp, const std::vector<double>& rollout_logp,
                     gdpo::index_t first, gdpo::index_t last, double max = 1.1) {
  gdpo::TokenBatch<double> batch;
  batch.old_logp = gdpo::view(old_logp.data() + first * width, last - first, width);
  batch.rollout_logp = gdpo::view(rollout_logp.data() + first * width, last - first, width);
  gdpo::prepass::Gate gate;
  gate.max = max;
  return gdpo::gate_report(batch, gate);
}

}  // namespace

TEST_CASE("a gate's report of all ranks has the numbers of one process", "[dist]") {
  Random random(3);
  std::vector<double> old_logp, rollout_logp;
  for (int k = 0; k < 7 * static_cast<int>(width); ++k) {
    old_logp.push_back(-3 * random.uniform());
    rollout_logp.push_back(old_logp.back() + random.uniform() - 0.5);
  }
  const GateReport whole = report_of(old_logp, rollout_logp, 0, 7);
  const gdpo::index_t cuts[] = {0, 2, 2, 7};
  for (const std::string& what : on_ranks(3, [&](const ThreadRank& comm) {
         const int r = comm.rank();
         const GateReport all =
             gdpo::dist::all_merge(comm, report_of(old_logp, rollout_logp, cuts[r], cuts[r + 1]));
         for (const gdpo::detail::GateMetric& metric : gdpo::detail::gate_metrics) {
           if (gdpo::math::bits_of(metric.of(all)) != gdpo::math::bits_of(metric.of(whole)))
             throw std::runtime_error(metric.name);
         }
       })) {
    CHECK(what == "");
  }
  for (const std::string& what : on_ranks(2, [&](const ThreadRank& comm) {
         const int r = comm.rank();
         gdpo::dist::all_merge(comm, report_of(old_logp, rollout_logp, r, r + 1, 1.1 + r));
       })) {
    CHECK(what.find("gdpo::dist::all_merge: report: given bounds -inf") == 0);
  }
}

}  // namespace dist_gate_report_test
