// labels: sanitizers
// What prepare() refuses: the table of tests/refusals. And that the batch is as it was then.
#include "support/refusals.hpp"

#include <functional>
#include <gdpo/prepass.hpp>
#include <map>
#include <utility>

namespace refusals_test {

namespace {

namespace prepass = gdpo::prepass;
using refusals::Call;

/// A pre-pass that is chosen at run time, so that prepare() is compiled once.
struct AnyPass {
  gdpo::Reach reach = gdpo::Reach::None;
  std::function<void(const gdpo::PrepassArgs<double>&)> run;
  std::function<void(const char*)> check_settings = [](const char*) {};

  void operator()(const gdpo::PrepassArgs<double>& args) const { run(args); }
  void check(const char* function) const { check_settings(function); }
};

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
    to.push_back({part.reach, [part](const auto& args) { part(args); },
                  [part](const char* function) { gdpo::detail::check_fields(function, part); }});
  };
  std::apply([&](const auto&... parts) { (add_part(parts), ...); }, gdpo::detail::parts_of(pass));
}

/// The arrays of columns, which outlive a call.
auto& columns() {
  static std::vector<std::map<std::string, refusals::Array>::node_type> all;
  return all;
}

/// Calls prepare() with the pre-passes of a call, at most four. Returns its message.
std::string prepare(Call& call) {
  const auto column = [&](const char* name) {  // of a pre-pass
    auto values = call.arrays.extract(name);
    columns().push_back(std::move(values));
    return columns().back() ? columns().back().mapped().column() : gdpo::Column{};
  };
  const gdpo::Column degenerate = column("degenerate"), groups = column("groups");
  const gdpo::TokenBatch<double> batch = batch_of(call);
  gdpo::PrepassMemory<double> memory;
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
  return message_of(
      [&] { gdpo::prepare(batch, memory, passes[0], passes[1], passes[2], passes[3]); });
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
