#pragma once
// Checks of the settings of policies.
#include <gdpo/core/errors.hpp>
#include <gdpo/math/scalar.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Runs the check that a policy makes of its own settings, if it has one. The contract is a member
/// `void check(const char* function) const` that throws invalid_input for a setting out of its
/// range.
template <class P, class = void>
struct Checks {
  static void run(const P&, const char*) {}
};
template <class P>
struct Checks<P, std::void_t<decltype(std::declval<const P&>().check(""))>> {
  static void run(const P& policy, const char* function) { policy.check(function); }
};

/// ddof is what a standard deviation subtracts from the count: 0 for the population, 1 for a
/// sample.
inline void check_ddof(const char* function, const char* name, int ddof) {
  if (ddof < 0)
    contract::fail(function, name, contract::text(index_t{ddof}), "0 (population) or more");
}

inline void check_eps(const char* function, const char* name, double eps) {
  if (!(eps >= 0) || math::not_finite(eps)) {
    contract::fail(function, name, contract::text(eps), "a finite number of at least 0");
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
