// Advantages compiled with -ffast-math, which lets the compiler assume that there is no NaN and
// regroup sums. Nothing may change: every expected value is exact and compared by its bits, because
// a comparison of doubles proves nothing under this flag.
#include <gdpo/gdpo.hpp>

#include "support/exact.hpp"

using exact::same;

namespace {

template <class Estimator>
std::vector<double> of(const std::vector<double>& rewards, int columns, int group,
                       const Estimator& estimator) {
  const auto rows = static_cast<gdpo::index_t>(rewards.size()) / columns;
  return gdpo::advantages(gdpo::view(rewards.data(), rows, columns), gdpo::groups_of(group),
                          estimator);
}

}  // namespace

int main() {
  const double no = exact::nan();

  same("a missing reward is skipped", of({1, no, 0, 0.5}, 1, 4, gdpo::Grpo{}), {1, 0, -1, 0});
  same("a row without rewards is excluded", of({1, 1, no, no, 0, 0, 0.5, 0.5}, 2, 4, gdpo::Grpo{}),
       {1, 0, -1, 0});
  same("leave-one-out without the missing", of({4, no, 1, 1}, 1, 4, gdpo::Rloo{}),
       {3, 0, -1.5, -1.5});

  gdpo::Grpo propagate;
  propagate.missing.entry = gdpo::MissingEntry::Propagate;
  const std::vector<double> propagated = of({1, no, 0, 0.5}, 1, 4, propagate);
  for (const double a : propagated)
    exact::expect("a propagated missing reward is no longer NaN", exact::is_nan(a));

  same("equal rewards", of({0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}, 1, 7, gdpo::Gdpo{}),
       {0, 0, 0, 0, 0, 0, 0});
  same("equal sums of other rewards", of({0.1, 0.7, 0.7, 0.1, 0.1, 0.7}, 2, 3, gdpo::Grpo{}),
       {0, 0, 0});

  // Large offsets cancel only where sums are centered and compensated in the order in which the
  // code writes them.
  const std::vector<double> small{0, 1, 2, 5}, large{1e8, 1e8 + 1, 1e8 + 2, 1e8 + 5};
  same("an offset of 1e8", of(large, 1, 4, gdpo::Gdpo{}), of(small, 1, 4, gdpo::Gdpo{}));
  const std::vector<double> shuffled{1e8 + 5, 1e8 + 1, 1e8, 1e8 + 2};
  const std::vector<int> id(4, 1);
  const std::vector<double> a = gdpo::advantages(gdpo::view(large.data(), 4, 1), gdpo::by_id(id));
  const std::vector<double> b =
      gdpo::advantages(gdpo::view(shuffled.data(), 4, 1), gdpo::by_id(id));
  same("shuffled rows", b, {a[3], a[1], a[0], a[2]});

  return exact::failures == 0 ? 0 : 1;
}
