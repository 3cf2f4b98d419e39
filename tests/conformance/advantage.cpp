#include "advantage.hpp"

#include <algorithm>
#include <cstdint>
#include <gdpo/update.hpp>
#include <type_traits>
#include <utility>
#include <variant>

#include "as_is.hpp"
#include "device_advantages.hpp"

namespace conformance {
namespace {

using gdpo::index_t;

// The inputs of a case in the type that the trainer computed with.
template <class T>
struct Inputs {
  std::vector<T> rewards, kl;
  std::vector<double> token_kl;  // rows by width: what kl adds up; empty if the record has kl
  std::vector<std::int64_t> ids, rollouts;  // rollouts: empty if each row is one
  std::vector<unsigned char> mask;          // rows by width; empty if the record has none
  bool of_tokens = false;                   // each token is a row, and the mask says which are used
  std::vector<std::int64_t> lengths;        // valid tokens of each row
  std::vector<double> output_tokens, input_tokens, turns;  // for rules that shape rewards
  index_t count = 0, reward_count = 1, width = 0;
};

template <class T>
std::vector<T> stored_as(const std::vector<double>& values) {
  std::vector<T> out;
  out.reserve(values.size());
  for (const double value : values) out.push_back(static_cast<T>(value));
  return out;
}

template <class T>
Inputs<T> bind(const Json& inputs) {
  only(inputs, {"rewards", "values", "group_ids", "request_ids", "response_mask", "kl_values",
                "old_logp", "ref_logp", "num_output_tokens", "num_total_tokens", "num_turns"});
  Inputs<T> in;
  in.of_tokens = inputs.contains("values");
  Array rewards = array_of(inputs.at(in.of_tokens ? "values" : "rewards"));
  if (rewards.shape.empty() || rewards.shape.size() > 2)
    throw BadGolden("rewards must have one or two axes");
  in.rewards = stored_as<T>(rewards.data);
  in.count = static_cast<index_t>(rewards.shape[0]);
  if (rewards.shape.size() == 2) in.reward_count = static_cast<index_t>(rewards.shape[1]);
  for (const long long id : integers_of(inputs.at("group_ids")))
    in.ids.insert(in.ids.end(), in.of_tokens ? rewards.shape[1] : 1, id);
  if (inputs.contains("request_ids")) {
    for (const long long id : integers_of(inputs.at("request_ids"))) in.rollouts.push_back(id);
  }
  if (inputs.contains("kl_values")) in.kl = stored_as<T>(array_of(inputs.at("kl_values")).data);
  if (inputs.contains("num_output_tokens")) {
    in.output_tokens = array_of(inputs.at("num_output_tokens")).data;
    in.input_tokens = array_of(inputs.at("num_total_tokens")).data;
    for (std::size_t i = 0; i < in.input_tokens.size(); ++i)
      in.input_tokens[i] -= in.output_tokens.at(i);
    in.turns = array_of(inputs.at("num_turns")).data;
  }
  if (inputs.contains("response_mask")) {
    const Array mask = array_of(inputs.at("response_mask"));
    if (mask.shape.size() != 2 || mask.shape[0] != rewards.shape[0])
      throw BadGolden("response_mask must be rows x T");
    in.width = static_cast<index_t>(mask.shape[1]);
    in.lengths.assign(mask.shape[0], 0);
    for (std::size_t k = 0; k < mask.data.size(); ++k) {
      const bool valid = mask.data[k] != 0;
      in.mask.push_back(valid);
      in.lengths[k / mask.shape[1]] += valid;
    }
  }
  if (in.of_tokens) in.count *= in.width, in.reward_count = 1;
  if (inputs.contains("ref_logp")) {
    const std::vector<double> logp = array_of(inputs.at("old_logp")).data,
                              ref = array_of(inputs.at("ref_logp")).data;
    in.kl.assign(rewards.shape[0], T(0));
    for (std::size_t k = 0; k < logp.size(); ++k) {
      in.token_kl.push_back(logp[k] - ref[k]);
      if (in.mask[k])
        in.kl[k / static_cast<std::size_t>(in.width)] += static_cast<T>(in.token_kl[k]);
    }
  }
  return in;
}

// `in` must outlive the batch.
template <class T>
auto batch_of(const Inputs<T>& in, index_t group_size) {
  auto groups = group_size == 0 ? gdpo::by_id(in.ids) : gdpo::by_id(in.ids, group_size);
  gdpo::RewardBatch<T, decltype(groups)> batch{
      gdpo::view(in.rewards.data(), in.count, in.reward_count), groups};
  if (in.of_tokens) {
    batch.valid = gdpo::view(in.mask);
  } else if (!in.mask.empty()) {
    batch.tokens = gdpo::view(in.lengths);
  }
  if (!in.kl.empty()) batch.penalty = gdpo::view(in.kl);
  return batch;
}

template <class T>
Array of_rows(const std::vector<T>& values) {
  return {{values.size()}, {values.begin(), values.end()}};
}

// The estimator that gives the rewards as `estimator` sees them before any statistic: penalized,
// weighted and summed.
template <class E>
auto summed_rewards(const E& estimator) {
  SummedRewards sum;
  sum.missing = estimator.missing;
  sum.penalty = estimator.penalty;
  sum.weights = estimator.weights;
  return sum;
}

// The advantages on the target of the case. The device writes no report, so there the host's report
// is compared.
template <class Batch, class E>
auto call(const Target& target, const Batch& batch, const E& estimator,
          gdpo::GroupReport* report = nullptr) {
  auto values = gdpo::advantages(gdpo::seq, batch, estimator, report);
  if (target.exec != Exec::Device) return values;
  const std::vector<double> of_device = on_device(batch, estimator);
  std::transform(of_device.begin(), of_device.end(), values.begin(),
                 [](double x) { return static_cast<typename decltype(values)::value_type>(x); });
  return values;
}

// The same for rows of rollouts: the last row of each counts.
template <class T, class Batch, class E>
auto call(const Target& target, const Batch& batch, const Inputs<T>& in, const E& estimator,
          gdpo::GroupReport* report) {
  if (in.rollouts.empty()) return call(target, batch, estimator, report);
  const auto rollouts = gdpo::rollouts(batch, gdpo::view(in.rollouts));
  return rollouts.spread(call(target, rollouts.batch(), estimator, report));
}

std::size_t as_size(index_t i) { return static_cast<std::size_t>(i); }

template <class T>
void run(const Case& recorded, const Setup& setup, Comparison& comparison) {
  Inputs<T> in = bind<T>(recorded.inputs);
  if (!setup.shaping.empty()) {
    gdpo::update::shaping::Columns columns;
    columns.lengths = gdpo::view(in.output_tokens);
    columns.input_lengths = gdpo::view(in.input_tokens);
    columns.turns = gdpo::view(in.turns);
    gdpo::runtime::shape_rewards(gdpo::view(in.rewards), gdpo::by_id(in.ids), columns,
                                 setup.shaping);
  }
  auto batch = batch_of(in, setup.group_size * (in.of_tokens ? in.width : 1));
  std::vector<unsigned char> kept;
  if (setup.min_std >= 0) {
    gdpo::update::GroupSelection selection;
    selection.flat_in = gdpo::update::FlatIn::Sum;
    selection.min_std = setup.min_std;
    kept.assign(as_size(in.count), 0);
    for (const index_t row : gdpo::update::select_groups(batch, selection).rows)
      kept[as_size(row)] = 1;
    batch.valid = gdpo::view(kept);
    comparison.output("kept", {{kept.size()}, {kept.begin(), kept.end()}});
  }
  std::visit(
      [&](auto estimator) {
        if (!kept.empty()) estimator.missing.unused = gdpo::UnusedRow::Exclude;
        gdpo::GroupReport report;
        const auto row_values = call(recorded.target, batch, in, estimator, &report);
        const Array rows = of_rows(row_values);

        const Json& expected = recorded.expected.at("advantages");
        if (in.of_tokens) {
          const std::size_t width = static_cast<std::size_t>(in.width);
          comparison.output("advantages", {{rows.data.size() / width, width}, rows.data}, in.mask);
        } else if (!in.mask.empty() && !expected.empty() && expected.front().is_array()) {
          using Result = typename std::decay_t<decltype(row_values)>::value_type;
          std::vector<Result> tokens(in.mask.size());
          gdpo::broadcast_into(gdpo::view(row_values),
                               gdpo::view(in.mask.data(), in.count, in.width),
                               gdpo::view(tokens.data(), in.count, in.width));
          const Array padded{{rows.data.size(), static_cast<std::size_t>(in.width)},
                             {tokens.begin(), tokens.end()}};
          comparison.output("advantages", padded, in.mask);
        } else {
          comparison.output("advantages", rows);
        }
        if (recorded.expected.contains("rewards")) {
          comparison.output("rewards",
                            of_rows(call(recorded.target, batch, summed_rewards(estimator))));
        }
        if (setup.reports_given_rewards) {
          auto given = estimator;
          given.penalty = {}, given.reward_clip = {};
          gdpo::advantages(gdpo::seq, batch, given, &report);
        }
        if (!in.token_kl.empty()) {
          comparison.metric("kl", gdpo::masked_mean(gdpo::view(in.token_kl), gdpo::view(in.mask)));
        }
        setup.metrics(report, comparison);
      },
      setup.estimator);
}

}  // namespace

std::vector<double> row_advantages(const Case& recorded,
                                   const gdpo::RewardBatch<double, gdpo::ById>& batch,
                                   const gdpo::runtime::Estimator& estimator) {
  return std::visit([&](const auto& e) { return call(recorded.target, batch, e); }, estimator);
}

void set_scale(gdpo::runtime::Estimator& estimator, double eps, int ddof) {
  std::visit(
      [&](auto& e) {
        using Scale = decltype(e.scale);
        if constexpr (std::is_same_v<Scale, gdpo::scale::StdDev> ||
                      std::is_same_v<Scale, gdpo::scale::LeaveOneOutStd>) {
          e.scale.eps = eps;
          e.scale.ddof = ddof;
        }
      },
      estimator);
}

void set_renorm(gdpo::runtime::Estimator& estimator, double eps, int ddof) {
  std::visit(
      [&](auto& e) {
        e.renorm.eps = eps;
        e.renorm.ddof = ddof;
      },
      estimator);
}

void set_count_eps(gdpo::runtime::Estimator& estimator, double count_eps) {
  std::visit([&](auto& e) { e.renorm.count_eps = count_eps; }, estimator);
}

void set_weights(gdpo::runtime::Estimator& estimator, const std::vector<double>& weights) {
  std::visit(
      [&](auto& e) {
        e.weights = {weights.data(), static_cast<index_t>(weights.size())};
      },
      estimator);
}

void set_penalty(gdpo::runtime::Estimator& estimator, double coef) {
  std::visit([&](auto& e) { e.penalty.coef = coef; }, estimator);
}

Handler rows(std::function<Setup(Params&, const Case&)> mapping) {
  return [mapping = std::move(mapping)](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    const Setup setup = mapping(params, recorded);
    params.all_read();
    comparison.runs(settings_of(setup.estimator));
    for (const gdpo::runtime::Shaping& rule : setup.shaping) comparison.runs(settings_of(rule));
    if (recorded.float32) {
      run<float>(recorded, setup, comparison);
    } else {
      run<double>(recorded, setup, comparison);
    }
  };
}

Handler moving_baselines() {
  return [](const Case& recorded, Comparison& comparison) {
    Params params(recorded.params);
    gdpo::update::EmaBaseline ema = gdpo::prime_rl::rae;
    ema.decay = params.number("decay"), ema.start = params.number("start");
    params.all_read();
    comparison.runs(settings_of(gdpo::runtime::Running(ema)));
    only(recorded.inputs, {"rewards", "agent_ids"});
    const std::vector<double> rewards = array_of(recorded.inputs.at("rewards")).data;
    const std::vector<long long> agents = integers_of(recorded.inputs.at("agent_ids"));
    std::vector<double> baselines(rewards.size());
    gdpo::EmaState state;
    ema.baselines_into(state, gdpo::view(rewards), gdpo::view(agents), gdpo::view(baselines));
    const std::vector<int> ids(rewards.size(), 0);
    gdpo::RewardBatch batch{gdpo::view(rewards), gdpo::by_id(ids)};
    batch.baseline = gdpo::view(baselines);
    comparison.output("advantages",
                      of_rows(call(recorded.target, batch, gdpo::prime_rl::rae_advantage)));
    comparison.output("baselines", of_rows(state.baseline));
  };
}

}  // namespace conformance
