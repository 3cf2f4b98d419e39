// labels: sanitizers
// The kernels of advantages, on a device or on a simulated grid. Their results are compared with
// those of gdpo::seq bit by bit: statistics are in double without fused multiply-add, so the bits
// do not depend on whether the host has FMA.
#include <array>
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantage/device_two_stages.hpp>
#include <gdpo/runtime.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/renormed.hpp"
#include "support/tolerance.hpp"

namespace advantages_test {

namespace {

using gdpo::index_t;
using gdpo::view;
namespace math = gdpo::math;

/// A device that counts its launches and checks that a block needs no more shared memory than every
/// device from sm_80 on has.
struct Counting {
  static constexpr bool launches_kernels = true;
  TestDevice device;
  mutable int launches = 0;
  const gdpo::cuda::Tuning& tuning() const { return device.tuning(); }
  template <class Kernel>
  void launch(index_t blocks, int threads, std::size_t shared_bytes, const Kernel& kernel) const {
    ++launches;
    CHECK(shared_bytes <= 96 * 1024);
    device.launch(blocks, threads, shared_bytes, kernel);
  }
};

/// Calls advantages_into on the device with exactly the scratch that it asks for, filled with NaN,
/// and checks that the bytes behind it stay as they were.
template <class R, class T, class Groups, class Estimator>
std::vector<R> on_device(const TestDevice& device, const gdpo::RewardBatch<T, Groups>& batch,
                         const Estimator& estimator, int* launches = nullptr) {
  struct alignas(256) Line {
    unsigned char bytes[256];
  };
  const std::size_t bytes = gdpo::cuda::scratch_bytes(estimator, batch);
  std::vector<Line> lines(bytes / sizeof(Line) + 1);
  const auto bytes_of = [](std::vector<Line>& of) {
    return reinterpret_cast<unsigned char*>(of.data());
  };
  const std::size_t behind = lines.size() * sizeof(Line) - bytes;
  std::fill_n(bytes_of(lines), bytes, static_cast<unsigned char>(0xff));
  std::fill_n(bytes_of(lines) + bytes, behind, static_cast<unsigned char>(0x5a));
  OnDevice<Line> memory(lines);
  OnDevice<R> out(std::vector<R>(static_cast<std::size_t>(batch.rewards.extent[0]), R(-77)));
  const Counting counting{device};
  gdpo::advantages_into(counting, batch, estimator, view(out.data(), batch.rewards.extent[0]),
                        gdpo::cuda::Scratch{memory.data(), bytes});
  if (launches) *launches = counting.launches;
  lines = memory.host();
  CHECK(std::all_of(bytes_of(lines) + bytes, bytes_of(lines) + bytes + behind,
                    [](unsigned char c) { return c == 0x5a; }));
  return out.host();
}
template <class R, class T, class Groups, class Estimator>
std::vector<R> on_host(const gdpo::RewardBatch<T, Groups>& batch, const Estimator& estimator) {
  std::vector<R> out(static_cast<std::size_t>(batch.rewards.extent[0]));
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, estimator, view(out), workspace);
  return out;
}

/// Returns "" if the numbers have the same bits or differ by no more than `within` times the
/// largest finite one, where every NaN counts as the same; otherwise the first difference.
template <class R>
std::string difference(const std::vector<R>& got, const std::vector<R>& wanted, double within = 0) {
  double largest = 0;
  for (const R x : wanted)
    largest = std::isfinite(x) ? std::max<double>(largest, std::abs(x)) : largest;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double a = got[i], b = wanted[i];
    if (same_bits(a, b) || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= within * largest)
      continue;
    char text[128];
    std::snprintf(text, sizeof text, "[%zu of %zu] %.17g instead of %.17g", i, wanted.size(), a, b);
    return text;
  }
  return "";
}

template <class T>
struct Case {
  index_t rows = 0, reward_count = 0;
  std::vector<T> rewards;
  std::vector<int> tokens;
  std::vector<unsigned char> valid;
  std::vector<double> penalty, external;
  std::vector<float> weights;
  bool complete = true;  ///< every row is used and has all rewards

  gdpo::View<const T, 2> table() const { return view(rewards.data(), rows, reward_count); }
  template <class Batch>
  void add_columns(Batch& batch) const {
    batch.tokens = view(tokens);
    if (!valid.empty()) batch.valid = view(valid);
    batch.penalty = view(penalty);
    batch.baseline = view(external);
    batch.weights = view(weights);
  }
};

/// The arrays of a Case in the memory of the device.
template <class T>
class CaseOnDevice {
 public:
  explicit CaseOnDevice(const Case<T>& c)
      : rows_(c.rows),
        reward_count_(c.reward_count),
        rewards_(c.rewards),
        tokens_(c.tokens),
        valid_(c.valid),
        penalty_(c.penalty),
        external_(c.external),
        weights_(c.weights),
        has_valid_(!c.valid.empty()) {}
  template <class Groups>
  gdpo::RewardBatch<T, Groups> batch(const Groups& groups) {
    gdpo::RewardBatch<T, Groups> batch{
        view(static_cast<const T*>(rewards_.data()), rows_, reward_count_), groups};
    batch.tokens = view(tokens_.data(), rows_);
    if (has_valid_) batch.valid = view(valid_.data(), rows_);
    batch.penalty = view(penalty_.data(), rows_);
    batch.baseline = view(external_.data(), rows_);
    batch.weights = view(weights_.data(), rows_);
    return batch;
  }

 private:
  index_t rows_, reward_count_;
  OnDevice<T> rewards_;
  OnDevice<int> tokens_;
  OnDevice<unsigned char> valid_;
  OnDevice<double> penalty_, external_;
  OnDevice<float> weights_;
  bool has_valid_;
};

/// Groups in the memory of the device: by offsets, and by id in the order into which the host has
/// sorted them.
class OffsetsOnDevice {
 public:
  explicit OffsetsOnDevice(const std::vector<int>& offsets)
      : offsets_(offsets), n_(static_cast<index_t>(offsets.size())) {}
  gdpo::ByOffsets<int> groups() {
    return gdpo::by_offsets(view(static_cast<const int*>(offsets_.data()), n_));
  }

 private:
  OnDevice<int> offsets_;
  index_t n_;
};
class SortedOnDevice {
 public:
  explicit SortedOnDevice(const gdpo::ById& ids)
      : SortedOnDevice(all(ids.order()), all(ids.offsets())) {}
  SortedOnDevice(const std::vector<index_t>& order, const std::vector<index_t>& offsets)
      : order_(order),
        offsets_(offsets),
        rows_(static_cast<index_t>(order.size())),
        n_(static_cast<index_t>(offsets.size())) {}
  gdpo::cuda::SortedGroups<index_t> groups() {
    return gdpo::cuda::sorted_groups(view(order_.data(), rows_), view(offsets_.data(), n_));
  }

 private:
  static std::vector<index_t> all(const gdpo::View<const index_t, 1>& of) {
    return std::vector<index_t>(of.data, of.data + of.extent[0]);
  }
  OnDevice<index_t> order_, offsets_;
  index_t rows_, n_;
};

/// Random rewards of every kind, among them groups of `group` rows with constant rewards, and
/// rewards that cancel in the sum.
template <class T>
Case<T> random_case(Random& random, index_t rows, index_t reward_count, index_t group,
                    double missing, double unused) {
  Case<T> c;
  c.rows = rows, c.reward_count = reward_count;
  const int kind = random.below(4);
  const double offset = random.pick({0.0, 0.0, 0.1, 1e5});
  bool constant = false;
  index_t equal = -1;  // the reward that is the same for all members of the group
  for (index_t i = 0; i < rows; ++i) {
    if (i % group == 0)
      constant = random.chance(0.25), equal = random.below(static_cast<int>(reward_count) + 2);
    for (index_t j = 0; j < reward_count; ++j) {
      double x = constant || j == equal ? 0.1 * static_cast<double>(j + 1)
                                        : offset + random_reward(random, kind);
      if (j == 1 && kind == 1) x = 1 - static_cast<double>(c.rewards.back());
      if (std::is_floating_point_v<T> && random.chance(missing))
        x = std::nan(""), c.complete = false;
      if constexpr (std::is_integral_v<T>) x = std::floor(x);
      c.rewards.push_back(static_cast<T>(x));
    }
    c.tokens.push_back(random.below(40));
    c.penalty.push_back(0.125 * random.below(9));
    c.external.push_back(random.uniform());
    c.weights.push_back(static_cast<float>(random.uniform()));
    if (unused > 0) c.valid.push_back(!random.chance(unused));
  }
  c.complete = c.complete && unused == 0;
  return c;
}

std::vector<int> random_offsets(Random& random, index_t rows, int longest) {
  std::vector<int> offsets{0};
  while (offsets.back() < rows) {
    offsets.push_back(
        static_cast<int>(std::min<index_t>(rows, offsets.back() + random.below(longest + 1))));
  }
  if (random.chance(0.3)) offsets.push_back(offsets.back());  // an empty group at the end
  return offsets;
}

template <class Estimator>
bool reads_batch(const Estimator& e) {
  return gdpo::detail::ReadsBatch<decltype(e.baseline)>::of(e.baseline) ||
         gdpo::detail::ReadsBatch<decltype(e.scale)>::of(e.scale);
}
/// Tolerance, relative to the largest advantage, where statistics over the batch leave rows out.
/// The device adds rows at their places in the batch, the host without gaps, so the order of
/// summation differs. 2^-44 is what merged Moments promise.
constexpr double other_order = 0x1p-44;

template <class R, class T, class Groups, class DeviceGroups, class Estimator>
void check_parity(const Case<T>& c, const Groups& groups, const DeviceGroups& device_groups,
                  const Estimator& e, const TestDevice& device) {
  gdpo::RewardBatch<T, Groups> host{c.table(), groups};
  c.add_columns(host);
  CaseOnDevice<T> on(c);
  const bool same_order = c.complete || !reads_batch(e);
  CHECK(difference(on_device<R>(device, on.batch(device_groups), e), on_host<R>(host, e),
                   same_order ? 0.0 : other_order) == "");
}

template <class R, class T, class Estimator>
void check_ragged(Random& random, index_t group, const Case<T>& c, const Estimator& e,
                  const TestDevice& device) {
  const std::vector<int> offsets = random_offsets(random, c.rows, static_cast<int>(2 * group));
  OffsetsOnDevice on(offsets);
  check_parity<R>(c, gdpo::by_offsets(offsets), on.groups(), e, device);
}
template <class R, class T, class Estimator>
void check_by_id(Random& random, index_t group, const Case<T>& c, const Estimator& e,
                 const TestDevice& device) {
  std::vector<index_t> ids;
  for (index_t i = 0; i < c.rows; ++i)
    ids.push_back(random.below(static_cast<int>(c.rows / group + 1)) * 17 - 5);
  const gdpo::ById groups = gdpo::by_id(ids);
  SortedOnDevice on(groups);
  check_parity<R>(c, groups, on.groups(), e, device);
}
/// Groups of one size. The host is given them as offsets, so that fewer types are compiled.
template <class R, class T, class Estimator>
void check_fixed(index_t group, const Case<T>& c, const Estimator& e, const TestDevice& device) {
  std::vector<int> offsets;
  for (index_t i = 0; i <= c.rows; i += group) offsets.push_back(static_cast<int>(i));
  check_parity<R>(c, gdpo::by_offsets(offsets), gdpo::groups_of(group), e, device);
}

TestDevice random_device(Random& random) {
  const auto seed = static_cast<unsigned>(random.bits());
  gdpo::cuda::Tuning tuning;
  tuning.blocks = random.pick({1, 3, 40, 1056});
  return test_device(seed, tuning);
}

}  // namespace

TEST_CASE("cuda: named estimators give the bits of seq") {
  const std::uint64_t first_seed = 20261;
  for (std::uint64_t seed = first_seed; seed < first_seed + 12; ++seed) {
    INFO("seed " << seed);
    for (const std::string& name : gdpo::runtime::estimator_names()) {
      INFO(name);
      Random random(seed * 1000 + name.size());
      const index_t group = random.pick({1, 2, 3, 8, 16, 40}), rows = group * (1 + random.below(9)),
                    reward_count = 1 + random.below(random.chance(0.2) ? 20 : 9);
      const Case<double> c =
          random_case<double>(random, rows, reward_count, group, random.pick({0.0, 0.0, 0.2}),
                              random.pick({0.0, 0.0, 0.3}));
      INFO("rows " << rows << ", rewards " << reward_count << ", group " << group);
      const TestDevice device = random_device(random);
      std::visit(
          [&](auto e) {
            if (random.chance(0.5)) {
              std::vector<double> weights;
              for (index_t j = 0; j < reward_count; ++j)
                weights.push_back(random.pick({0.0, 1.0, 0.5, -2.0, 1.0}));
              e.weights = weights;
            }
            check_ragged<double>(random, group, c, e, device);
          },
          gdpo::runtime::estimator(name));
    }
  }
}

namespace {

/// The estimator with random values of every setting that a device takes.
template <class Estimator>
Estimator random_settings(Random& random, Estimator e, index_t reward_count) {
  using namespace gdpo;
  if (random.chance(0.5)) {
    std::vector<double> weights;
    for (index_t j = 0; j < reward_count; ++j)
      weights.push_back(random.pick({0.0, 1.0, 0.5, -2.0, 1.0}));
    e.weights = weights;
  }
  const int c = static_cast<int>(reward_count);
  if (random.chance(0.3))
    e.gates = {{random.below(c), random.below(c), 0.5}, {random.below(c), random.below(c), -0.1}};
  e.missing = {random.pick({MissingEntry::Skip, MissingEntry::Skip, MissingEntry::Zero,
                            MissingEntry::Propagate}),
               random.pick({MissingRow::Exclude, MissingRow::ExcludeUnscored, MissingRow::Keep}),
               random.pick({InfiniteEntry::Propagate, InfiniteEntry::Propagate,
                            InfiniteEntry::Missing, InfiniteEntry::NanToNum}),
               random.pick({UnusedRow::Compare, UnusedRow::Compare, UnusedRow::Exclude})};
  e.singleton = random.pick({Singleton::Zero, Singleton::Exclude, Singleton::Raw, Singleton::Nan});
  if (random.chance(0.2)) e.reward_clip = {random.pick({-0.5, 0.25}), 0.75};
  if (random.chance(0.2)) e.clip = {random.pick({-1.0, 0.0}), 0.5};
  constexpr bool sums_first = std::is_same_v<decltype(e.combine), combine::SumThenNormalize>;
  if (random.chance(0.3))
    e.penalty = {random.pick({0.04, -0.5}), sums_first ? -1 : random.below(c)};
  const auto spread = [&](auto& of) {
    of.ddof = random.below(2);
    of.eps = random.pick({0.0, 1e-4});
    of.eps_at = random.pick(
        {EpsAt::Std, EpsAt::Var, EpsAt::ClampStd, EpsAt::ClampVar, EpsAt::None, EpsAt::StdOrOne});
  };
  if constexpr (std::is_same_v<decltype(e.scale), scale::StdDev>) {
    spread(e.scale);
    e.scale.of =
        random.pick({scale::Of::Group, scale::Of::Group, scale::Of::Batch, scale::Of::BatchCentered,
                     scale::Of::GroupOthers, scale::Of::GroupRms, scale::Of::BatchRms});
  }
  if (e.renorm.over != RenormOver::None) {
    spread(e.renorm);
    e.renorm.count_eps = random.pick({0.0, 1e-8});
    e.renorm.keep_mean = random.chance(0.3);
  }
  return e;
}

enum class Grouping { Ragged, ById };

template <Grouping grouping, class Estimator>
void check_settings(Random& random, const Estimator& plain) {
  const index_t group = random.pick({1, 2, 4, 5, 16, 33}), rows = group * random.below(12),
                reward_count = 1 + random.below(10);
  Case<double> c = random_case<double>(random, rows, reward_count, group,
                                       random.pick({0.0, 0.1, 0.6}), random.pick({0.0, 0.3, 0.8}));
  const double infinite = random.pick({0.0, 0.0, 0.02, 0.2});
  for (double& reward : c.rewards) {
    if (!random.chance(infinite)) continue;
    reward = random.pick({gdpo::math::infinity, -gdpo::math::infinity});
    c.complete = false;
  }
  const Estimator e = random_settings(random, plain, reward_count);
  INFO("rows " << rows << ", rewards " << reward_count << ", group " << group << ", missing entry "
               << static_cast<int>(e.missing.entry) << ", row " << static_cast<int>(e.missing.row)
               << ", infinite " << static_cast<int>(e.missing.infinite) << ", unused "
               << static_cast<int>(e.missing.unused) << ", weights " << e.weights.size()
               << ", combine, baseline, scale " << typeid(Estimator).name() << ", singleton "
               << static_cast<int>(e.singleton));
  if constexpr (grouping == Grouping::ById) {
    check_by_id<double>(random, group, c, e, random_device(random));
  } else {
    check_ragged<double>(random, group, c, e, random_device(random));
  }
}

}  // namespace

TEST_CASE("cuda: every axis with random settings gives the bits of seq") {
  using namespace gdpo;
  for (std::uint64_t seed = 31; seed < 31 + (few_rounds ? 25 : 150); ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    check_settings<Grouping::Ragged>(random, Gdpo{});
    check_settings<Grouping::Ragged>(random, Rloo{});
    check_settings<Grouping::Ragged>(random, verl::gdpo);
    check_settings<Grouping::Ragged>(random, verl::reinforce_plus_plus_baseline);
    check_settings<Grouping::Ragged>(random, per_group::gdpo);
    check_settings<Grouping::Ragged>(random,
                                     GroupAdvantage<baseline::LeaveOneOut, scale::StdDev>{});
    check_settings<Grouping::Ragged>(random, GroupAdvantage<baseline::None, scale::None>{});
    check_settings<Grouping::Ragged>(
        random, renormed(GroupAdvantage<baseline::None, scale::StdDev, combine::SumThenNormalize>{},
                         renorm::batch()));
    check_settings<Grouping::ById>(random, Gdpo{});
    check_settings<Grouping::ById>(random, verl::gdpo);
    check_settings<Grouping::ById>(random, per_group::gdpo);
    check_settings<Grouping::ById>(random, ms_swift::rloo_group_scale);
  }
}

TEST_CASE("cuda: batches of many windows, with groups across them", "[sanitize]") {
  Random random(4);
  for (const index_t group : {3, 7, 64, 5000}) {
    const index_t rows = (2 * 4096 + 700) / group * group + group;
    const Case<double> c = random_case<double>(random, rows, 3, group, 0.01, 0.05);
    INFO("group " << group);
    check_fixed<double>(group, c, gdpo::trl::gdpo, random_device(random));
    check_fixed<double>(group, c, gdpo::Grpo{}, random_device(random));
    check_ragged<double>(random, group, c, gdpo::trl::gdpo, random_device(random));
    check_ragged<double>(random, group, c, gdpo::verl::gdpo, random_device(random));
    check_ragged<double>(random, group, c, gdpo::ms_swift::reinforce_plus_plus,
                         random_device(random));
    check_by_id<double>(random, group, c, gdpo::trl::gdpo, random_device(random));
    check_by_id<double>(random, group, c, gdpo::verl::gdpo, random_device(random));
    check_by_id<double>(random, group, c, gdpo::ms_swift::rloo_batch_scale, random_device(random));
  }
}

TEST_CASE("cuda: groups of one size give the bits of seq") {
  for (std::uint64_t seed = 71; seed < 71 + 150; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const index_t group = random.pick({1, 2, 4, 7, 8, 9, 16, 64}), rows = group * random.below(40),
                  reward_count = 1 + random.below(10);
    const Case<double> c =
        random_case<double>(random, rows, reward_count, group, random.pick({0.0, 0.0, 0.1}),
                            random.pick({0.0, 0.0, 0.3}));
    check_fixed<double>(group, c, random_settings(random, gdpo::Gdpo{}, reward_count),
                        random_device(random));
    check_fixed<double>(group, c, random_settings(random, gdpo::Grpo{}, reward_count),
                        random_device(random));
    gdpo::Gdpo plain;
    check_fixed<double>(group, c, plain, random_device(random));
  }
}

TEST_CASE("cuda: more groups than threads", "[sanitize]") {
  Random random(10);
  for (const index_t reward_count : {1, 2, 3, 8}) {
    INFO(reward_count << " rewards");
    const Case<double> c = random_case<double>(random, 5000, reward_count, 2, 0, 0);
    gdpo::cuda::Tuning tuning;
    tuning.blocks = 1;
    const TestDevice device = test_device(11, tuning);
    check_fixed<double>(2, c, gdpo::Gdpo{}, device);
    check_fixed<double>(2, c, gdpo::Grpo{}, device);
    check_ragged<double>(random, 1, c, gdpo::Rloo{}, device);
    check_ragged<double>(random, 1, c,
                         gdpo::GroupAdvantage<gdpo::baseline::LeaveOneOut, gdpo::scale::StdDev>{},
                         device);
  }
}

TEST_CASE("cuda: neither the order of threads nor the tuning changes a bit", "[sanitize]") {
  Random random(5);
  const Case<double> c = random_case<double>(random, 6000, 8, 8, 0.01, 0.1);
  std::vector<index_t> ids;
  for (index_t i = 0; i < c.rows; ++i) ids.push_back(random.below(700));
  SortedOnDevice by_id(gdpo::by_id(ids));
  CaseOnDevice<double> on(c);
  const auto batch = on.batch(gdpo::groups_of(8));
  const auto sorted = on.batch(by_id.groups());
  const auto check = [](const auto& of, const auto& e) {
    const std::vector<double> first = on_device<double>(test_device(), of, e);
    for (const int blocks : {1, 2, 7, 100000}) {
      gdpo::cuda::Tuning tuning;
      tuning.blocks = blocks;
      CHECK(difference(
                on_device<double>(test_device(static_cast<unsigned>(blocks) + 9, tuning), of, e),
                first) == "");
    }
  };
  check(batch, gdpo::Gdpo{});
  check(sorted, gdpo::ms_swift::rloo_batch_scale);
  check(sorted, gdpo::Gdpo{});
  check(sorted, gdpo::verl::gdpo);
}

TEST_CASE("cuda: Gdpo and Grpo take at most two launches", "[sanitize]") {
  Random random(6);
  const auto launches = [](const auto& batch, const auto& e) {
    int count = 0;
    on_device<double>(test_device(), batch, e, &count);
    return count;
  };
  for (const index_t rows : {8, 4096, 9000}) {
    CaseOnDevice<double> on(random_case<double>(random, rows, 8, 8, 0, 0));
    OffsetsOnDevice offsets(random_offsets(random, rows, 16));
    const auto fixed = on.batch(gdpo::groups_of(8));
    const auto ragged = on.batch(offsets.groups());
    CHECK(launches(fixed, gdpo::Gdpo{}) == 2);
    CHECK(launches(ragged, gdpo::Gdpo{}) == 2);
    CHECK(launches(fixed, gdpo::trl::gdpo) == 2);
    CHECK(launches(fixed, gdpo::Grpo{}) == 1);
    CHECK(launches(ragged, gdpo::Rloo{}) == 1);
    CHECK(launches(ragged, gdpo::per_group::gdpo) == 2);
  }
}

TEMPLATE_TEST_CASE("cuda: rewards of any storage type and strides", "[sanitize]", float,
                   gdpo::Float16, gdpo::BFloat16, std::uint8_t, std::int64_t) {
  Random random(7);
  using T = TestType;
  const index_t rows = 24, reward_count = GENERATE(5, 8);  // 8: a row is read in vectors
  // Three tables: column-major with gaps and rows in reverse order; dense; and dense from an
  // address at which no vector can start.
  std::vector<T> memory(static_cast<std::size_t>(rows * reward_count * 2 + 1));
  for (T& x : memory) {
    if constexpr (std::is_arithmetic_v<T>) {
      x = static_cast<T>(random.below(4));
    } else {
      gdpo::store(x, 0.25f * static_cast<float>(random.below(9)));
    }
  }
  const auto tables = [&](const T* at) {
    return std::array<gdpo::View<const T, 2>, 3>{
        {{at + 2 * (rows - 1), {rows, reward_count}, {-2, 2 * rows}},
         view(at, rows, reward_count),
         view(at + 1, rows, reward_count)}};
  };
  OnDevice<T> on(memory);
  for (std::size_t t = 0; t < 3; ++t) {
    INFO("table " << t);
    const gdpo::View<const T, 2> rewards = tables(memory.data())[t];
    Case<double> c;
    c.rows = rows, c.reward_count = reward_count;
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < reward_count; ++j) c.rewards.push_back(gdpo::load(rewards(i, j)));
    }
    const std::vector<int> offsets{0, 4, 8, 12, 16, 20, 24};
    const gdpo::RewardBatch<double, gdpo::ByOffsets<int>> host{c.table(),
                                                               gdpo::by_offsets(offsets)};
    const gdpo::RewardBatch<T, gdpo::GroupsOf> batch{tables(on.data())[t], gdpo::groups_of(4)};
    const std::vector<double> wanted = on_host<double>(host, gdpo::Gdpo{});
    CHECK(difference(on_device<double>(test_device(), batch, gdpo::Gdpo{}), wanted) == "");
    OnDevice<float> out(std::vector<float>(3 * static_cast<std::size_t>(rows), -77.0f));
    TestScratch scratch(gdpo::cuda::scratch_bytes(gdpo::Gdpo{}, batch));
    gdpo::advantages_into(test_device(), batch, gdpo::Gdpo{},
                          gdpo::View<float, 1>{out.data(), {rows}, {3}}, scratch());
    const std::vector<float> wide = out.host();
    for (std::size_t i = 0; i < wide.size(); ++i) {
      CHECK(wide[i] == (i % 3 == 0 ? static_cast<float>(wanted[i / 3]) : -77.0f));
    }
  }
}

namespace {

// User policies as kernels need them: marked for the device, with products that are added going
// through math::mul, so that no compiler fuses them. As in support/archetypes.hpp there is one for
// each kind of input that a policy may read.

/// The median of f(0), ..., f(n - 1) without memory: it counts how many values are below each one.
template <class F>
GDPO_DEVICE double median(index_t n, const F& f) {
  double low = 0, high = 0;
  for (index_t i = 0; i < n; ++i) {
    const double x = f(i);
    index_t below = 0, equal = 0;
    for (index_t j = 0; j < n; ++j) below += f(j) < x, equal += f(j) == x;
    const auto is = [&](index_t place) { return below <= place && place < below + equal; };
    if (is((n - 1) / 2)) low = x;
    if (is(n / 2)) high = x;
  }
  return math::mul(0.5, low + high);
}
struct Median {
  static constexpr bool from_group = true;
  GDPO_DEVICE double operator()(const gdpo::BaselineArgs& a) const {
    return median(a.values.extent[0], [&](index_t j) { return a.values(j); });
  }
};
struct MedianAbsoluteDeviation {
  GDPO_DEVICE double operator()(const gdpo::ScaleArgs& a) const {
    const double center = median(a.values.extent[0], [&](index_t j) { return a.values(j); });
    const double deviation =
        median(a.values.extent[0], [&](index_t j) { return math::abs(a.values(j) - center); });
    return deviation > 0 ? 1 / deviation : 0.0;
  }
};
struct LengthWeighted {
  static constexpr bool from_group = true;
  GDPO_DEVICE double operator()(const gdpo::BaselineArgs& a) const {
    double sum = 0, tokens = 0;
    for (index_t j = 0; j < a.values.extent[0]; ++j) {
      sum += math::mul(a.tokens(j), a.values(j)), tokens += a.tokens(j);
    }
    return tokens > 0 ? sum / tokens : 0.0;
  }
};
struct RowWeighted {
  GDPO_DEVICE double operator()(const gdpo::BaselineArgs& a) const {
    double sum = 0, weight = 0;
    for (index_t j = 0; j < a.values.extent[0]; ++j) {
      sum += math::mul(a.weights(j), a.values(j)), weight += a.weights(j);
    }
    return sum / weight;
  }
};
struct External {
  GDPO_DEVICE double operator()(const gdpo::BaselineArgs& a) const {
    return a.own < 0 ? a.group.mean : a.external(a.own);
  }
};
struct MidRange {
  static constexpr bool per_group = true, from_group = true;
  bool reads_batch() const { return false; }
  GDPO_DEVICE double operator()(const gdpo::BaselineArgs& a) const {
    return math::mul(0.5, a.group.min + a.group.max);
  }
};

}  // namespace

TEST_CASE("cuda: policies that read members, tokens, weights, a baseline or the batch") {
  using namespace gdpo;
  using combine::SumThenNormalize;
  for (std::uint64_t seed = 51; seed < 51 + 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const index_t group = random.pick({1, 3, 8, 20}), rows = group * (1 + random.below(9)),
                  reward_count = 1 + random.below(10);
    const Case<double> c = random_case<double>(random, rows, reward_count, group,
                                               random.pick({0.0, 0.2}), random.pick({0.0, 0.3}));
    const std::vector<int> offsets = random_offsets(random, rows, static_cast<int>(2 * group));
    OffsetsOnDevice on(offsets);
    const auto check = [&](const auto& e) {
      check_parity<double>(c, gdpo::by_offsets(offsets), on.groups(), e, random_device(random));
    };
    check(GroupAdvantage<Median, MedianAbsoluteDeviation>{});
    check(renormed(GroupAdvantage<LengthWeighted, scale::StdDev, SumThenNormalize>{},
                   renorm::batch()));
    check(GroupAdvantage<RowWeighted, scale::NonzeroShare>{});
    check(renormed(GroupAdvantage<External, scale::None, SumThenNormalize>{}, renorm::batch()));
    check(GroupAdvantage<MidRange, scale::LeaveOneOutStd>{});
    GroupAdvantage<baseline::Median, scale::Mad> robust;
    robust.scale.at_zero = random.pick({AtZero::Std, AtZero::Zero});
    robust.scale.eps_at = random.pick({EpsAt::Std, EpsAt::StdOrOne});
    check(robust);
    check(renormed(GroupAdvantage<baseline::TrimmedMean, scale::LeaveOneOutStd, SumThenNormalize>{},
                   renorm::batch()));
    check(renormed(GroupAdvantage<baseline::LeaveOneOut, scale::Iqr, SumThenNormalize>{},
                   renorm::batch()));
    check(GroupAdvantage<baseline::WinsorizedMean, scale::None>{});
    check(GroupAdvantage<baseline::LengthWeighted, scale::StdDev>{});
    check(renormed(GroupAdvantage<baseline::SecondBest, scale::StdDev, SumThenNormalize>{},
                   renorm::batch()));
    check(GroupAdvantage<baseline::External, scale::Mad>{});
    GroupAdvantage<baseline::LogMeanExp, scale::GroupMean> bounded;
    bounded.baseline.tau = random.pick({0.3, 2.0});
    bounded.scale.divide_by =
        random.pick({scale::DivideBy::PositiveMeans, scale::DivideBy::AnyMean});
    bounded.reward_clip = {-0.5, 0.75}, bounded.clip = {-1, 0.5};
    bounded.singleton = random.pick({Singleton::Exclude, Singleton::Raw});
    check(bounded);
    GroupAdvantage<baseline::BatchMean, scale::StdDev, SumThenNormalize> of_batch;
    of_batch.baseline.leave_one_out = random.chance(0.5);
    of_batch.scale.of = random.pick({scale::Of::GroupOthers, scale::Of::GroupRms});
    of_batch.reward_clip = {-1, 1};
    check(of_batch);
  }
}

TEST_CASE("cuda: what is left out changes no bit, and equal rewards give exactly 0", "[sanitize]") {
  Random random(8);
  Case<double> c = random_case<double>(random, 64, 4, 8, 0, 0.3);
  gdpo::Gdpo e;
  e.weights = {1.0, 0.0, 2.0, 0.5};
  const auto advantages = [&] {
    CaseOnDevice<double> on(c);
    return on_device<double>(test_device(), on.batch(gdpo::groups_of(8)), e);
  };
  const std::vector<double> before = advantages();
  std::vector<double> unused;
  for (index_t i = 0; i < c.rows; ++i) {
    double* const row = &c.rewards[static_cast<std::size_t>(i * 4)];
    row[1] = random.pick({std::nan(""), 1e300, double{gdpo::math::infinity}});
    if (!c.valid[static_cast<std::size_t>(i)]) row[0] = row[2] = row[3] = std::nan("");
  }
  const std::vector<double> after = advantages();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (c.valid[i]) CHECK(same_bits(before[i], after[i]));
  }
  OnDevice<double> equal(std::vector<double>(21 * 3, 0.1));
  OffsetsOnDevice offsets({0, 1, 7, 7, 19, 21});
  const gdpo::RewardBatch batch{view(equal.data(), 21, 3), offsets.groups()};
  for (const char* const name :
       {"gdpo", "grpo", "rloo", "trl::gdpo", "per_group::gdpo", "ms_swift::reinforce_plus_plus"}) {
    std::visit(
        [&](const auto& of) {
          for (const double x : on_device<double>(test_device(), batch, of))
            CHECK(same_bits(x, 0.0));
        },
        gdpo::runtime::estimator(name));
  }
}

TEST_CASE("cuda: no rows, no rewards, one row") {
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    INFO(name);
    const auto check = [&](const auto& e, index_t rows, index_t reward_count, index_t group) {
      Random random(9);
      check_ragged<double>(random, group, random_case<double>(random, rows, reward_count, 4, 0, 0),
                           e, test_device());
    };
    std::visit(
        [&](const auto& e) {
          check(e, 0, 3, 2);
          for (const index_t rows : {1, 2, 4})
            check(e, rows, 0, rows), check(e, rows, 1, 1), check(e, rows, 1, rows);
        },
        gdpo::runtime::estimator(name));
  }
}

TEST_CASE("cuda: offsets and orders that fit no batch are read within it", "[sanitize]") {
  OnDevice<double> rewards(std::vector<double>(60, 1.0));
  OnDevice<int> tokens(std::vector<int>(20, 3));
  for (const std::vector<int>& offsets : {std::vector<int>{0, 40, 3, 20},
                                          {-7, 5, 1 << 30, 20},
                                          {5, 5, 5},
                                          {20, 0},
                                          {0, 20, -3, 99, 2, 20}}) {
    OffsetsOnDevice by_offsets(offsets);
    const gdpo::RewardBatch batch{view(rewards.data(), 20, 3), by_offsets.groups()};
    std::vector<index_t> order(20);
    for (int i = 0; i < 20; ++i) order[static_cast<std::size_t>(i)] = (i * 7 - 50) * 3;
    SortedOnDevice by_order(order, std::vector<index_t>(offsets.begin(), offsets.end()));
    gdpo::RewardBatch sorted{view(rewards.data(), 20, 3), by_order.groups()};
    sorted.tokens = view(tokens.data(), 20);
    on_device<double>(test_device(), batch, gdpo::Gdpo{});
    on_device<double>(test_device(), batch, gdpo::Grpo{});
    on_device<double>(test_device(), sorted, gdpo::Gdpo{});
    on_device<double>(test_device(), sorted, gdpo::verl::gdpo);
    on_device<double>(test_device(), sorted, gdpo::per_group::gdpo);
  }
}

TEST_CASE("cuda: scratch and order of advantages that do not fit") {
  const std::vector<double> rewards(24, 1.0);
  std::vector<double> out(8), memory(1000);
  const TestDevice device = test_device();
  const gdpo::RewardBatch batch{view(rewards.data(), 8, 3), gdpo::groups_of(4)};
  const auto message = [&](const auto& called, const gdpo::cuda::Scratch& scratch) {
    return message_of(
        [&] { gdpo::advantages_into(device, called, gdpo::Gdpo{}, view(out), scratch); });
  };
  using Catch::Matchers::ContainsSubstring;
  const std::size_t bytes = gdpo::cuda::scratch_bytes(gdpo::Gdpo{}, batch);
  CHECK_THAT(message(batch, {memory.data(), bytes - 1}),
             ContainsSubstring("scratch: given " + std::to_string(bytes - 1) + " bytes"));
  CHECK_THAT(message(batch, {}), ContainsSubstring("scratch: given no memory"));
  const std::vector<index_t> order(7), offsets{0, 8};
  const gdpo::RewardBatch sorted{view(rewards.data(), 8, 3),
                                 gdpo::cuda::sorted_groups(view(order), view(offsets))};
  CHECK_THAT(
      message(sorted, {memory.data(), memory.size() * sizeof(double)}),
      ContainsSubstring("groups.order: given 7 entries; needed: one for each of the 8 rows"));
}

namespace {

/// The two stages of a batch that is cut in two, on the device and on the host: the merged moments
/// are those of both parts.
template <class Estimator>
void check_stages(const Estimator& estimator, const naive::Data& data) {
  const auto batch_of = [&](const double* rewards, const double* tokens, int rows) {
    gdpo::RewardBatch batch{view(rewards, rows, data.reward_count), gdpo::groups_of(4)};
    batch.tokens = view(tokens, rows);
    return batch;
  };
  const int half = data.rows / 2;
  OnDevice<double> rewards(data.rewards), tokens(data.tokens);
  std::vector<gdpo::CombinedMoments> moments;
  std::vector<TestScratch> memory;
  std::vector<gdpo::Workspace> workspaces(2);
  const auto device = test_device();
  const auto part = [&](const double* r, const double* t, int k) {
    return batch_of(r + k * half * data.reward_count, t + k * half, half);
  };
  for (int k = 0; k < 2; ++k) {
    const auto batch = part(rewards.data(), tokens.data(), k);
    memory.emplace_back(gdpo::cuda::scratch_bytes(estimator, batch));
    OnDevice<gdpo::CombinedMoments> to(std::vector<gdpo::CombinedMoments>(1));
    gdpo::first_stage(device, batch, estimator, view(to.data(), 1), memory.back()());
    moments.push_back(to.host()[0]);
    const gdpo::CombinedMoments host =
        gdpo::first_stage(gdpo::seq, part(data.rewards.data(), data.tokens.data(), k), estimator,
                          workspaces[static_cast<std::size_t>(k)]);
    CHECK(moments.back().zero_sum == host.zero_sum);
    if (host.values.n > 0 && moments.back().values.n > 0) {
      CHECK(moments.back().values.n == host.values.n);
      CHECK(moments.back().values.mean == host.values.mean);
      CHECK(moments.back().values.m2 == host.values.m2);
      CHECK(moments.back().values.min == host.values.min);
      CHECK(moments.back().values.max == host.values.max);
    }
  }
  const gdpo::CombinedMoments merged = merge(moments[0], moments[1]);
  for (int k = 0; k < 2; ++k) {
    OnDevice<double> out(std::vector<double>(static_cast<std::size_t>(half), -77));
    gdpo::finish(device, part(rewards.data(), tokens.data(), k), estimator, merged,
                 view(out.data(), half), memory[static_cast<std::size_t>(k)]());
    std::vector<double> host(static_cast<std::size_t>(half));
    gdpo::finish(gdpo::seq, part(data.rewards.data(), data.tokens.data(), k), estimator, merged,
                 view(host), workspaces[static_cast<std::size_t>(k)]);
    CHECK(difference(out.host(), host) == "");
  }
}

}  // namespace

TEST_CASE("the two stages of a device are those of the host", "[cuda][sanitize]") {
  using namespace gdpo;
  Random random(3);
  naive::Data data;
  data.rows = 32, data.reward_count = 2;
  for (int i = 0; i < 64; ++i)
    data.rewards.push_back(i < 8 ? 0.5 : random.chance(0.1) ? NAN : random.uniform());
  for (int i = 0; i < 32; ++i) data.tokens.push_back(random.below(9));
  check_stages(Gdpo{}, data);
  Gdpo raw;
  raw.singleton = Singleton::Raw;
  check_stages(raw, data);
  check_stages(renormed(Gdpo{}, renorm::token_weighted_batch()), data);
  check_stages(renormed(GroupAdvantage<baseline::None, scale::None, combine::SumThenNormalize>{},
                        renorm::batch()),
               data);
  check_stages(per_group::gdpo, data);
  check_stages(Grpo{}, data);
  // Without rows only the moments of no values are written.
  OnDevice<CombinedMoments> to(std::vector<CombinedMoments>(1, {{7, 7, 7, 7, 7, 7, 7}, false}));
  const RewardBatch<double, GroupsOf> none{view<const double>(nullptr, 0, 2), groups_of(4)};
  TestScratch memory(cuda::scratch_bytes(Gdpo{}, none) + 1);
  first_stage(test_device(), none, Gdpo{}, view(to.data(), 1), memory());
  CHECK(to.host()[0].values.n == 0);
  CHECK(to.host()[0].zero_sum);
  CHECK(message_of([&] {
          first_stage(test_device(), none, Gdpo{}, view(to.data(), 0), memory());
        }) == "gdpo::first_stage: moments: given 0 entries; needed: one");
}

}  // namespace advantages_test
