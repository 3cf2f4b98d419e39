// labels: sanitizers
// What advantages refuse, on the host and, before anything is launched, on a device: the table of
// tests/refusals. And what the table cannot say.
#include "support/refusals.hpp"

#include <gdpo/constraint.hpp>
#include <gdpo/cuda/advantage/device_advantages.hpp>

namespace refusals_test {

namespace {

using refusals::Call;

/// Whether the cases of an estimator have constraints, and groups of other kinds than groups_of.
/// Those of the other types have not, because all of them would take long to compile.
template <class Estimator>
constexpr bool has_all_calls = std::is_same_v<Estimator, gdpo::Gdpo>;

/// Calls f(groups) with the groups of a call.
template <class Estimator, class F>
void with_groups(Call& call, const F& f) {
  const gdpo::index_t size = call.values.at("expected_size");
  const auto ids = call.arrays.find("group_ids"), offsets = call.arrays.find("group_offsets");
  if (ids == call.arrays.end() && offsets == call.arrays.end())
    f(gdpo::groups_of(call.values.at("group_size")));
  else if constexpr (!has_all_calls<Estimator>)
    throw std::invalid_argument("groups_of alone");
  else if (ids != call.arrays.end())
    f(gdpo::by_id(ids->second.view<const std::int64_t, 1>(), size));
  else
    f(gdpo::by_offsets(offsets->second.view<const std::int64_t, 1>(), size));
}
/// The batch of a call.
template <class Groups>
gdpo::RewardBatch<double, Groups> batch_of(Call& call, const Groups& groups) {
  auto rewards = call.arrays.at("rewards").as<gdpo::RewardView<double>, const double, 2>();
  gdpo::RewardBatch<double, Groups> batch{rewards, groups};
  for (auto& [name, array] : call.arrays) {
    bool known = name == "rewards" || name == "group_ids" || name == "group_offsets";
    for (const auto& column : gdpo::detail::reward_columns<decltype(batch)>)
      if ("batch." + (name == "row_weights" ? "weights" : name) == column.name)
        known = true, batch.*column.of_batch = array.column();
    if (!known) throw std::invalid_argument("a batch has no " + name);
  }
  return batch;
}
/// Calls f(groups, estimator, out) with what a call has. Returns its message.
template <class F>
std::string with_estimator(Call& call, const F& f) {
  auto named = gdpo::runtime::estimator(call.values.at("preset").get<std::string>());
  const auto out = call.outputs.at("out").view<double, 1>();
  return std::visit(
      [&](auto& estimator) {
        return message_of([&] {
          refusals::set(estimator, call.values.at("settings"));
          with_groups<std::decay_t<decltype(estimator)>>(
              call, [&](const auto& groups) { f(groups, estimator, out); });
        });
      },
      named);
}

}  // namespace

TEST_CASE("what advantages refuse", "[advantages][errors]") {
  refusals::check("advantages", "host", "gdpo::advantages", [](Call& call) {
    return with_estimator(call, [&](const auto& groups, const auto& estimator, const auto& out) {
      gdpo::Workspace workspace;
      gdpo::List<gdpo::Constraint, 16> constraints;
      refusals::assign(constraints, call.values.at("constraints"));
      const auto batch = batch_of(call, groups);
      if (constraints.empty())
        advantages_into(gdpo::seq, batch, estimator, out, workspace);
      else if constexpr (has_all_calls<std::decay_t<decltype(estimator)>>)
        advantages_into(gdpo::seq, batch, gdpo::Constrained<>{estimator, {}, constraints}, out,
                        workspace);
      else
        throw std::invalid_argument("no constraints");
    });
  });
}

TEST_CASE("on a device: what advantages refuse, before anything is launched",
          "[advantages][cuda][errors]") {
  refusals::check_on_device("advantages", "gdpo::advantages", [](const auto& device, Call& call) {
    return with_estimator(call, [&](const auto& groups, const auto& estimator, const auto& out) {
      const auto run = [&](const auto& device_groups) {
        advantages_into(device, batch_of(call, device_groups), estimator, out, unused_scratch());
      };
      if constexpr (std::is_same_v<std::decay_t<decltype(groups)>, gdpo::ById>)
        run(gdpo::cuda::sorted_groups(groups.order(), groups.offsets()));
      else
        run(groups);
    });
  });
}

TEST_CASE("broadcast to tokens of another shape", "[advantages][errors]") {
  std::vector<double> a(2), mask(6, 1.0), out(6, 42.0);
  const auto message = [&](gdpo::index_t rows, gdpo::index_t length, gdpo::index_t out_rows,
                           gdpo::index_t out_length) {
    return message_of([&] {
      gdpo::broadcast_into(gdpo::view(a), gdpo::view(mask.data(), rows, length),
                           gdpo::view(out.data(), out_rows, out_length));
    });
  };
  const auto refused = [](const std::string& shapes) {
    return "gdpo::broadcast_into: mask, out: given " + shapes +
           "; needed: the same (N, T) with N = 2, the number of advantages";
  };
  CHECK(message(3, 2, 2, 2) == refused("(3, 2) and (2, 2)"));
  CHECK(message(2, 3, 3, 2) == refused("(2, 3) and (3, 2)"));
  CHECK(message(2, 3, 2, 2) == refused("(2, 3) and (2, 2)"));
  CHECK(out == std::vector<double>(6, 42.0));
  CHECK(message(2, 3, 2, 3) == "no error");
  CHECK(out[0] == 0);
}

}  // namespace refusals_test
