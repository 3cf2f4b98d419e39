#pragma once
// How the settings of policies are checked.
#include <gdpo/core/errors.hpp>
#include <gdpo/math/scalar.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Settings are checked by the policy that owns them: `void check(const char* function) const`, where it has any.
template <class P, class = void>
struct Checks {
  static void run(const P&, const char*) {}
};
template <class P>
struct Checks<P, std::void_t<decltype(std::declval<const P&>().check(""))>> {
  static void run(const P& policy, const char* function) { policy.check(function); }
};

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
