// Golden files: what a real implementation returned for given inputs, as JSON.
//
// File  {"source", "version" or "repo" and "commit", "texts", "cases": [...], ...}; a *.json
//       without "cases" is not a golden file. "version" is the release whose code ran.
// Case  {"name", "kind", "function", "precision", "params", "inputs", "expected",
//        "tol": [rtol, atol]} and optionally "ill_conditioned".
// A parameter "#3" stands for texts[3]. NaN is null, infinities are "inf" and "-inf".
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace conformance {

using Json = nlohmann::json;

// Thrown for a directory or file that cannot be used as golden data; what() names it.
struct BadGolden : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How the runner calls the library.
enum class Exec { Seq, Simd, Parallel, Device };
struct Target {
  Exec exec = Exec::Simd;
  bool single = false;  // runs the kernels of float
};

struct Case {
  // version: repository@commit, with eight digits of the commit; or of a release "trl 1.16.0".
  std::string source, version, kind, function, name;
  Json params, inputs, expected;
  double rtol, atol;
  // Recorded in float32: the inputs are rounded to float before the library sees them.
  bool float32;
  bool ill_conditioned;  // the numbers are rounding noise: only finiteness is compared

  std::string file{};          // its name without ".json"
  std::vector<int> release{};  // {1, 16, 0} for 1.16.0; empty if code of a commit was recorded

  Target target{};  // not part of the record
};

// Whether a case is from this release of its trainer or a later one. Commits are older than every
// release that is recorded.
bool since(const Case& recorded, const std::vector<int>& release);

// Dense row-major numbers of any rank; a scalar has no extents and one element.
struct Array {
  std::vector<std::size_t> shape;
  std::vector<double> data;
};

// Reads nested lists of numbers, null, "inf" and "-inf". Throws BadGolden for anything else, ragged
// lists included.
Array array_of(const Json& value);

// Reads a flat list of integers. Throws BadGolden for anything else.
std::vector<long long> integers_of(const Json& value);

// The cases of every golden file directly in `directory`, in the order of the file names. Throws
// BadGolden if there is no such file, or one cannot be read.
std::vector<Case> read_directory(const std::filesystem::path& directory);

}  // namespace conformance
