// Baselines and scales that the library does not ship, one for each thing that a policy may see.
// They compile and give the right numbers, which shows that the contracts of
// gdpo/advantage/stat.hpp are wide enough. Each is as small as possible.
#pragma once
#include <algorithm>
#include <gdpo/advantages.hpp>
#include <vector>

namespace archetype {

/// A scale that reads the group's moments without the member: the spread of the others.
struct LeaveOneOutStd {
  int ddof = 1;
  double eps = 0;
  gdpo::EpsAt eps_at = gdpo::EpsAt::Std;
  double operator()(const gdpo::ScaleArgs& a) const {
    if (a.own < 0)
      return gdpo::multiplier(eps, eps_at, gdpo::variance(a.group, ddof), a.group.n - ddof);
    const gdpo::Moments others = a.group.without(a.value);
    return gdpo::multiplier(eps, eps_at, gdpo::variance(others, ddof), others.n - ddof);
  }
};

inline double median(std::vector<double> x) {
  const std::size_t middle = x.size() / 2;
  std::sort(x.begin(), x.end());
  return x.size() % 2 ? x[middle] : 0.5 * (x[middle - 1] + x[middle]);
}
inline std::vector<double> copy(gdpo::View<const double, 1> x) {
  std::vector<double> all;
  for (gdpo::index_t i = 0; i < x.extent[0]; ++i) all.push_back(x(i));
  return all;
}

/// The median, as a baseline that reads all values of the group and is called for every member.
struct Median {
  static constexpr bool from_group = true;
  double operator()(const gdpo::BaselineArgs& a) const { return median(copy(a.values)); }
};
/// The same for a scale: the median of the distances from the median.
struct MedianAbsoluteDeviation {
  double operator()(const gdpo::ScaleArgs& a) const {
    std::vector<double> x = copy(a.values);
    const double center = median(x);
    for (double& value : x) value = std::abs(value - center);
    const double deviation = median(x);
    return deviation > 0 ? 1 / deviation : 0.0;
  }
};

/// The same two with `per_group_values`: called once per group, with scratch memory. They count
/// their calls.
inline double median_of_scratch(gdpo::View<double, 1> x) {
  const gdpo::index_t n = x.extent[0];
  std::sort(x.data, x.data + n);
  return n % 2 ? x(n / 2) : 0.5 * (x(n / 2 - 1) + x(n / 2));
}
struct MedianOfGroup {
  static constexpr bool per_group_values = true, from_group = true;
  int* calls = nullptr;
  bool reads_batch() const { return false; }
  double operator()(const gdpo::GroupArgs& a) const {
    if (calls) ++*calls;
    for (gdpo::index_t j = 0; j < a.values.extent[0]; ++j) a.scratch(j) = a.values(j);
    return median_of_scratch(a.scratch);
  }
};
struct MedianAbsoluteDeviationOfGroup {
  static constexpr bool per_group_values = true;
  int* calls = nullptr;
  bool reads_batch() const { return false; }
  double operator()(const gdpo::GroupArgs& a) const {
    if (calls) ++*calls;
    const double center = MedianOfGroup{}(a);
    for (gdpo::index_t j = 0; j < a.values.extent[0]; ++j)
      a.scratch(j) = std::abs(a.values(j) - center);
    const double deviation = median_of_scratch(a.scratch);
    return deviation > 0 ? 1 / deviation : 0.0;
  }
};

/// A baseline that reads the members' token counts, as OPO does: sum l_j x_j / sum l_j.
struct LengthWeighted {
  static constexpr bool from_group = true;
  double operator()(const gdpo::BaselineArgs& a) const {
    double sum = 0, tokens = 0;
    for (gdpo::index_t j = 0; j < a.values.extent[0]; ++j)
      sum += a.tokens(j) * a.values(j), tokens += a.tokens(j);
    return tokens > 0 ? sum / tokens : 0.0;
  }
};

/// A baseline that reads the caller's value of each row. It does not come from inside the group, so
/// a group of equal rewards need not get 0.
struct External {
  double operator()(const gdpo::BaselineArgs& a) const {
    return a.own < 0 ? a.group.mean : a.external(a.own);
  }
};

/// A baseline that reads the caller's row weights: sum w_j x_j / sum w_j.
struct RowWeighted {
  double operator()(const gdpo::BaselineArgs& a) const {
    double sum = 0, weight = 0;
    for (gdpo::index_t j = 0; j < a.values.extent[0]; ++j)
      sum += a.weights(j) * a.values(j), weight += a.weights(j);
    return sum / weight;
  }
};

/// A scale that reads the batch: 1 / (share of the used values that are not 0), as GPG does.
struct NonzeroShare {
  static constexpr bool per_group = true;
  double operator()(const gdpo::ScaleArgs& a) const {
    const gdpo::index_t nonzero = a.batch.nonzero > 0 ? a.batch.nonzero : 1;
    return static_cast<double>(a.batch.used) / static_cast<double>(nonzero);
  }
};

/// A baseline that declares nothing, so it is called for every member. It records its calls.
struct Recorder {
  struct Call {
    gdpo::index_t own, n;
    double value;
  };
  std::vector<Call>* calls = nullptr;
  double operator()(const gdpo::BaselineArgs& a) const {
    calls->push_back({a.own, a.values.extent[0], a.value});
    return a.group.mean;
  }
};

/// A baseline that is called once per group, with double only (no lanes). It counts its calls.
struct MidRange {
  static constexpr bool per_group = true, from_group = true;
  int* calls = nullptr;
  bool reads_batch() const { return false; }
  double operator()(const gdpo::BaselineArgs& a) const {
    if (calls) ++*calls;
    return 0.5 * (a.group.min + a.group.max);
  }
};

/// The group mean. It counts its calls with the moments of one group, and those with the moments of
/// several groups in lanes.
struct LaneCounter {
  static constexpr bool per_group = true, takes_lanes = true, from_group = true, zero_sum = true;
  int *groups = nullptr, *lanes = nullptr;
  bool reads_batch() const { return false; }
  template <class Args>
  auto operator()(const Args& a) const {
    ++*(std::is_same_v<Args, gdpo::BaselineArgs> ? groups : lanes);
    return gdpo::baseline::Mean{}(a);
  }
};

}  // namespace archetype
