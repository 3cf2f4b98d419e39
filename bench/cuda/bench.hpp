#pragma once
// What the sections of cuda_bench share: the command line, the report, and the bandwidth of a copy.
#include <cmath>
#include <functional>
#include <string>

#include "measure.hpp"

namespace bench {

struct Options {
  std::string json, only, figure;
  index_t divide = 1;
  int repeats = 21;
  long shared = -1;  // bytes of Tuning::shared_bytes; -1: the device's own
  bool gates = false, gated = false;
};

/// One line of the table.
struct Figure {
  std::string section, name;
  Time time;             ///< of a call
  double bytes = 0;      ///< that a call must move; 0: not a matter of bandwidth
  double bandwidth = 0;  ///< of a copy, bytes a second, measured before the section
  double least = 0;      ///< gate: the fraction of that bandwidth
  double most_us = 0;    ///< gate: microseconds
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
  /// n, or less with --divide.
  index_t size(index_t n) const { return (std::max)(n / options_.divide, index_t{1}); }

  /// Names the section of the figures that follow; false where --only leaves it out.
  bool section(const std::string& name);
  /// Is this figure of the section asked for (--figure, --gated)? The first that is has the copy measured before it.
  bool wants(const std::string& name, bool has_gate = false);
  /// Prints a figure, and has it in the JSON file, at once.
  void add(const std::string& name, const Time& time, double bytes = 0, double least = 0,
           double most_us = 0);
  /// A result is not what it must be.
  void wrong(const std::string& name, const std::string& what);
  /// Whether so many bytes are free on the device; else the figure is not measured, which is said.
  bool fits(const std::string& name, double bytes);
  /// |got - want| <= within, NaN is never.
  bool close(const std::string& name, const char* what, double got, double want, double within);

  /// Sets of buffers of `bytes` each, so that no call finds in the L2 cache what the one before it has left there.
  int sets(double bytes) const;
  /// Seconds a call of enqueue(set), sets in turn, without what the host takes to launch: many calls are one graph.
  Time time_in_graph(double bytes, int sets, const std::function<void(int)>& enqueue) const;

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
  std::vector<std::pair<std::string, double>> bandwidths_;  // of the copy, by section
  std::vector<std::string> failures_, not_measured_;
};

void loss(Bench&);
void advantages(Bench&);
void logits(Bench&);
void small_steps(Bench&);

}  // namespace bench
