// expect: an executor needs, const where it is held by value: int concurrency() const
#include <gdpo/loss.hpp>

struct Counting {
  int calls = 0;
  int concurrency() const { return 1; }
  template <class F>
  void for_each(gdpo::index_t n, const F& f) {
    for (gdpo::index_t i = 0; i < n; ++i, ++calls) f(i);
  }
};
auto kept = gdpo::parallel(Counting{});
