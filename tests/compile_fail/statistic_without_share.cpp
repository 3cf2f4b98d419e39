// expect: a Statistic needs: double operator()(const gdpo::RowSum&) const, and double share(double n) const
#include <gdpo/loss.hpp>

struct Largest {
  double operator()(const gdpo::RowSum& s) const { return s.sum; }
};
gdpo::level::Sequence<gdpo::map::None, Largest> level;
