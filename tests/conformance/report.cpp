#include "report.hpp"

#include <algorithm>
#include <iomanip>
#include <ostream>

namespace conformance {
namespace {

void count(const Verdict& verdict, Tally& tally) {
  switch (verdict.status) {
    case Status::Passed:
      ++tally.passed;
      break;
    case Status::Failed:
      ++tally.failed;
      break;
    case Status::Unsupported:
      ++tally.unsupported;
      tally.unlisted += !verdict.listed;
      break;
  }
  tally.on_device += verdict.on_device && verdict.status != Status::Unsupported;
  tally.metrics_compared += verdict.metrics_compared;
  tally.metrics_listed += verdict.listed_metrics.size();
  tally.metrics_unsupported += verdict.metrics_unsupported;
}

Json counts(const Tally& tally) {
  return {{"passed", tally.passed},
          {"failed", tally.failed},
          {"unsupported", tally.unsupported},
          {"unlisted", tally.unlisted},
          {"on_device", tally.on_device}};
}

constexpr int kNumber = 8, kStatus = 13, kMetrics = 38;  // widths of columns

void print_counts(std::ostream& out, const Tally& tally) {
  const std::string metrics = std::to_string(tally.metrics_compared) + " / " +
                              std::to_string(tally.metrics_listed) + " / " +
                              std::to_string(tally.metrics_unsupported);
  out << std::right << std::setw(kNumber) << tally.passed << std::setw(kNumber) << tally.failed
      << std::setw(kStatus) << tally.unsupported << std::setw(kMetrics) << metrics << '\n';
}

void print_total(std::ostream& out, const Tally& total) {
  out << "total: " << total.passed << " passed, " << total.failed << " failed, "
      << total.unsupported << " unsupported; metrics: " << total.metrics_compared << " compared, "
      << total.metrics_listed << " listed, " << total.metrics_unsupported
      << " of unsupported cases\n";
}

}  // namespace

void Report::add(const Case& recorded, const Verdict& verdict) {
  Tally& tally = functions_[{recorded.source, recorded.kind, recorded.function}];
  count(verdict, tally);
  versions_.insert(recorded.version);
  count(verdict, files_[recorded.file]);
  count(verdict, total_);
  if (verdict.status == Status::Passed) {
    for (const std::string& settings : verdict.settings)
      as_is_.insert({recorded.version, settings});
  }
  for (const auto& [metric, reason] : verdict.listed_metrics)
    ++tally.listed_metrics[reason][metric];
  for (const std::string& detail : verdict.details) {
    if (verdict.status == Status::Failed) {
      failures_.push_back(recorded.source + ' ' + recorded.kind + ' ' + recorded.name + ": " +
                          detail);
    } else {
      ++tally.reasons[detail];
    }
  }
}

void Report::print(std::ostream& out) const {
  std::size_t wide_source = 6, wide_function = 8;
  for (const auto& entry : functions_) {
    wide_source = std::max(wide_source, std::get<0>(entry.first).size());
    wide_function = std::max(wide_function, std::get<2>(entry.first).size());
  }
  const auto names = [&](const std::string& source, const std::string& kind,
                         const std::string& function) {
    out << std::left << std::setw(static_cast<int>(wide_source) + 2) << source << std::setw(11)
        << kind << std::setw(static_cast<int>(wide_function)) << function;
  };

  names("source", "kind", "function");
  out << std::right << std::setw(kNumber) << "passed" << std::setw(kNumber) << "failed"
      << std::setw(kStatus) << "unsupported" << std::setw(kMetrics)
      << "metrics compared / listed / unsupported" << '\n';
  for (const auto& [key, tally] : functions_) {
    std::apply(names, key);
    print_counts(out, tally);
  }
  names("total", "", "");
  print_counts(out, total_);

  if (total_.unsupported != 0) out << "\nunsupported:\n";
  for (const auto& [key, tally] : functions_) {
    for (const auto& [reason, times] : tally.reasons) {
      out << "  " << std::get<0>(key) << ' ' << std::get<1>(key) << ' ' << std::get<2>(key) << ": "
          << reason << " (" << times << (times == 1 ? " case" : " cases") << ")\n";
    }
  }
  if (total_.metrics_listed != 0) out << "\nmetrics that are listed and not compared:\n";
  for (const auto& [key, tally] : functions_) {
    for (const auto& [reason, metrics] : tally.listed_metrics) {
      out << "  " << std::get<0>(key) << ' ' << std::get<1>(key) << ' ' << std::get<2>(key) << ':';
      for (const auto& [metric, times] : metrics) out << ' ' << metric << " (" << times << ')';
      out << ": " << reason << '\n';
    }
  }
  if (!failures_.empty()) out << "\nfailed:\n";
  for (const std::string& failure : failures_) out << "  " << failure << '\n';

  out << '\n';
  print_total(out, total_);
}

void Report::print_summary(std::ostream& out, const std::string& what) const {
  for (const std::string& failure : failures_) out << what << ": " << failure << '\n';
  out << what << ", ";
  print_total(out, total_);
}

void Report::print_places(std::ostream& out, const std::string& device) const {
  std::map<std::string, Tally> kinds;
  for (const auto& [key, tally] : functions_) {
    Tally& of_kind = kinds[std::get<1>(key)];
    of_kind.passed += tally.passed, of_kind.failed += tally.failed,
        of_kind.on_device += tally.on_device;
  }
  out << device << ": " << total_.on_device << " cases on the device, "
      << total_.passed + total_.failed - total_.on_device << " on the host";
  for (const auto& [kind, tally] : kinds) {
    const std::size_t ran = tally.passed + tally.failed;
    out << (kind == kinds.begin()->first ? " (" : "; ") << kind << ' ' << tally.on_device << " of "
        << ran << ", " << tally.passed << " passed";
  }
  out << (kinds.empty() ? "" : ")") << '\n';
  for (const auto& [key, tally] : functions_) {
    const std::size_t on_host = tally.passed + tally.failed - tally.on_device;
    if (on_host == 0) continue;
    out << "  on the host: " << std::get<0>(key) << ' ' << std::get<1>(key) << ' '
        << std::get<2>(key) << " (" << on_host << (on_host == 1 ? " case" : " cases") << ")\n";
  }
}

Json Report::json() const {
  Json functions = Json::array();
  for (const auto& [key, tally] : functions_) {
    Json entry = counts(tally);
    entry["source"] = std::get<0>(key);
    entry["kind"] = std::get<1>(key);
    entry["function"] = std::get<2>(key);
    entry["metrics_listed"] = tally.listed_metrics;
    functions.push_back(std::move(entry));
  }
  Json files = Json::array();
  for (const auto& [file, tally] : files_) {
    files.push_back(counts(tally));
    files.back()["file"] = file;
  }
  return {
      {"functions", std::move(functions)}, {"files", std::move(files)}, {"total", counts(total_)}};
}

}  // namespace conformance
