// Every estimator that has a name, every setting that estimators share, and what turns advantages
// of rows into advantages of tokens. All of it is computed in double with the same operations in
// every build, so the bits are the same everywhere.
#pragma once
#include <gdpo/presets/nvlabs.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/runtime.hpp>
#include <set>

#include "hash.hpp"
#include "inputs.hpp"

namespace {

/// Rewards of three kinds of groups: binary, constant, and general. In `missing`, one reward in 50
/// is missing.
template <class T>
struct Rewards {
  static constexpr int rows = 344, reward_count = 3;
  std::vector<T> whole, missing;
  std::vector<double> penalty;
  std::vector<unsigned char> valid;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> ids, offsets{0};

  Rewards() {
    Integers integers(23);
    for (int i = 0; i < rows; ++i) {
      const int group = i / 8;
      ids.push_back(i * i % 61);
      tokens.push_back(i % 5 * 20);
      valid.push_back(!integers.one_in(7));
      penalty.push_back(in_millionths<double>(integers(1 << 18)));
      for (int c = 0; c < reward_count; ++c) {
        const std::int64_t x = integers(1 << 20);
        whole.push_back(group % 4 == 0   ? static_cast<T>(x % 2)
                        : group % 4 == 1 ? T(0.75)
                                         : in_millionths<T>(x + (group % 4 == 2 ? 0 : c << 22)));
        missing.push_back(integers.one_in(50) ? std::numeric_limits<T>::quiet_NaN() : whole.back());
      }
    }
    // Groups of 0 to 12 rows.
    for (int end = 0, k = 0; end < rows; ++k) {
      end = (std::min)(rows, end + k * 5 % 13);
      offsets.push_back(end);
    }
  }
  gdpo::View<const T, 2> view(const std::vector<T>& rewards) const {
    return gdpo::view(rewards.data(), rows, reward_count);
  }
};

void add(Hash& hash, const gdpo::GroupReport& r) {
  for (const gdpo::RewardReport& c : r.rewards) {
    for (const double x :
         {static_cast<double>(c.n), c.mean, c.std, c.min, c.max, c.zero_std_groups})
      hash.add(x);
  }
  for (const index_t x :
       {r.rows, r.groups, r.smallest_group, r.largest_group, r.singletons, r.excluded_rewards,
        r.infinite_rewards, r.excluded_rows, r.unused_rows, static_cast<index_t>(r.one_group)}) {
    hash.add(static_cast<double>(x));
  }
  for (const unsigned char x : r.degenerate) hash.add(static_cast<double>(x));
  for (const unsigned char x : r.reward_degenerate) hash.add(static_cast<double>(x));
  hash.add(r.group_std);
  hash.add(r.reward_group_std);
  hash.add(r.group_squares);
  for (const double x : {r.reward_mean, r.reward_std, r.reward_std_mean_of_groups, r.combined_std,
                         r.zero_std_group_rows}) {
    hash.add(x);
  }
}

/// A setting that every estimator can have.
struct Setting {
  const char* name;
  gdpo::Missing missing{};
  gdpo::Singleton singleton = gdpo::Singleton::Zero;
  bool penalized = false, weighted = false, gated = false;
};
constexpr Setting settings[] = {
    {"keep", {gdpo::MissingEntry::Skip, gdpo::MissingRow::Keep}},
    {"zero", {gdpo::MissingEntry::Zero}},
    {"propagate", {gdpo::MissingEntry::Propagate}, gdpo::Singleton::Raw},
    {"raw_singleton", {}, gdpo::Singleton::Raw},
    {"nan_singleton", {}, gdpo::Singleton::Nan},
    {"penalty", {}, gdpo::Singleton::Zero, true},
    {"weights", {}, gdpo::Singleton::Zero, false, true},
    {"gates", {}, gdpo::Singleton::Zero, false, false, true},
    {"everything", {gdpo::MissingEntry::Zero}, gdpo::Singleton::Raw, true, true, true},
};

class Estimators {
 public:
  explicit Estimators(const Lines& lines) : line_(lines) {}

  void all() {
    std::set<std::pair<std::size_t, gdpo::RenormOver>> kinds;
    for (const std::string& name : gdpo::runtime::estimator_names()) {
      const gdpo::runtime::Estimator estimator = gdpo::runtime::estimator(name);
      std::visit(
          [&](const auto& e) {
            const bool first = kinds.insert({estimator.index(), e.renorm.over}).second;
            side_by_side(name, e);
            ragged(name, e, false);
            if (!first) return;  // the settings have been run with another of this kind
            for (const Setting& setting : settings) {
              const auto with = changed(e, setting);
              side_by_side(name + "/" + setting.name, with);
              ragged(name + "/" + setting.name, with, true);
            }
          },
          estimator);
    }
    spreads();
    storages();
    tokens();
  }

 private:
  /// Hashes the advantages, the combined values and the report of one call.
  template <class Exec, class T, class Groups, class E>
  void advantages(const std::string& name, const Exec& exec,
                  const gdpo::RewardBatch<T, Groups>& batch, const E& e) {
    std::vector<gdpo::result_t<T>> out(static_cast<std::size_t>(batch.rewards.extent[0]));
    gdpo::Workspace workspace;
    gdpo::GroupReport report;
    gdpo::advantages_into(exec, batch, e, gdpo::view(out), workspace, &report);
    Hash hash;
    hash.add(out);
    for (index_t i = 0; i < workspace.sums().extent[0]; ++i) hash.add(workspace.sums()(i));
    add(hash, report);
    line_("any", "estimator." + name, hash);
  }

  /// Groups of one size in float, which vector lanes compute: first with nothing missing, then with
  /// missing rewards.
  template <class E>
  void side_by_side(const std::string& name, const E& e) {
    for (const bool missing : {false, true}) {
      gdpo::RewardBatch batch{narrow_.view(missing ? narrow_.missing : narrow_.whole),
                              gdpo::groups_of(8)};
      batch.tokens = gdpo::view(narrow_.tokens);
      batch.penalty = gdpo::view(narrow_.penalty);
      advantages(name + (missing ? ".groups_of_missing" : ".groups_of"), gdpo::simd, batch, e);
    }
  }
  /// Groups of several sizes in double, with missing rewards and, where `unused`, with rows that
  /// are not used.
  template <class E>
  void ragged(const std::string& name, const E& e, bool unused) {
    gdpo::RewardBatch batch{wide_.view(wide_.missing), gdpo::by_offsets(wide_.offsets)};
    batch.tokens = gdpo::view(wide_.tokens);
    batch.penalty = gdpo::view(wide_.penalty);
    if (unused) batch.valid = gdpo::view(wide_.valid);
    advantages(name + ".by_offsets", gdpo::seq, batch, e);
  }

  template <class E>
  static E changed(E e, const Setting& setting) {
    e.missing = setting.missing;
    e.singleton = setting.singleton;
    if (setting.penalized) {
      e.penalty.coef = 0.375;
      e.penalty.reward =
          std::is_same_v<decltype(e.combine), gdpo::combine::NormalizeThenSum> ? 1 : -1;
    }
    if (setting.weighted) e.weights = {0.5, 0, -1.25};
    if (setting.gated) e.gates = {{0, 2, 0.5}, {1, 0, -0.25}};
    return e;
  }

  /// Every place of eps, every set over which the scale is computed, and the settings of the second
  /// normalization.
  void spreads() {
    constexpr std::pair<const char*, gdpo::EpsAt> places[] = {
        {"std", gdpo::EpsAt::Std},
        {"var", gdpo::EpsAt::Var},
        {"clamp_std", gdpo::EpsAt::ClampStd},
        {"clamp_var", gdpo::EpsAt::ClampVar},
        {"none", gdpo::EpsAt::None},
        {"std_or_one", gdpo::EpsAt::StdOrOne}};
    constexpr std::pair<const char*, gdpo::scale::Of> sets[] = {
        {"group", gdpo::scale::Of::Group},
        {"batch", gdpo::scale::Of::Batch},
        {"centered", gdpo::scale::Of::BatchCentered}};
    for (const auto& [place, eps_at] : places) {
      gdpo::Gdpo e;
      e.scale.eps = e.renorm.eps = 0.125;
      e.scale.eps_at = e.renorm.eps_at = eps_at;
      const std::string name = std::string("eps_at/") + place;
      side_by_side(name, e);
      e.renorm.ddof = e.scale.ddof = 0;
      e.renorm.count_eps = 1e-8;
      e.renorm.keep_mean = true;
      ragged(name + "/keep_mean", e, true);
    }
    for (const auto& [set, of] : sets) {
      gdpo::Grpo e;
      e.scale.of = of;
      side_by_side(std::string("scale_of/") + set, e);
      ragged(std::string("scale_of/") + set, e, true);
    }
  }

  /// Other storage types, and groups by id.
  void storages() {
    const auto some = [this](const std::string& name, const auto& rewards) {
      const auto groups = gdpo::by_id(rewards.ids);
      gdpo::RewardBatch batch{rewards.view(rewards.missing), groups};
      batch.tokens = gdpo::view(rewards.tokens);
      batch.valid = gdpo::view(rewards.valid);
      advantages("gdpo.by_id_" + name, gdpo::seq, batch, gdpo::Gdpo{});
      advantages("grpo.by_id_" + name, gdpo::seq, batch, gdpo::Grpo{});
    };
    some("float", narrow_);
    some("double", wide_);
    advantages("gdpo.groups_of_double", gdpo::simd,
               gdpo::RewardBatch{wide_.view(wide_.whole), gdpo::groups_of(8)}, gdpo::Gdpo{});
  }

  /// Advantages of tokens, whitening and masked means.
  void tokens() {
    constexpr int rows = 12, width = 40;
    Integers integers(31);
    std::vector<double> advantages;
    std::vector<float> logp, ref_logp, out(rows * width);
    std::vector<unsigned char> mask;
    for (int i = 0; i < rows; ++i) advantages.push_back(in_millionths<double>(integers(1 << 21)));
    for (int k = 0; k < rows * width; ++k) {
      mask.push_back(!integers.one_in(4));
      const std::int64_t at = integers(1 << 22) - (5 << 20);
      logp.push_back(mask.back() ? in_millionths<float>(at)
                                 : std::numeric_limits<float>::quiet_NaN());
      ref_logp.push_back(in_millionths<float>(at + integers(1 << 19)));
    }
    const auto table = [](auto& x) { return gdpo::view(x.data(), rows, width); };
    const auto row_values = gdpo::view(std::as_const(advantages));
    const auto counted = table(std::as_const(mask));
    const auto line = [&](const char* kind, const std::string& name) {
      Hash hash;
      hash.add(out);
      line_(kind, "tokens." + name, hash);
    };
    gdpo::broadcast_into(row_values, counted, table(out));
    line("any", "broadcast");

    const auto penalized = [&](const char* kind, const std::string& name, const auto& kl) {
      gdpo::penalty::Token penalty{0.375, kl};
      gdpo::token_advantages_into(row_values, counted, table(std::as_const(logp)),
                                  table(std::as_const(ref_logp)), penalty, table(out));
      line(kind, "penalty_" + name);
    };
    penalized("any", "k1", gdpo::Kl<gdpo::kl::K1>{});
    penalized("any", "abs", gdpo::Kl<gdpo::kl::Abs>{});
    penalized("any", "k2", gdpo::Kl<gdpo::kl::K2>{});
    gdpo::Kl<gdpo::kl::K3> clamped;
    clamped.input = {-0.375, 0.375};
    clamped.output = {-0.0625, 0.0625};
    penalized("loss", "k3", gdpo::Kl<gdpo::kl::K3>{});
    penalized("loss", "k3_clamped", clamped);

    const auto values = table(std::as_const(ref_logp));
    const auto whitened = [&](const std::string& name, const gdpo::Renorm& renorm) {
      gdpo::whiten_into(values, counted, renorm, table(out));
      line("any", "whiten_" + name);
    };
    whitened("verl", gdpo::verl::masked_whiten);
    whitened("nvlabs", gdpo::nvlabs::masked_whiten);
    gdpo::Renorm kept = gdpo::verl::masked_whiten;
    kept.keep_mean = true;
    whitened("keep_mean", kept);

    Hash means;
    means.add(gdpo::masked_mean(values, counted, 1e-8));
    means.add(gdpo::masked_mean_over(values, counted, 77.0));
    means.add(gdpo::masked_row_means(values, counted));
    means.add(gdpo::masked_row_mean(values, counted));
    means.add(gdpo::masked_variance(values, counted));
    const gdpo::Moments moments = gdpo::masked_moments(values, counted);
    for (const double x :
         {moments.weight, moments.mean, moments.mean_low, moments.m2, moments.min, moments.max}) {
      means.add(x);
    }
    line_("any", "tokens.masked_means", means);
  }

  Lines line_;
  Rewards<float> narrow_;
  Rewards<double> wide_;
};

}  // namespace
