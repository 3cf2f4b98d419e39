// cuda_bench: how fast the kernels are on this device, as a fraction of the bandwidth of a copy,
// which is measured before each section.
//
//   --gates           exit with 1 if a gate is missed
//   --json FILE       write the figures to FILE; they are there, and printed, as soon as they are
//                     measured
//   --only SECTION    only sections whose names begin with SECTION
//   --figure NAME     only figures whose names contain NAME
//   --gated           only figures with a gate
//   --shared BYTES    bytes of a row of logits that a block keeps (Tuning::shared_bytes)
//   --repeats N       how often each time is measured
//   --divide N        divide sizes by N; then no gate counts
//
// A time is the median between CUDA events. Data are random. Buffers are used in turn, so that no
// call finds its data in the L2 cache. Every result is checked once, on poisoned memory, before it
// is timed. Bytes are those that must move: each input once and each output once.
//
// Exit status: 0; 1 if a result is wrong, a call fails, or with --gates a gate is missed; 2 for bad
// usage; 77 if there is no device.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "bench.hpp"

namespace bench {
namespace {

struct alignas(16) Vector {
  unsigned of[4];
};
/// Copies n vectors, four by each thread, without a loop.
struct Copy {
  static constexpr int threads = 256, at_a_time = 4;
  const Vector* from;
  Vector* to;
  index_t n;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    block.each([&](int thread) {
      const index_t first = block.index() * threads * at_a_time + thread;
      Vector x[at_a_time];
      for (int k = 0; k < at_a_time; ++k) {
        if (first + k * threads < n) x[k] = from[first + k * threads];
      }
      for (int k = 0; k < at_a_time; ++k) {
        if (first + k * threads < n) to[first + k * threads] = x[k];
      }
    });
  }
};

/// A string of JSON. Names hold neither quotes nor backslashes.
std::string quoted(const std::string& s) { return '"' + s + '"'; }
/// A number of JSON.
std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", x);
  return std::isfinite(x) ? text : "null";
}

/// The tag for the stream, with the tuning of the device or --shared.
gdpo::cuda::On device_of(const Stream& stream, const Options& options) {
  const gdpo::cuda::On on(stream.get());
  gdpo::cuda::Tuning tuning = on.tuning();
  if (options.shared >= 0) tuning.shared_bytes = static_cast<std::size_t>(options.shared);
  return {stream.get(), tuning};
}

}  // namespace

Bench::Bench(const Options& options)
    : options_(options), on_(device_of(stream_, options)), watch_(stream_.get(), options.repeats) {
  int device = 0, driver = 0, runtime = 0, l2 = 0;
  cudaDeviceProp properties{};
  check("cudaGetDevice", cudaGetDevice(&device));
  check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device));
  check("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
  check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
  l2_bytes_ = l2;
  char text[400];
  std::snprintf(text, sizeof text,
                "%s (sm_%d%d, %d multiprocessors, L2 cache %.0f MB), CUDA %d.%d, driver for %d.%d",
                properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                1e-6 * l2_bytes_, runtime / 1000, runtime % 1000 / 10, driver / 1000,
                driver % 1000 / 10);
  device_ = text;
  std::printf("%s\n", text);
  std::printf("a block keeps %zu bytes of a row of logits%s\n", on_.tuning().shared_bytes,
              options.shared < 0 ? "" : " (--shared)");
  if (options.divide > 1) std::printf("sizes divided by %td: no gate counts\n", options.divide);
}

double Bench::copy_bandwidth() {
  const index_t n = size(index_t{1} << 26);  // 1 GiB
  const Array<Vector> from(n), to(n);
  for_each(on_, 4 * n, Uniform<float>{reinterpret_cast<float*>(from.data()), 1, 0, 7});
  const double bytes = 2 * static_cast<double>(from.bytes());
  const index_t of_block = Copy::threads * Copy::at_a_time;
  constexpr int calls = 4;
  const Time kernel = watch_.time(calls, [&] {
    for (int c = 0; c < calls; ++c) {
      on_.launch((n + of_block - 1) / of_block, Copy::threads, 0, Copy{from.data(), to.data(), n});
    }
  });
  const Time engine = watch_.time(calls, [&] {
    for (int c = 0; c < calls; ++c) {
      check("cudaMemcpyAsync", cudaMemcpyAsync(to.data(), from.data(), from.bytes(),
                                               cudaMemcpyDeviceToDevice, stream_.get()));
    }
  });
  const double best = bytes / (std::min)(kernel.median, engine.median);
  std::printf("copy, read + written: %.0f GB/s by a kernel, %.0f by cudaMemcpyAsync\n",
              1e-9 * bytes / kernel.median, 1e-9 * bytes / engine.median);
  return best;
}

bool Bench::section(const std::string& name) {
  section_ = name;
  return name.rfind(options_.only, 0) == 0;
}

bool Bench::wants(const std::string& name, bool has_gate) {
  if (name.find(options_.figure) == std::string::npos || (options_.gated && !has_gate))
    return false;
  if (!bandwidths_.empty() && bandwidths_.back().first == section_) return true;
  std::printf("\n## %s\n\n", section_.c_str());
  bandwidth_ = copy_bandwidth();
  bandwidths_.emplace_back(section_, bandwidth_);
  std::printf("\n| | us | quartiles | GB/s | of the copy | gate |\n|---|---|---|---|---|---|\n");
  return true;
}

void Bench::add(const std::string& name, const Time& time, double bytes, double least,
                double most_us) {
  const bool whole = options_.divide == 1;
  const Figure f{section_, name, time, bytes, bandwidth_, whole ? least : 0, whole ? most_us : 0};
  figures_.push_back(f);
  std::printf("| %s | %.2f | %.2f .. %.2f |", name.c_str(), 1e6 * time.median, 1e6 * time.low,
              1e6 * time.high);
  if (bytes > 0) {
    std::printf(" %.0f | %.3f |", 1e-9 * bytes / time.median, f.fraction());
  } else {
    std::printf(" | |");
  }
  if (f.least > 0) std::printf(" >= %.2f", f.least);
  if (f.most_us > 0) std::printf(" <= %.0f us", f.most_us);
  std::printf("%s |\n", f.missed() ? " MISSED" : "");
  write_json();
}

void Bench::wrong(const std::string& name, const std::string& what) {
  failures_.push_back(section_ + ", " + name + ": " + what);
  std::printf("| %s | WRONG: %s |\n", name.c_str(), what.c_str());
  write_json();
}

bool Bench::fits(const std::string& name, double bytes) {
  std::size_t free = 0, total = 0;
  check("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
  if (bytes < 0.95 * static_cast<double>(free)) return true;
  char text[100];
  std::snprintf(text, sizeof text, ": needs %.1f GB, %.1f are free", 1e-9 * bytes,
                1e-9 * static_cast<double>(free));
  not_measured_.push_back(section_ + ", " + name + text);
  return false;
}

bool Bench::close(const std::string& name, const char* what, double got, double want,
                  double within) {
  if (std::abs(got - want) <= within) return true;
  char text[160];
  std::snprintf(text, sizeof text, "%s is %.9g, the CPU's %.9g", what, got, want);
  wrong(name, text);
  return false;
}

int Bench::sets(double bytes) const {
  return static_cast<int>((std::min)(std::ceil(4 * l2_bytes_ / bytes) + 1, 64.0));
}

Time Bench::time_in_graph(double bytes, int sets, const std::function<void(int)>& enqueue) const {
  const double wanted =
      (std::min)((std::max)(4.0, 2e9 / static_cast<double>(options_.divide) / bytes), 256.0);
  const int calls = static_cast<int>(std::ceil(wanted / sets)) * sets;
  enqueue(0);  // loads the kernels, which older drivers cannot do during a capture
  check("cudaStreamSynchronize", cudaStreamSynchronize(stream_.get()));
  const Graph graph(stream_.get(), [&] {
    for (int c = 0; c < calls; ++c) enqueue(c % sets);
  });
  return watch_.time(calls, [&] { graph.launch(stream_.get()); });
}

void Bench::write_json() const {
  if (options_.json.empty()) return;
  // Written under another name, then renamed: FILE is complete whenever this program is stopped.
  const std::string unfinished = options_.json + ".new";
  std::ofstream out(unfinished);
  out << "{\n  \"device\": " << quoted(device_) << ",\n  \"divide\": " << options_.divide
      << ",\n  \"shared_bytes\": " << on_.tuning().shared_bytes << ",\n  \"copy_gb_per_s\": {";
  for (std::size_t i = 0; i < bandwidths_.size(); ++i) {
    out << (i ? ", " : "") << quoted(bandwidths_[i].first) << ": "
        << number(1e-9 * bandwidths_[i].second);
  }
  out << "},\n  \"figures\": [";
  for (std::size_t i = 0; i < figures_.size(); ++i) {
    const Figure& f = figures_[i];
    out << (i ? ",\n    " : "\n    ") << "{\"section\": " << quoted(f.section)
        << ", \"name\": " << quoted(f.name) << ", \"us\": " << number(1e6 * f.time.median)
        << ", \"us_low\": " << number(1e6 * f.time.low)
        << ", \"us_high\": " << number(1e6 * f.time.high);
    if (f.bytes > 0) {
      out << ", \"bytes\": " << number(f.bytes)
          << ", \"gb_per_s\": " << number(1e-9 * f.bytes / f.time.median)
          << ", \"of_copy\": " << number(f.fraction());
    }
    if (f.least > 0) out << ", \"at_least\": " << number(f.least);
    if (f.most_us > 0) out << ", \"at_most_us\": " << number(f.most_us);
    if (f.has_gate()) out << ", \"passed\": " << (f.missed() ? "false" : "true");
    out << "}";
  }
  const auto list = [&](const char* name, const std::vector<std::string>& all) {
    out << ",\n  \"" << name << "\": [";
    for (std::size_t i = 0; i < all.size(); ++i) out << (i ? ", " : "") << quoted(all[i]);
    out << "]";
  };
  out << "\n  ]";
  list("wrong", failures_);
  list("not_measured", not_measured_);
  out << "\n}\n";
  out.close();
  if (!out || std::rename(unfinished.c_str(), options_.json.c_str()) != 0)
    throw std::runtime_error("cannot write " + options_.json);
}

int Bench::finish() const {
  if (bandwidths_.empty() && failures_.empty()) {
    std::fputs("cuda_bench: no figure has those names\n", stderr);
    return 2;
  }
  std::printf("\n");
  write_json();
  for (const std::string& what : not_measured_) std::printf("NOT MEASURED: %s\n", what.c_str());
  for (const std::string& what : failures_) std::printf("WRONG: %s\n", what.c_str());
  int gates = 0, missed = 0;
  for (const Figure& f : figures_) {
    gates += f.has_gate(), missed += f.missed();
    if (f.missed()) std::printf("MISSED: %s, %s\n", f.section.c_str(), f.name.c_str());
  }
  std::printf("%d of %d gates are passed\n", gates - missed, gates);
  return !failures_.empty() || (options_.gates && missed > 0) ? 1 : 0;
}

}  // namespace bench

/// The whole number in the text, or -1 if it is none.
static long number_of(const char* text) {
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  return end == text || *end ? -1 : number;
}
static int usage() {
  std::fputs(
      "usage: cuda_bench [--gates] [--json FILE] [--only SECTION] [--figure NAME] [--gated] "
      "[--shared BYTES] "
      "[--repeats N] "
      "[--divide N]\n",
      stderr);
  return 2;
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines are written at once, also into a file
  bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool last = i + 1 == argc;
    if (argument == "--gates") {
      options.gates = true;
    } else if (argument == "--gated") {
      options.gated = true;
    } else if (last) {
      return usage();
    } else if (argument == "--json") {
      options.json = argv[++i];
    } else if (argument == "--only") {
      options.only = argv[++i];
    } else if (argument == "--figure") {
      options.figure = argv[++i];
    } else if (argument == "--shared") {
      options.shared = number_of(argv[++i]);
      if (options.shared < 0) return usage();
    } else if (argument == "--repeats") {
      options.repeats = static_cast<int>(number_of(argv[++i]));
    } else if (argument == "--divide") {
      options.divide = number_of(argv[++i]);
    } else {
      return usage();
    }
  }
  if (options.repeats < 1 || options.divide < 1) return usage();
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device: nothing is measured");
    return 77;
  }
  try {
    bench::Bench b(options);
    for (void (*section)(bench::Bench&) :
         {bench::loss, bench::advantages, bench::logits, bench::small_steps}) {
      try {
        section(b);
      } catch (const std::exception& e) {
        b.wrong("stopped", e.what());
      }
    }
    return b.finish();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cuda_bench: %s\n", e.what());
    return 1;
  }
}
