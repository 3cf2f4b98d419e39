#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <numeric>
#include <sstream>

namespace conformance {
namespace {

double tolerance(const Case& c, double wanted) { return c.atol + c.rtol * std::abs(wanted); }

bool agree(const Case& c, double got, double wanted) {
  if (c.ill_conditioned) return std::isfinite(got) || !std::isfinite(wanted);
  if (std::isnan(wanted)) return std::isnan(got);
  if (std::isinf(wanted)) return got == wanted;
  return std::abs(got - wanted) <= tolerance(c, wanted);
}

std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text = "[";
  for (std::size_t k = 0; k < shape.size(); ++k)
    text += (k == 0 ? "" : " x ") + std::to_string(shape[k]);
  return text + "]";
}

// The indices of an element of a row-major array, as "[row][column]".
std::string index_text(const std::vector<std::size_t>& shape, std::size_t flat) {
  std::string text;
  for (std::size_t k = shape.size(); k-- > 0;) {
    text.insert(0, "[" + std::to_string(flat % shape[k]) + "]");
    flat /= shape[k];
  }
  return text;
}

}  // namespace

void Comparison::compare(const Case& recorded, const std::string& name, const Array& got,
                         const Json& expected, const std::vector<unsigned char>& selected) {
  const Array wanted = array_of(expected);
  std::ostringstream line;
  if (got.shape != wanted.shape) {
    line << name << ": got shape " << shape_text(got.shape) << ", wanted "
         << shape_text(wanted.shape);
    differences_.push_back(line.str());
    return;
  }
  std::size_t first = 0, differing = 0, compared = 0;
  for (std::size_t k = 0; k < wanted.data.size(); ++k) {
    if (!selected.empty() && selected[k] == 0) continue;
    ++compared;
    if (!agree(recorded, got.data[k], wanted.data[k]) && differing++ == 0) first = k;
  }
  if (differing == 0) return;
  line << name << index_text(wanted.shape, first)
       << std::setprecision(std::numeric_limits<double>::max_digits10) << ": got "
       << got.data[first] << ", wanted " << wanted.data[first] << std::setprecision(3);
  if (recorded.ill_conditioned) {
    line << ", must be finite";
  } else {
    line << ", tolerance " << tolerance(recorded, wanted.data[first]);
  }
  if (compared > 1) line << " (" << differing << " of " << compared << " elements differ)";
  differences_.push_back(line.str());
}

void Comparison::output(const std::string& name, const Array& got,
                        const std::vector<unsigned char>& selected) {
  outputs_.insert(name);
  compare(case_, name, got, case_.expected.at(name), selected);
}

bool Comparison::records(const std::string& name) const {
  const auto recorded = case_.expected.find("metrics");
  return recorded != case_.expected.end() && recorded->contains(name);
}

void Comparison::metric(const std::string& name, const Array& got,
                        const std::vector<unsigned char>& selected) {
  if (!records(name)) return;
  metrics_.insert(name);
  Case rounded = case_;
  if (in_float_) rounded.rtol = std::max(case_.rtol, 1e-7);
  compare(rounded, name, got, case_.expected.at("metrics").at(name), selected);
}

void Comparison::metric_sum(const std::string& name, double got) {
  if (!records(name)) return;
  metrics_.insert(name);
  const std::vector<double> list = array_of(case_.expected.at("metrics").at(name)).data;
  compare(case_, "the sum of " + name, Array{{}, {got}},
          std::accumulate(list.begin(), list.end(), 0.0), {});
}

void Comparison::metric_taken_in_float(const std::string& name, double got) {
  const bool before = in_float_;
  in_float_ = true;
  metric(name, got);
  in_float_ = before;
}

void Comparison::law(bool holds, const std::string& broken) {
  if (!holds) differences_.push_back(broken);
}

Verdict Comparison::verdict() const {
  Verdict out;
  out.settings = settings_;
  std::vector<std::string> missing;
  for (const auto& [name, value] : case_.expected.items()) {
    if (name == "metrics") {
      for (const auto& metric : value.items()) {
        if (metrics_.count(metric.key()) == 0) out.missing_metrics.push_back(metric.key());
      }
    } else if (outputs_.count(name) == 0) {
      missing.push_back("no counterpart of the expected '" + name + "'");
    }
  }
  out.metrics_compared = metrics_.size();
  out.compared_metrics.assign(metrics_.begin(), metrics_.end());
  if (!differences_.empty()) {
    out.status = Status::Failed;
    out.details = differences_;
  } else if (!missing.empty()) {
    out.details = {missing.front()};
    out.metrics_unsupported = metrics_.size() + out.missing_metrics.size();
    out.metrics_compared = 0;
    out.compared_metrics.clear(), out.missing_metrics.clear();
  } else if (outputs_.empty() && metrics_.empty()) {
    out.details = {"nothing that can be compared"};
  } else {
    out.status = Status::Passed;
  }
  return out;
}

}  // namespace conformance
