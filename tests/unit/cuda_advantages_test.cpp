// The kernels of advantages on a simulated grid: index, tail and summation logic without a device. What they compute is compared
// with gdpo::seq bit by bit.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantages.hpp>
#include <gdpo/runtime.hpp>

#include "support/archetypes.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/simulated_grid.hpp"
#include "support/tolerance.hpp"

namespace {

using gdpo::index_t;
using gdpo::view;

/// advantages_into on the grid with exactly the scratch that it asks for, full of NaN, and a canary behind it.
template <class R, class T, class Groups, class Estimator>
std::vector<R> on_grid(const SimulatedGrid& grid, const gdpo::RewardBatch<T, Groups>& batch,
                       const Estimator& estimator) {
  const std::size_t bytes = gdpo::cuda::scratch_bytes(estimator, batch);
  std::vector<unsigned char> memory(bytes + 256 + 64, 0xff);
  auto* const start =
      reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 255) / 256 * 256);
  std::fill(start + bytes, memory.data() + memory.size(), static_cast<unsigned char>(0x5a));
  std::vector<R> out(static_cast<std::size_t>(batch.rewards.extent[0]), R(-77));
  gdpo::advantages_into(grid, batch, estimator, view(out), gdpo::cuda::Scratch{start, bytes});
  CHECK(std::all_of(start + bytes, memory.data() + memory.size(), [](unsigned char c) { return c == 0x5a; }));
  return out;
}
template <class R, class T, class Groups, class Estimator>
std::vector<R> on_host(const gdpo::RewardBatch<T, Groups>& batch, const Estimator& estimator) {
  std::vector<R> out(static_cast<std::size_t>(batch.rewards.extent[0]));
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, estimator, view(out), workspace);
  return out;
}

/// "" where they have the same bits, or differ by no more than `within` times the largest; NaN is one number.
template <class R>
std::string difference(const std::vector<R>& got, const std::vector<R>& wanted, double within = 0) {
  double largest = 0;
  for (const R x : wanted) largest = std::isfinite(x) ? std::max<double>(largest, std::abs(x)) : largest;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double a = got[i], b = wanted[i];
    if (same_bits(a, b) || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= within * largest) continue;
    char text[128];
    std::snprintf(text, sizeof text, "[%zu of %zu] %.17g instead of %.17g", i, wanted.size(), a, b);
    return text;
  }
  return "";
}

template <class T>
struct Case {
  index_t rows = 0, channels = 0;
  std::vector<T> rewards;
  std::vector<int> tokens;
  std::vector<unsigned char> valid;
  std::vector<double> penalty, external;
  std::vector<float> weights;
  bool complete = true;  ///< every row is used and has all rewards

  gdpo::View<const T, 2> table() const { return view(rewards.data(), rows, channels); }
  template <class Batch>
  void add_columns(Batch& batch) const {
    batch.tokens = view(tokens);
    if (!valid.empty()) batch.valid = view(valid);
    batch.penalty = view(penalty);
    batch.baseline = view(external);
    batch.weights = view(weights);
  }
};

/// Rewards of every kind, constant groups of `group` rows and cancelling rewards among them.
template <class T>
Case<T> random_case(Random& random, index_t rows, index_t channels, index_t group, double missing, double unused) {
  Case<T> c;
  c.rows = rows, c.channels = channels;
  const int kind = random.below(4);
  const double offset = random.pick({0.0, 0.0, 0.1, 1e5});
  bool constant = false;
  index_t equal = -1;  // a reward that is the same for all members
  for (index_t i = 0; i < rows; ++i) {
    if (i % group == 0) constant = random.chance(0.25), equal = random.below(static_cast<int>(channels) + 2);
    for (index_t j = 0; j < channels; ++j) {
      double x = constant || j == equal ? 0.1 * static_cast<double>(j + 1) : offset + random_reward(random, kind);
      if (j == 1 && kind == 1) x = 1 - static_cast<double>(c.rewards.back());
      if (std::is_floating_point_v<T> && random.chance(missing)) x = std::nan(""), c.complete = false;
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
    offsets.push_back(static_cast<int>(std::min<index_t>(rows, offsets.back() + random.below(longest + 1))));
  }
  if (random.chance(0.3)) offsets.push_back(offsets.back());  // an empty group at the end
  return offsets;
}

template <class Estimator>
bool reads_batch(const Estimator& e) {
  return gdpo::detail::ReadsBatch<decltype(e.baseline)>::of(e.baseline) ||
         gdpo::detail::ReadsBatch<decltype(e.scale)>::of(e.scale);
}
/// Statistics over the batch are added place by place, where the host closes the gaps of what is left out: another order.
constexpr double other_order = 0x1p-44;

template <class R, class T, class Groups, class DeviceGroups, class Estimator>
void check_parity(const Case<T>& c, const Groups& groups, const DeviceGroups& device_groups, const Estimator& e,
                  const SimulatedGrid& grid) {
  gdpo::RewardBatch<T, Groups> host{c.table(), groups};
  gdpo::RewardBatch<T, DeviceGroups> device{c.table(), device_groups};
  c.add_columns(host);
  c.add_columns(device);
  const bool same_order = c.complete || !reads_batch(e);
  CHECK(difference(on_grid<R>(grid, device, e), on_host<R>(host, e), same_order ? 0.0 : other_order) == "");
}

template <class R, class T, class Estimator>
void check_ragged(Random& random, index_t group, const Case<T>& c, const Estimator& e, const SimulatedGrid& grid) {
  const std::vector<int> offsets = random_offsets(random, c.rows, static_cast<int>(2 * group));
  check_parity<R>(c, gdpo::by_offsets(offsets), gdpo::by_offsets(offsets), e, grid);
}
template <class R, class T, class Estimator>
void check_by_id(Random& random, index_t group, const Case<T>& c, const Estimator& e, const SimulatedGrid& grid) {
  std::vector<index_t> ids;
  for (index_t i = 0; i < c.rows; ++i) ids.push_back(random.below(static_cast<int>(c.rows / group + 1)) * 17 - 5);
  const gdpo::ById groups = gdpo::by_id(ids);
  check_parity<R>(c, groups, gdpo::cuda::sorted_groups(groups.order(), groups.offsets()), e, grid);
}
/// Groups of one size. (The host takes them by offsets: fewer kinds of groups to compile.)
template <class R, class T, class Estimator>
void check_fixed(index_t group, const Case<T>& c, const Estimator& e, const SimulatedGrid& grid) {
  std::vector<int> offsets;
  for (index_t i = 0; i <= c.rows; i += group) offsets.push_back(static_cast<int>(i));
  check_parity<R>(c, gdpo::by_offsets(offsets), gdpo::groups_of(group), e, grid);
}

SimulatedGrid random_grid(Random& random) {
  SimulatedGrid grid;
  grid.seed = static_cast<unsigned>(random.bits());
  grid.chosen.blocks = random.pick({1, 3, 40, 1056});
  return grid;
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
                    channels = 1 + random.below(random.chance(0.2) ? 20 : 9);
      const Case<double> c = random_case<double>(random, rows, channels, group, random.pick({0.0, 0.0, 0.2}),
                                                 random.pick({0.0, 0.0, 0.3}));
      INFO("rows " << rows << ", channels " << channels << ", group " << group);
      const SimulatedGrid grid = random_grid(random);
      std::visit(
          [&](auto e) {
            if (random.chance(0.5)) {
              std::vector<double> weights;
              for (index_t j = 0; j < channels; ++j) weights.push_back(random.pick({0.0, 1.0, 0.5, -2.0, 1.0}));
              e.weights = weights;
            }
            check_ragged<double>(random, group, c, e, grid);
          },
          gdpo::runtime::estimator(name));
    }
  }
}

namespace {

/// Every setting of an estimator that a device takes, at random.
template <class Estimator>
Estimator random_settings(Random& random, Estimator e, index_t channels) {
  using namespace gdpo;
  if (random.chance(0.5)) {
    std::vector<double> weights;
    for (index_t j = 0; j < channels; ++j) weights.push_back(random.pick({0.0, 1.0, 0.5, -2.0, 1.0}));
    e.weights = weights;
  }
  const int c = static_cast<int>(channels);
  if (random.chance(0.3)) e.gates = {{random.below(c), random.below(c), 0.5}, {random.below(c), random.below(c), -0.1}};
  e.missing = {random.pick({MissingEntry::Skip, MissingEntry::Skip, MissingEntry::Zero, MissingEntry::Propagate}),
               random.pick({MissingRow::Exclude, MissingRow::Keep})};
  e.singleton = random.pick({Singleton::Zero, Singleton::Raw, Singleton::Nan});
  constexpr bool sums_first = std::is_same_v<decltype(e.combine), combine::SumThenNormalize>;
  if (random.chance(0.3)) e.penalty = {random.pick({0.04, -0.5}), sums_first ? -1 : random.below(c)};
  const auto spread = [&](auto& of) {
    of.ddof = random.below(2);
    of.eps = random.pick({0.0, 1e-4});
    of.eps_at = random.pick({EpsAt::Std, EpsAt::Var, EpsAt::ClampStd, EpsAt::ClampVar, EpsAt::None});
  };
  if constexpr (std::is_same_v<decltype(e.scale), scale::StdDev>) {
    spread(e.scale);
    e.scale.of = random.pick({scale::Of::Group, scale::Of::Group, scale::Of::Batch, scale::Of::BatchCentred});
  }
  if constexpr (!std::is_same_v<decltype(e.renorm), renorm::None>) {
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
                channels = 1 + random.below(10);
  const Case<double> c =
      random_case<double>(random, rows, channels, group, random.pick({0.0, 0.1, 0.6}), random.pick({0.0, 0.3, 0.8}));
  const Estimator e = random_settings(random, plain, channels);
  INFO("rows " << rows << ", channels " << channels << ", group " << group << ", missing entry "
               << static_cast<int>(e.missing.entry) << ", singleton " << static_cast<int>(e.singleton));
  if constexpr (grouping == Grouping::ById) {
    check_by_id<double>(random, group, c, e, random_grid(random));
  } else {
    check_ragged<double>(random, group, c, e, random_grid(random));
  }
}

}  // namespace

TEST_CASE("cuda: every axis with random settings gives the bits of seq") {
  using namespace gdpo;
  for (std::uint64_t seed = 31; seed < 31 + 150; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    check_settings<Grouping::Ragged>(random, Gdpo{});
    check_settings<Grouping::Ragged>(random, Rloo{});
    check_settings<Grouping::Ragged>(random, verl::Whitened{});
    check_settings<Grouping::Ragged>(random, verl::ReinforceBaseline{});
    check_settings<Grouping::Ragged>(random, brief::GroupGdpo{});
    check_settings<Grouping::Ragged>(random, GroupAdvantage<baseline::LeaveOneOut, scale::StdDev>{});
    check_settings<Grouping::Ragged>(random, GroupAdvantage<baseline::None, scale::None>{});
    check_settings<Grouping::Ragged>(random,
                                     GroupAdvantage<baseline::None, scale::StdDev, combine::SumThenNormalize>{});
    check_settings<Grouping::ById>(random, Gdpo{});
    check_settings<Grouping::ById>(random, verl::Whitened{});
    check_settings<Grouping::ById>(random, brief::GroupGdpo{});
    check_settings<Grouping::ById>(random, ms_swift::ScaledRloo{});
  }
}

TEST_CASE("cuda: batches of many windows, with groups across them") {
  Random random(4);
  for (const index_t group : {3, 7, 64, 5000}) {
    const index_t rows = (2 * 4096 + 700) / group * group + group;
    const Case<double> c = random_case<double>(random, rows, 3, group, 0.01, 0.05);
    INFO("group " << group);
    check_fixed<double>(group, c, gdpo::trl::gdpo, random_grid(random));
    check_fixed<double>(group, c, gdpo::Grpo{}, random_grid(random));
    check_ragged<double>(random, group, c, gdpo::trl::gdpo, random_grid(random));
    check_ragged<double>(random, group, c, gdpo::verl::gdpo, random_grid(random));
    check_ragged<double>(random, group, c, gdpo::ms_swift::reinforce_plus_plus, random_grid(random));
    check_by_id<double>(random, group, c, gdpo::trl::gdpo, random_grid(random));
    check_by_id<double>(random, group, c, gdpo::verl::gdpo, random_grid(random));
    check_by_id<double>(random, group, c, gdpo::ms_swift::rloo_batch_scale, random_grid(random));
  }
}

TEST_CASE("cuda: groups of one size give the bits of seq") {
  for (std::uint64_t seed = 71; seed < 71 + 150; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const index_t group = random.pick({1, 2, 4, 7, 8, 9, 16, 64}), rows = group * random.below(40),
                  channels = 1 + random.below(10);
    const Case<double> c =
        random_case<double>(random, rows, channels, group, random.pick({0.0, 0.0, 0.1}), random.pick({0.0, 0.0, 0.3}));
    check_fixed<double>(group, c, random_settings(random, gdpo::Gdpo{}, channels), random_grid(random));
    check_fixed<double>(group, c, random_settings(random, gdpo::Grpo{}, channels), random_grid(random));
    gdpo::Gdpo plain;
    check_fixed<double>(group, c, plain, random_grid(random));
  }
}

TEST_CASE("cuda: neither the order of threads nor the tuning changes a bit") {
  Random random(5);
  const Case<double> c = random_case<double>(random, 6000, 8, 8, 0.01, 0.1);
  gdpo::RewardBatch batch{c.table(), gdpo::groups_of(8)};
  c.add_columns(batch);
  std::vector<index_t> ids;
  for (index_t i = 0; i < c.rows; ++i) ids.push_back(random.below(700));
  const gdpo::ById by_id = gdpo::by_id(ids);
  gdpo::RewardBatch sorted{c.table(), gdpo::cuda::sorted_groups(by_id.order(), by_id.offsets())};
  c.add_columns(sorted);
  const auto check = [](const auto& of, const auto& e) {
    const std::vector<double> first = on_grid<double>(SimulatedGrid{}, of, e);
    for (const int blocks : {1, 2, 7, 100000}) {
      SimulatedGrid grid;
      grid.seed = static_cast<unsigned>(blocks) + 9;
      grid.chosen.blocks = blocks;
      CHECK(difference(on_grid<double>(grid, of, e), first) == "");
    }
  };
  check(batch, gdpo::Gdpo{});
  check(sorted, gdpo::ms_swift::rloo_batch_scale);
  check(sorted, gdpo::Gdpo{});
  check(sorted, gdpo::verl::gdpo);
}

TEST_CASE("cuda: Gdpo and Grpo take at most two launches") {
  Random random(6);
  const auto launches = [](const auto& batch, const auto& e) {
    const SimulatedGrid grid;
    on_grid<double>(grid, batch, e);
    return grid.launches;
  };
  for (const index_t rows : {8, 4096, 9000}) {
    const Case<double> c = random_case<double>(random, rows, 8, 8, 0, 0);
    const gdpo::RewardBatch fixed{c.table(), gdpo::groups_of(8)};
    const std::vector<int> offsets = random_offsets(random, rows, 16);
    const gdpo::RewardBatch ragged{c.table(), gdpo::by_offsets(offsets)};
    CHECK(launches(fixed, gdpo::Gdpo{}) == 2);
    CHECK(launches(ragged, gdpo::Gdpo{}) == 2);
    CHECK(launches(fixed, gdpo::trl::gdpo) == 2);
    CHECK(launches(fixed, gdpo::Grpo{}) == 1);
    CHECK(launches(ragged, gdpo::Rloo{}) == 1);
    CHECK(launches(ragged, gdpo::brief::gdpo) == 2);
  }
}

TEMPLATE_TEST_CASE("cuda: rewards of any storage type and strides", "", float, gdpo::Float16, gdpo::BFloat16,
                   std::uint8_t, std::int64_t) {
  Random random(7);
  using T = TestType;
  const index_t rows = 24, channels = GENERATE(5, 8);  // 8: rows of vectors
  // Column-major with gaps, rows backwards; and dense, from an address that no vector starts at.
  std::vector<T> memory(static_cast<std::size_t>(rows * channels * 2 + 1));
  for (T& x : memory) {
    if constexpr (std::is_arithmetic_v<T>) {
      x = static_cast<T>(random.below(4));
    } else {
      gdpo::store(x, 0.25f * static_cast<float>(random.below(9)));
    }
  }
  const gdpo::View<const T, 2> strided{memory.data() + 2 * (rows - 1), {rows, channels}, {-2, 2 * rows}};
  const gdpo::View<const T, 2> dense = view(static_cast<const T*>(memory.data()), rows, channels),
                               misplaced = view(static_cast<const T*>(memory.data()) + 1, rows, channels);
  for (const auto& rewards : {strided, dense, misplaced}) {
    Case<double> c;
    c.rows = rows, c.channels = channels;
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < channels; ++j) c.rewards.push_back(gdpo::load(rewards(i, j)));
    }
    const std::vector<int> offsets{0, 4, 8, 12, 16, 20, 24};
    const gdpo::RewardBatch<double, gdpo::ByOffsets<int>> host{c.table(), gdpo::by_offsets(offsets)};
    const gdpo::RewardBatch<T, gdpo::GroupsOf> batch{rewards, gdpo::groups_of(4)};
    const std::vector<double> wanted = on_host<double>(host, gdpo::Gdpo{});
    CHECK(difference(on_grid<double>(SimulatedGrid{}, batch, gdpo::Gdpo{}), wanted) == "");
    std::vector<float> wide(3 * static_cast<std::size_t>(rows), -77.0f);
    std::vector<double> scratch(gdpo::cuda::scratch_bytes(gdpo::Gdpo{}, batch) / sizeof(double) + 1);
    gdpo::advantages_into(SimulatedGrid{}, batch, gdpo::Gdpo{}, gdpo::View<float, 1>{wide.data(), {rows}, {3}},
                          gdpo::cuda::Scratch{scratch.data(), scratch.size() * sizeof(double)});
    for (std::size_t i = 0; i < wide.size(); ++i) {
      CHECK(wide[i] == (i % 3 == 0 ? static_cast<float>(wanted[i / 3]) : -77.0f));
    }
  }
}

TEST_CASE("cuda: policies that read members, tokens, weights, a baseline or the batch") {
  using namespace gdpo;
  using combine::SumThenNormalize;
  for (std::uint64_t seed = 51; seed < 51 + 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const index_t group = random.pick({1, 3, 8, 20}), rows = group * (1 + random.below(9)),
                  channels = 1 + random.below(10);
    const Case<double> c =
        random_case<double>(random, rows, channels, group, random.pick({0.0, 0.2}), random.pick({0.0, 0.3}));
    const std::vector<int> offsets = random_offsets(random, rows, static_cast<int>(2 * group));
    const auto check = [&](const auto& e) {
      check_parity<double>(c, gdpo::by_offsets(offsets), gdpo::by_offsets(offsets), e, random_grid(random));
    };
    check(GroupAdvantage<archetype::Median, archetype::MedianAbsoluteDeviation>{});
    check(GroupAdvantage<archetype::LengthWeighted, scale::StdDev, SumThenNormalize>{});
    check(GroupAdvantage<archetype::RowWeighted, archetype::NonzeroShare>{});
    check(GroupAdvantage<archetype::External, scale::None, SumThenNormalize>{});
    check(GroupAdvantage<archetype::MidRange, archetype::LeaveOneOutStd>{});
  }
}

TEST_CASE("cuda: what is left out changes no bit, and equal rewards give exactly 0") {
  Random random(8);
  Case<double> c = random_case<double>(random, 64, 4, 8, 0, 0.3);
  gdpo::Gdpo e;
  e.weights = {1.0, 0.0, 2.0, 0.5};
  const auto advantages = [&] {
    gdpo::RewardBatch batch{c.table(), gdpo::groups_of(8)};
    c.add_columns(batch);
    return on_grid<double>(SimulatedGrid{}, batch, e);
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
  const std::vector<double> equal(21 * 3, 0.1);
  const std::vector<int> offsets{0, 1, 7, 7, 19, 21};
  const gdpo::RewardBatch batch{view(equal.data(), 21, 3), gdpo::by_offsets(offsets)};
  for (const char* const name : {"gdpo", "grpo", "rloo", "trl::gdpo", "brief::gdpo", "ms_swift::reinforce_plus_plus"}) {
    std::visit(
        [&](const auto& of) {
          for (const double x : on_grid<double>(SimulatedGrid{}, batch, of)) CHECK(same_bits(x, 0.0));
        },
        gdpo::runtime::estimator(name));
  }
}

TEST_CASE("cuda: no rows, no rewards, one row") {
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    INFO(name);
    const auto check = [&](const auto& e, index_t rows, index_t channels, index_t group) {
      Random random(9);
      check_ragged<double>(random, group, random_case<double>(random, rows, channels, 4, 0, 0), e, SimulatedGrid{});
    };
    std::visit(
        [&](const auto& e) {
          check(e, 0, 3, 2);
          for (const index_t rows : {1, 2, 4}) check(e, rows, 0, rows), check(e, rows, 1, 1), check(e, rows, 1, rows);
        },
        gdpo::runtime::estimator(name));
  }
}

TEST_CASE("cuda: offsets and orders that fit no batch are read within it") {
  const std::vector<double> rewards(60, 1.0);
  const std::vector<int> tokens(20, 3);
  for (const std::vector<int>& offsets :
       {std::vector<int>{0, 40, 3, 20}, {-7, 5, 1 << 30, 20}, {5, 5, 5}, {20, 0}, {0, 20, -3, 99, 2, 20}}) {
    const gdpo::RewardBatch batch{view(rewards.data(), 20, 3), gdpo::by_offsets(offsets)};
    std::vector<index_t> order(20);
    for (int i = 0; i < 20; ++i) order[static_cast<std::size_t>(i)] = (i * 7 - 50) * 3;
    const std::vector<index_t> sorted_offsets(offsets.begin(), offsets.end());
    gdpo::RewardBatch sorted{view(rewards.data(), 20, 3), gdpo::cuda::sorted_groups(view(order), view(sorted_offsets))};
    sorted.tokens = view(tokens);
    on_grid<double>(SimulatedGrid{}, batch, gdpo::Gdpo{});
    on_grid<double>(SimulatedGrid{}, batch, gdpo::Grpo{});
    on_grid<double>(SimulatedGrid{}, sorted, gdpo::Gdpo{});
    on_grid<double>(SimulatedGrid{}, sorted, gdpo::verl::gdpo);
    on_grid<double>(SimulatedGrid{}, sorted, gdpo::brief::gdpo);
  }
}

TEST_CASE("cuda: a caller's mistakes are named in the host's words") {
  const std::vector<double> rewards(24, 1.0);
  const std::vector<double> three(3);
  const std::vector<int> eight{0, 8};
  std::vector<double> out(8);
  std::vector<double> memory(1000);
  const gdpo::cuda::Scratch scratch{memory.data(), memory.size() * sizeof(double)};
  const SimulatedGrid grid;
  gdpo::Workspace workspace;
  const auto on_both = [&](const auto& batch, const auto& e) {
    const std::string device = message_of([&] { gdpo::advantages_into(grid, batch, e, view(out), scratch); });
    CHECK(device == message_of([&] { gdpo::advantages_into(gdpo::seq, batch, e, view(out), workspace); }));
    CHECK(device != "no error");
  };
  gdpo::RewardBatch batch{view(rewards.data(), 8, 3), gdpo::groups_of(4)};
  on_both(gdpo::RewardBatch{view(rewards.data(), 8, 3), gdpo::groups_of(3)}, gdpo::Gdpo{});
  on_both(gdpo::RewardBatch{view(rewards.data(), 7, 3), gdpo::groups_of(7)}, gdpo::Gdpo{});  // `out` has 8
  on_both(gdpo::RewardBatch{view(rewards.data(), 8, 3), gdpo::by_offsets(gdpo::View<const int, 1>{})}, gdpo::Gdpo{});
  on_both(gdpo::RewardBatch{view(rewards.data(), 8, 3), gdpo::by_offsets(eight)}, gdpo::verl::gdpo);  // no tokens
  gdpo::Gdpo e;
  e.weights = {1, 2};
  on_both(batch, e);
  e.weights = {1, 2, std::nan("")};
  on_both(batch, e);
  e = {};
  e.gates = {{0, 3, 1}};
  on_both(batch, e);
  e = {};
  e.scale.ddof = -1;
  on_both(batch, e);
  e = {};
  e.penalty = {0.1, 0};
  on_both(batch, e);
  batch.valid = view(three);
  on_both(batch, gdpo::Gdpo{});
  batch.valid = {};

  using Catch::Matchers::ContainsSubstring;
  const auto said = [&](const auto& estimator, const gdpo::cuda::Scratch& memory_of) {
    return message_of([&] { gdpo::advantages_into(grid, batch, estimator, view(out), memory_of); });
  };
  e = {};
  e.singleton = gdpo::Singleton::Error;
  CHECK_THAT(said(e, scratch), ContainsSubstring("singleton: given Error; needed: Zero, Raw or Nan"));
  e = {};
  e.missing.entry = gdpo::MissingEntry::Reject;
  CHECK_THAT(said(e, scratch), ContainsSubstring("missing.entry: given Reject; needed: Skip, Zero or Propagate"));
  const std::size_t bytes = gdpo::cuda::scratch_bytes(gdpo::Gdpo{}, batch);
  CHECK_THAT(said(gdpo::Gdpo{}, gdpo::cuda::Scratch{memory.data(), bytes - 1}),
             ContainsSubstring("scratch: given " + std::to_string(bytes - 1) + " bytes"));
  CHECK_THAT(said(gdpo::Gdpo{}, gdpo::cuda::Scratch{}), ContainsSubstring("scratch: given no memory"));
  CHECK(said(gdpo::Gdpo{}, gdpo::cuda::Scratch{memory.data(), bytes}) == "no error");
  const std::vector<index_t> order(7), offsets{0, 8};
  const gdpo::RewardBatch sorted{view(rewards.data(), 8, 3), gdpo::cuda::sorted_groups(view(order), view(offsets))};
  CHECK_THAT(message_of([&] { gdpo::advantages_into(grid, sorted, e = {}, view(out), scratch); }),
             ContainsSubstring("groups.order: given 7 entries; needed: one for each of the 8 rows"));
}
