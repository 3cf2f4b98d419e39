// labels: sanitizers
// Scales that read the spreads inside the groups, on a device or on a simulated grid: the bits of
// gdpo::seq, also where rows are unused and rewards missing, since the sums over groups have a
// place for every group.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantage/device_advantages.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/renormed.hpp"
#include "support/tolerance.hpp"

namespace shrunk_std_test {

namespace {

using gdpo::index_t, gdpo::view;
using gdpo::scale::ShrunkStd;
namespace combine = gdpo::combine;

template <class Scale, class Combine = combine::NormalizeThenSum,
          class Baseline = gdpo::baseline::Mean>
gdpo::GroupAdvantage<Baseline, Scale, Combine> estimator(
    const gdpo::Renorm& renorm = gdpo::renorm::none()) {
  return renormed(gdpo::GroupAdvantage<Baseline, Scale, Combine>{}, renorm);
}

/// Groups of consecutive rows, some of them empty, of one row, or of equal rewards.
struct Rows {
  index_t rows = 0, reward_count;
  std::vector<double> rewards;
  std::vector<unsigned char> valid;
  std::vector<int> offsets{0};

  Rows(Random& random, int groups, int largest, index_t of_rewards, double missing, bool unused)
      : reward_count(of_rewards) {
    for (int g = 0; g < groups; ++g) {
      const int members = random.below(largest + 1);
      const bool equal = random.chance(0.2);
      const double width = 0.1 + random.uniform();
      for (index_t i = 0; i < members * reward_count; ++i) {
        rewards.push_back(random.chance(missing) ? std::nan("")
                          : equal                ? 0.3
                                                 : width * random.uniform());
      }
      for (int k = 0; unused && k < members; ++k) valid.push_back(random.chance(0.8));
      rows += members;
      offsets.push_back(static_cast<int>(rows));
    }
  }
};

/// "" where the results have the same bits; every NaN is the same.
std::string same(const std::vector<double>& got, const std::vector<double>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (same_bits(got[i], wanted[i]) || (std::isnan(got[i]) && std::isnan(wanted[i]))) continue;
    return std::to_string(i) + ": " + std::to_string(got[i]) + " instead of " +
           std::to_string(wanted[i]);
  }
  return "";
}

/// Runs the estimator on the host and on the device, with scratch memory of exactly the size that
/// it asks for.
template <class Groups, class DeviceGroups, class E>
void check(Random& random, const Rows& r, const Groups& groups, const DeviceGroups& on_device,
           const E& e) {
  gdpo::RewardBatch<double, Groups> host{view(r.rewards.data(), r.rows, r.reward_count), groups};
  OnDevice<double> rewards(r.rewards);
  OnDevice<unsigned char> valid(r.valid);
  gdpo::RewardBatch<double, DeviceGroups> batch{
      view(static_cast<const double*>(rewards.data()), r.rows, r.reward_count), on_device};
  if (!r.valid.empty()) host.valid = view(r.valid), batch.valid = view(valid.data(), r.rows);
  std::vector<double> wanted(static_cast<std::size_t>(r.rows));
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, host, e, view(wanted), workspace);
  gdpo::cuda::Tuning tuning;
  tuning.blocks = random.pick({1, 3, 1056});
  const TestDevice device = test_device(static_cast<unsigned>(random.bits()), tuning);
  OnDevice<double> out(std::vector<double>(wanted.size(), -77));
  TestScratch scratch(gdpo::cuda::scratch_bytes(e, batch));
  gdpo::advantages_into(device, batch, e, view(out.data(), r.rows), scratch());
  CHECK(same(out.host(), wanted) == "");
}

template <class E>
void check_ragged(Random& random, const Rows& r, const E& e) {
  OnDevice<int> offsets(r.offsets);
  check(random, r, gdpo::by_offsets(r.offsets),
        gdpo::by_offsets(
            view(static_cast<const int*>(offsets.data()), static_cast<index_t>(r.offsets.size()))),
        e);
}
template <class E>
void check_by_id(Random& random, const Rows& r, const E& e) {
  std::vector<int> ids;
  const int groups = static_cast<int>(r.offsets.size());
  for (index_t i = 0; i < r.rows; ++i) ids.push_back(random.below(groups) * 7);
  const gdpo::ById by_id = gdpo::by_id(ids);
  const auto copy = [](const gdpo::View<const index_t, 1>& of) {
    return std::vector<index_t>(of.data, of.data + of.extent[0]);
  };
  OnDevice<index_t> order(copy(by_id.order())), offsets(copy(by_id.offsets()));
  check(random, r, by_id,
        gdpo::cuda::sorted_groups(view(order.data(), r.rows),
                                  view(offsets.data(), by_id.offsets().extent[0])),
        e);
}

/// The estimator with random settings.
template <class E>
E settings(Random& random, E e) {
  if constexpr (std::is_same_v<decltype(e.scale), ShrunkStd>) {
    e.scale.prior_dof =
        random.pick({gdpo::from_batch, gdpo::from_batch, 0.0, 3.0, double{gdpo::math::infinity}});
    e.scale.equal_groups = random.pick({gdpo::EqualGroups::Exclude, gdpo::EqualGroups::Include});
  } else {
    e.scale.of = gdpo::scale::Of::Within;
    e.scale.ddof = random.below(3);
  }
  e.scale.eps = random.pick({0.0, 1e-3});
  e.singleton = random.pick({gdpo::Singleton::Zero, gdpo::Singleton::Raw, gdpo::Singleton::Nan});
  e.missing.entry = random.pick({gdpo::MissingEntry::Skip, gdpo::MissingEntry::Skip,
                                 gdpo::MissingEntry::Zero, gdpo::MissingEntry::Propagate});
  return e;
}

}  // namespace

TEST_CASE("cuda: spreads inside groups give the bits of seq") {
  for (std::uint64_t seed = 1; seed < (few_rounds ? 10 : 60); ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Rows r(random, random.below(40), random.pick({2, 5, 20}), 1 + random.below(10),
                 random.pick({0.0, 0.02, 0.3}), random.chance(0.5));
    using LeaveOneOut = gdpo::baseline::LeaveOneOut;
    using Sums = combine::SumThenNormalize;
    check_ragged(random, r, settings(random, estimator<ShrunkStd>()));
    check_ragged(random, r, settings(random, estimator<ShrunkStd, Sums>()));
    check_ragged(random, r,
                 settings(random, estimator<ShrunkStd, combine::NormalizeThenSum, LeaveOneOut>(
                                      gdpo::renorm::per_group())));
    check_ragged(random, r, settings(random, estimator<gdpo::scale::StdDev>()));
    check_by_id(random, r, settings(random, estimator<ShrunkStd>()));
    check_by_id(random, r, settings(random, estimator<ShrunkStd, Sums>()));
  }
}

TEST_CASE("cuda: spreads inside more groups than fit into a window", "[sanitize]") {
  Random random(100);
  // Sums take 4096 groups at a time.
  for (const int groups : {4095, 4097, 9000}) {
    INFO(groups << " groups");
    const Rows r(random, groups, 4, 2, 0.02, true);
    check_ragged(random, r, estimator<ShrunkStd>());
    check_ragged(random, r, estimator<ShrunkStd, combine::SumThenNormalize>());
    check_by_id(random, r, estimator<ShrunkStd>());
  }
  const Rows complete(random, 5000, 3, 8, 0, false);
  check_ragged(random, complete, estimator<ShrunkStd>(gdpo::renorm::batch()));
}

}  // namespace shrunk_std_test
