// expect: a KL term needs: beta, against, template <class V> gdpo::Term<V> operator()(const gdpo::Token<V>&) const
#include <gdpo/loss.hpp>

struct Distance {
  template <class V>
  gdpo::Term<V> operator()(const gdpo::Token<V>& t) const {
    return {t.logp - t.ref_logp, V{}, V{}};
  }
};
gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, Distance> loss;
