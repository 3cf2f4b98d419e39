// Recorded statistics of gates and weights, compared with a gate report.
#pragma once

#include <gdpo/prepass.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comparison.hpp"
#include "token_inputs.hpp"

namespace conformance {

// The report of a gate or a weight over the tokens, padded; packed it must have the same bits.
template <class Pass>
gdpo::GateReport gate_report_of(const TokenInputs& in, const Pass& pass,
                                const gdpo::GateReportSettings& settings, Comparison& comparison) {
  const auto run = [&](const TokenInputs& layout) {
    const TokenArrays<double> arrays(layout);
    return gdpo::gate_report(arrays.batch(), pass, settings);
  };
  const gdpo::GateReport report = run(in), of_packed = run(packed(in));
  for (const gdpo::detail::GateMetric& metric : gdpo::detail::gate_metrics) {
    comparison.law(
        gdpo::math::bits_of(metric.of(report)) == gdpo::math::bits_of(metric.of(of_packed)),
        std::string("another ") + metric.name + " of the packed batch");
  }
  return report;
}
// The same with the conventions of a trainer.
template <class Pass>
gdpo::GateReport trainers_gate_report(const TokenInputs& in, const Pass& pass, gdpo::GateKeys keys,
                                      Comparison& comparison) {
  return gate_report_of(in, pass, gdpo::gate_report_settings(keys), comparison);
}

// Compares what a trainer logs with the report under its keys.
inline void compare_gate(const gdpo::GateReport& report, gdpo::GateKeys keys,
                         const std::string& name, Comparison& comparison) {
  for (const auto& [key, number] : report.to_map(keys, name)) comparison.metric(key, number);
}

// The tokens with the mask that a gate leaves.
inline TokenInputs after(const TokenInputs& in, gdpo::prepass::Gate gate) {
  gate.reach = gdpo::Reach::Mask;
  const TokenArrays<double> arrays(in);
  gdpo::PrepassMemory<double> memory;
  const auto batch = gdpo::prepare(arrays.batch(), memory, gate);
  TokenInputs out = in;
  out.mask = tokens_of<unsigned char>(in, batch.mask, 1);
  return out;
}

}  // namespace conformance
