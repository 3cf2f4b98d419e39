#pragma once
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/advantage/stat.hpp>

GDPO_BEGIN_NAMESPACE

/// The multiplier of a centred value: `double operator()(const ScaleArgs&) const`; one that declares
/// takes_lanes is a template over its argument, so that one call serves the lanes of several rewards.
namespace scale {

/// Whose spread.
enum class Of {
  Group,        ///< the used values of the group; a lone member has variance 1
  Batch,        ///< all used values of the column (TRL scale_rewards="batch", Lite-PPO)
  BatchCentred  ///< all of them after the baseline (ms-swift REINFORCE++)
};

/// 1 / (sigma + eps), sigma^2 = sum (x - mean)^2 / (n - ddof) of the set `of`; `eps_at` says where eps stands.
/// The paper's defaults: sample std, no eps (a constant group is decided by max == min, so none is needed).
struct StdDev {
  static constexpr bool per_group = true, takes_lanes = true;
  Of of = Of::Group;
  int ddof = 1;
  double eps = 0;
  EpsAt eps_at = EpsAt::Std;

  bool reads_batch() const { return of != Of::Group; }
  void check(const char* function) const {
    detail::check_ddof(function, "scale.ddof", ddof);
    detail::check_eps(function, "scale.eps", eps);
  }
  template <class Args>
  GDPO_DEVICE auto operator()(const Args& a) const {
    using V = std::decay_t<decltype(a.group.m2)>;
    V v = math::constant<V>(1.0);
    index_t dof = 1;
    if (of != Of::Group) {
      const Moments& m = of == Of::Batch ? a.batch.raw : a.batch.centred;
      v = math::constant<V>(variance(m, ddof));
      dof = m.n - ddof;
    } else if (a.group.n != 1) {
      v = variance(a.group, ddof);
      dof = a.group.n - ddof;
    }
    return multiplier(eps, eps_at, v, dof);
  }
};

/// 1: the centred value itself (Dr.GRPO, arXiv 2503.20783; RLOO).
struct None {
  static constexpr bool per_group = true, takes_lanes = true;
  bool reads_batch() const { return false; }
  template <class Args>
  GDPO_DEVICE double operator()(const Args&) const {
    return 1.0;
  }
};

}  // namespace scale
GDPO_END_NAMESPACE
