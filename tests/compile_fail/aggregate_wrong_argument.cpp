// expect: an Aggregate needs: double operator()(const gdpo::AggregateArgs&) const
#include <gdpo/loss.hpp>

struct PerToken {
  double operator()(double tokens) const { return 1 / tokens; }
};
gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<>, PerToken> loss;
