#pragma once
// What the sections of cuda_bench share: options of the command line, the report, and the bandwidth
// of a copy.
#include <cmath>
#include <functional>
#include <string>

#include "measure.hpp"

namespace bench {

/// Options of the command line.
struct Options {
  std::string json, only, figure;
  index_t divide = 1;
  int repeats = 21;
  long shared = -1;  // Tuning::shared_bytes; -1: what Tuning::of gives
  bool gates = false, gated = false;
};

/// One line of the table: how long a call takes, and what it must reach.
struct Figure {
  std::string section, name;
  Time time;             ///< of one call
  double bytes = 0;      ///< that a call must move; 0: bandwidth does not matter
  double bandwidth = 0;  ///< of a copy measured before the section, in bytes a second
  double least = 0;      ///< gate: at least this fraction of that bandwidth; 0: none
  double most_us = 0;    ///< gate: at most this many microseconds; 0: none
  double fraction() const { return bytes / time.median / bandwidth; }
  bool has_gate() const { return least > 0 || most_us > 0; }
  bool missed() const {
    return (least > 0 && !(fraction() >= least)) ||
           (most_us > 0 && !(1e6 * time.median <= most_us));
  }
};

/// The device, a stream, and the figures so far.
class Bench {
 public:
  explicit Bench(const Options& options);
  const gdpo::cuda::On& on() const { return on_; }
  cudaStream_t stream() const { return stream_.get(); }
  const Stopwatch& watch() const { return watch_; }
  /// The size n divided by --divide, at least 1.
  index_t size(index_t n) const { return (std::max)(n / options_.divide, index_t{1}); }

  /// Begins a section: names it for the figures that follow. False if --only leaves it out.
  bool section(const std::string& name);
  /// Whether --figure and --gated let this figure through. Before the first such figure of a
  /// section, it measures the copy and prints the head of the table.
  bool wants(const std::string& name, bool has_gate = false);
  /// Adds a figure: prints it and writes the JSON file at once.
  void add(const std::string& name, const Time& time, double bytes = 0, double least = 0,
           double most_us = 0);
  /// Reports a result that is not what it must be.
  void wrong(const std::string& name, const std::string& what);
  /// Whether `bytes` are free on the device. If not, the figure is reported as not measured.
  bool fits(const std::string& name, double bytes);
  /// Whether |got - want| <= within, which no NaN is. If not, reports a wrong result.
  bool close(const std::string& name, const char* what, double got, double want, double within);

  /// How many sets of buffers of `bytes` each to use in turn, so that no call finds its data in the
  /// L2 cache.
  int sets(double bytes) const;
  /// Time of a call of enqueue(set), with the sets in turn. Many calls are captured into one graph,
  /// so that the time of launches by the host does not count.
  Time time_in_graph(double bytes, int sets, const std::function<void(int)>& enqueue) const;

  /// Prints the summary; returns the exit status.
  int finish() const;

 private:
  void write_json() const;
  double copy_bandwidth();

  Options options_;
  Stream stream_;
  gdpo::cuda::On on_;
  Stopwatch watch_;
  std::string device_;
  double l2_bytes_ = 0, bandwidth_ = 0;
  std::string section_;
  std::vector<Figure> figures_;
  std::vector<std::pair<std::string, double>> bandwidths_;  // section, bandwidth of the copy
  std::vector<std::string> failures_, not_measured_;
};

// The sections.
void loss(Bench&);
void advantages(Bench&);
void logits(Bench&);
void small_steps(Bench&);

}  // namespace bench
