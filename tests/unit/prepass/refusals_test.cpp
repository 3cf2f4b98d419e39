// labels: sanitizers
// What prepare() refuses: the table of tests/refusals. And that the batch is as it was then.
#include "support/refusals.hpp"

#include <gdpo/prepass.hpp>

namespace refusals_test {

namespace {

namespace prepass = gdpo::prepass;
using refusals::Call;
using Pass = std::variant<prepass::Importance, prepass::Gate, prepass::TopEntropy,
                          prepass::Overlong, prepass::DegenerateGroups, prepass::SecondMoment,
                          prepass::Covariance, prepass::FutureKl>;

/// A pre-pass of a table, which names it and its settings.
Pass pass_of(refusals::json described, const gdpo::Column& truncated,
             const gdpo::Column& degenerate) {
  const std::string name = described.at("name");
  described.erase("name");
  Pass pass;
  if (name == "overlong")
    pass = prepass::Overlong{truncated};
  else if (name == "degenerate_groups")
    pass = prepass::DegenerateGroups{degenerate};
  else if (name == "top_entropy")
    pass = prepass::TopEntropy{};
  else
    std::visit([&](const auto& preset) { pass = preset; }, gdpo::runtime::prepass(name));
  std::visit([&](auto& chosen) { refusals::set(chosen, described); }, pass);
  return pass;
}

/// Calls prepare() with the pre-passes of a call, at most two. Returns its message.
std::string prepare(Call& call) {
  auto flags = call.arrays.extract("degenerate");  // a column of the pre-pass
  const gdpo::Column degenerate = flags ? flags.mapped().column() : gdpo::Column{};
  const gdpo::TokenBatch<double> batch = batch_of(call);
  gdpo::PrepassMemory<double> memory;
  std::vector<Pass> passes;
  for (const auto& described : call.values.at("passes"))
    passes.push_back(pass_of(described, batch.truncated, degenerate));
  if (passes.size() > 2) throw std::invalid_argument("more than two pre-passes");
  prepass::DegenerateGroups none;
  passes.resize(2, none);
  return message_of([&] {
    std::visit([&](const auto&... pass) { gdpo::prepare(batch, memory, pass...); }, passes[0],
               passes[1]);
  });
}

}  // namespace

TEST_CASE("what prepare() refuses", "[prepass][errors]") {
  refusals::check("prepare", "host", "gdpo::prepare", prepare);
}

TEST_CASE("an error of prepare leaves the batch as it was", "[prepass][errors]") {
  const double tokens[6] = {}, flags[2] = {1, 0};
  gdpo::TokenBatch<double> batch;
  batch.logp = batch.rollout_logp = gdpo::view(tokens, 2, 3);
  gdpo::PrepassMemory<double> memory;
  const prepass::Overlong overlong{gdpo::view(flags, 2)};
  CHECK_THROWS(gdpo::prepare(batch, memory, overlong, prepass::TopEntropy{}));
  CHECK(gdpo::count(batch).tokens == 6);
  CHECK(!batch.mask);
  CHECK(!batch.weights);
  CHECK_NOTHROW(gdpo::prepare(batch, memory, overlong));  // the memory can still be used
}

}  // namespace refusals_test
