// expect: a Surrogate needs: template <class V> gdpo::Term<V> operator()(const gdpo::Token<V>&) const
#include <gdpo/loss.hpp>

struct Value {
  template <class V>
  V operator()(const gdpo::Token<V>& t) const {
    return -t.advantage;
  }
};
gdpo::PolicyLoss<gdpo::level::Token<>, Value> loss;
