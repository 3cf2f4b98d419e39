// expect: operator()(const gdpo::kl::EstimateArgs<V>&) const
#include <gdpo/loss.hpp>

struct Squared {
  template <class V>
  gdpo::kl::Estimate<V> operator()(const V& x) const {
    return {x * x, x + x, x * x + x + x};
  }
};
gdpo::Kl<Squared> kl;
