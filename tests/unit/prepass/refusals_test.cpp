// labels: sanitizers
// What prepare() refuses: the table of tests/refusals. And that the batch is as it was then.
#include "support/refusals.hpp"

#include <map>
#include <utility>

#include "support/prepass_batch.hpp"

namespace refusals_test {

namespace {

namespace prepass = gdpo::prepass;
using prepass_batch::AnyPass;
using refusals::Call;

/// Adds a pre-pass with these settings, or the parts of a chain.
template <class Pass>
void add(Pass pass, const refusals::json& settings, const gdpo::Column& groups,
         std::vector<AnyPass>& to) {
  refusals::set(pass, settings);
  const auto add_part = [&](auto part) {
    using Part = decltype(part);
    if constexpr (std::is_same_v<Part, prepass::Importance> ||
                  std::is_same_v<Part, prepass::Gate>) {
      part.groups = groups;
    }
    AnyPass any;
    any.chosen = part, any.reach = part.reach;
    to.push_back(any);
  };
  std::apply([&](const auto&... parts) { (add_part(parts), ...); }, gdpo::detail::parts_of(pass));
}

/// The arrays of columns, which outlive a call.
auto& columns() {
  static std::vector<std::map<std::string, refusals::Array>::node_type> all;
  return all;
}

/// Calls prepare(batch, passes...) with the pre-passes of a call, at most four; gives its message.
template <class Prepare>
std::string message_of_call(Call& call, const Prepare& prepare) {
  const auto column = [&](const char* name) {  // of a pre-pass
    auto values = call.arrays.extract(name);
    columns().push_back(std::move(values));
    return columns().back() ? columns().back().mapped().column() : gdpo::Column{};
  };
  const gdpo::Column degenerate = column("degenerate"), groups = column("groups");
  const gdpo::TokenBatch<double> batch = batch_of(call);
  double threshold = 0;
  std::vector<AnyPass> passes;
  for (refusals::json described : call.values.at("passes")) {
    const std::string name = described.at("name");
    described.erase("name");
    const auto with = [&](const auto& pass) { add(pass, described, groups, passes); };
    if (name == "overlong")
      with(prepass::Overlong{batch.truncated});
    else if (name == "degenerate_groups")
      with(prepass::DegenerateGroups{degenerate});
    else if (name == "top_entropy")
      with(prepass::TopEntropy{});
    else
      std::visit(with, gdpo::runtime::prepass(name));
  }
  if (passes.size() > 4) throw std::invalid_argument("more than four pre-passes");
  passes.resize(4);
  for (AnyPass& pass : passes) pass.threshold = &threshold;
  return message_of([&] { prepare(batch, passes[0], passes[1], passes[2], passes[3]); });
}

}  // namespace

TEST_CASE("what prepare() refuses", "[prepass][errors]") {
  refusals::check("prepare", "host", "gdpo::prepare", [](Call& call) {
    return message_of_call(call, [](const auto& batch, const auto&... passes) {
      gdpo::PrepassMemory<double> memory;
      gdpo::prepare(batch, memory, passes...);
    });
  });
  refusals::check_on_device("prepare", "gdpo::prepare", [](const auto& device, Call& call) {
    return message_of_call(call, [&](const auto& batch, const auto&... passes) {
      gdpo::cuda::PrepassMemory memory{unused_scratch().data, unused_scratch().bytes};
      gdpo::prepare(device, batch, memory, passes...);
    });
  });
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
