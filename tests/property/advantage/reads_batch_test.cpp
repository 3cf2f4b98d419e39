// labels: lanes
// Policies that read the batch are called in lanes, and say which parts of its statistics they
// read. The same policies without either, which get every part and are called group by group, must
// give the same bits.
#include <gdpo/advantages.hpp>
#include <gdpo/with/thread_pool.hpp>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace reads_batch_test {

namespace {

using gdpo::index_t;

/// A scale that declares nothing but per_group.
template <class Scale>
struct PlainScale {
  static constexpr bool per_group = true;
  Scale scale;
  double operator()(const gdpo::ScaleArgs& a) const { return scale(a); }
};
/// A baseline that declares what decides the rules of groups, and no more.
template <class Baseline>
struct PlainBaseline {
  static constexpr bool per_group = gdpo::detail::per_group_v<Baseline>,
                        from_group = gdpo::detail::from_group_v<Baseline>,
                        zero_sum = gdpo::detail::zero_sum_v<Baseline>,
                        needs_no_group = gdpo::detail::needs_no_group_v<Baseline>;
  Baseline baseline;
  gdpo::Split<double> operator()(const gdpo::BaselineArgs& a) const {
    const auto base = baseline(a);
    if constexpr (std::is_same_v<decltype(base), const gdpo::Split<double>>) {
      return base;
    } else {
      return {static_cast<double>(base), 0.0};
    }
  }
};

/// Rewards in groups of one length or of several, with gaps and equal groups.
struct Input {
  std::vector<double> rewards;
  std::vector<unsigned char> valid;
  std::vector<int> offsets{0}, ids;
  index_t rows, reward_count;

  explicit Input(Random& random) : reward_count(1 + random.below(10)) {
    const int length = 1 + random.below(20), groups = 1 + random.below(random.pick({8, 8, 300}));
    const bool ragged = random.chance(0.4);
    for (int g = 0; g < groups; ++g)
      offsets.push_back(offsets.back() + (ragged ? random.below(2 * length) : length));
    rows = offsets.back();
    const int kind = random.below(4);
    const double offset = random.pick({0.0, 0.0, 1e6}),
                 missing = random.pick({0.0, 0.0, 0.02, 0.4});
    const bool equal_groups = random.chance(0.3);
    for (int g = 0; g < groups; ++g) {
      const bool equal = equal_groups && random.chance(0.3);
      for (int k = offsets[static_cast<std::size_t>(g)];
           k < offsets[static_cast<std::size_t>(g) + 1]; ++k) {
        for (index_t c = 0; c < reward_count; ++c)
          rewards.push_back(random.chance(missing) ? std::nan("")
                            : equal                ? offset + 0.1
                                                   : offset + random_reward(random, kind));
      }
    }
    if (random.chance(0.1) && !rewards.empty())
      rewards[static_cast<std::size_t>(random.below(static_cast<int>(rewards.size())))] =
          random.pick({1.0, -1.0}) * std::numeric_limits<double>::infinity();
    for (index_t i = 0; i < rows; ++i) {
      valid.push_back(random.chance(0.9));
      ids.push_back(random.below(groups));
    }
  }
};

/// What a call gives: the advantages and the values before the renormalization.
struct Outcome {
  std::vector<double> out, sums;
  template <class Exec, class Batch, class Estimator>
  Outcome(const Exec& exec, const Batch& batch, const Estimator& e, gdpo::Workspace& workspace)
      : out(static_cast<std::size_t>(batch.rewards.extent[0])) {
    gdpo::advantages_into(exec, batch, e, gdpo::view(out), workspace);
    sums.assign(workspace.sums().data, workspace.sums().data + batch.rewards.extent[0]);
    for (std::vector<double>* numbers : {&out, &sums}) {
      for (double& x : *numbers) x = std::isnan(x) ? std::nan("") : x;  // the sign may differ
    }
  }
};
std::string difference_of(const Outcome& a, const Outcome& b) {
  return difference(a.out, b.out) + difference(a.sums, b.sums);
}

template <class Combine, class Baseline, class Scale, class Groups>
void check(Random& random, const Input& in, const Groups& groups, const Baseline& baseline,
           const Scale& scale, gdpo::Workspace& workspace) {
  static gdpo::ThreadPool pool(3);
  gdpo::GroupAdvantage<Baseline, Scale, Combine> e;
  gdpo::GroupAdvantage<PlainBaseline<Baseline>, PlainScale<Scale>, Combine> plain;
  e.baseline = baseline, plain.baseline.baseline = baseline;
  e.scale = scale, plain.scale.scale = scale;
  gdpo::RewardBatch<double, Groups> batch{gdpo::view(in.rewards.data(), in.rows, in.reward_count),
                                          groups};
  if (random.chance(0.2)) batch.valid = gdpo::view(in.valid);
  e.missing.entry = random.pick({gdpo::MissingEntry::Skip, gdpo::MissingEntry::Skip,
                                 gdpo::MissingEntry::Zero, gdpo::MissingEntry::Propagate});
  e.missing.row = random.pick(
      {gdpo::MissingRow::Keep, gdpo::MissingRow::Exclude, gdpo::MissingRow::ExcludeUnscored});
  e.singleton = random.pick({gdpo::Singleton::Zero, gdpo::Singleton::Raw, gdpo::Singleton::Nan,
                             gdpo::Singleton::Exclude});
  if (random.chance(0.2)) e.reward_clip = {-0.5, 0.9};
  plain.missing = e.missing, plain.singleton = e.singleton, plain.reward_clip = e.reward_clip;
  const Outcome reference(gdpo::seq, batch, plain, workspace);
  CHECK(difference_of(reference, {gdpo::seq, batch, e, workspace}) == "");
  CHECK(difference_of(reference, {gdpo::simd, batch, e, workspace}) == "");
  CHECK(difference_of(reference, {gdpo::parallel(pool), batch, e, workspace}) == "");
}

template <class Baseline, class Scale>
void check_policies(const Baseline& baseline, const Scale& scale, std::uint64_t first_seed) {
  gdpo::Workspace workspace;
  const std::uint64_t rounds = few_rounds ? 10 : 60;
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Input in(random);
    if (random.chance(0.7)) {
      const auto groups = gdpo::by_offsets(in.offsets);
      check<gdpo::combine::NormalizeThenSum>(random, in, groups, baseline, scale, workspace);
      check<gdpo::combine::SumThenNormalize>(random, in, groups, baseline, scale, workspace);
    } else {
      const auto groups = gdpo::by_id(in.ids);
      check<gdpo::combine::NormalizeThenSum>(random, in, groups, baseline, scale, workspace);
      check<gdpo::combine::SumThenNormalize>(random, in, groups, baseline, scale, workspace);
    }
  }
}

gdpo::scale::StdDev std_of(gdpo::scale::Of of, double eps = 0) { return {of, 1, eps}; }

}  // namespace

TEST_CASE("policies that read the batch have the same bits in lanes", "[reads_batch]") {
  using gdpo::scale::Of;
  const gdpo::baseline::Mean mean;
  gdpo::scale::ShrunkStd shrunk;
  check_policies(mean, shrunk, 1);
  shrunk.equal_groups = gdpo::EqualGroups::Include;
  shrunk.prior_dof = 3, shrunk.eps = 1e-3, shrunk.eps_at = gdpo::EpsAt::StdOrOne;
  check_policies(mean, shrunk, 1001);
  shrunk.prior_dof = gdpo::math::infinity;
  check_policies(mean, shrunk, 2001);
  check_policies(mean, gdpo::scale::NonzeroShare{}, 3001);
  std::uint64_t seed = 4001;
  for (const Of of : {Of::Batch, Of::BatchCentered, Of::Within, Of::BatchRms, Of::Group})
    check_policies(mean, std_of(of, 1e-4), seed += 1000);
}

TEST_CASE("baselines outside the group have the same bits in lanes", "[reads_batch]") {
  using gdpo::scale::Of;
  check_policies(gdpo::baseline::None{}, std_of(Of::BatchRms), 11001);
  check_policies(gdpo::baseline::BatchMean{}, std_of(Of::BatchCentered), 12001);
  check_policies(gdpo::baseline::BatchMean{true}, std_of(Of::BatchCentered), 13001);
  check_policies(gdpo::baseline::BatchMean{}, gdpo::scale::None{}, 14001);
  check_policies(gdpo::baseline::LeaveOneOut{}, std_of(Of::Batch), 15001);
}

TEST_CASE("of several refused rewards the first column's is named", "[reads_batch]") {
  // Four groups of two and one of one. The columns are read one after the other.
  const std::vector<int> offsets{0, 2, 4, 6, 8, 9};
  const double nan = std::nan("");
  std::vector<double> rewards{1, nan, 2, 3, 4, 5, nan, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7};
  gdpo::ShrunkGdpo e;
  gdpo::RewardBatch batch{gdpo::view(rewards.data(), 9, 2), gdpo::by_offsets(offsets)};
  const auto refusal = [&](const auto& exec) {
    return message_of([&] { gdpo::advantages(exec, batch, e); });
  };
  const auto check_all = [&](const std::string& part) {
    gdpo::ThreadPool pool(2);
    CHECK(refusal(gdpo::seq).find(part) != std::string::npos);
    CHECK(refusal(gdpo::simd).find(part) != std::string::npos);
    CHECK(refusal(gdpo::parallel(pool)).find(part) != std::string::npos);
  };
  e.missing.entry = gdpo::MissingEntry::Reject;
  check_all("row 3, reward 0");
  e.singleton = gdpo::Singleton::Error;
  check_all("row 3, reward 0");
  rewards[6] = 1;
  check_all("one used row in group 4");  // of column 0
  e.singleton = gdpo::Singleton::Zero;
  check_all("row 0, reward 1");
}

}  // namespace reads_batch_test
