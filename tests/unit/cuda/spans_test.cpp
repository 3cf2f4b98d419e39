// labels: none
// The tallies of the units of a batch are added in the order of cuda/tokens/add_tallies.hpp,
// whatever the number of parts and bytes of a tally: more parts than a block has warps or threads,
// and more bytes than 32 tallies have room for in a block's memory.
#include <gdpo/cuda/tokens/add_tallies.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace spans_test {

namespace {

using gdpo::cuda::detail::AddSpans, gdpo::cuda::detail::SumOfSpans;

/// A tally of `Parts` sums, each of the numbers of its units and of their places.
template <int Parts>
struct Sums {
  static constexpr int parts = Parts;
  double sum[Parts] = {}, rows[Parts] = {};
  GDPO_INLINE void add_part(int part, const Sums& o) {
    sum[part] += o.sum[part], rows[part] += o.rows[part];
  }
  void add(const Sums& o) {
    for (int part = 0; part < Parts; ++part) add_part(part, o);
  }
};

/// Writes the sum of the spans.
template <class Tallies>
struct Finish {
  using Sum = SumOfSpans<Tallies>;
  static constexpr int largest_block = Sum::threads;
  Tallies* tallies;
  gdpo::cuda::detail::Spans spans;
  Tallies* result;
  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    const Tallies& total = Sum::of(block, tallies, spans);
    block.each([&](int thread) {
      if (thread == 0) *result = total;
    });
  }
};

template <class Tallies>
std::vector<Tallies> random_units(int units) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> number(-1, 1);
  std::vector<Tallies> tallies(static_cast<std::size_t>(units));
  for (Tallies& t : tallies) {
    for (int part = 0; part < Tallies::parts; ++part)
      t.sum[part] = number(random), t.rows[part] = 1;
  }
  return tallies;
}

/// The spans in the order of their units, then neighbors as a tree.
template <class Tallies>
Tallies by_hand(const std::vector<Tallies>& tallies) {
  const std::size_t units = tallies.size(), each = (units + 31) / 32;
  Tallies span[32] = {};
  for (std::size_t u = 0; u < units; ++u) span[u / each].add(tallies[u]);
  for (int by = 1; by < 32; by *= 2)
    for (int s = 0; s < 32; s += 2 * by) span[s].add(span[s + by]);
  return span[0];
}

template <int Parts>
void check_parts() {
  using Tallies = Sums<Parts>;
  using Sum = SumOfSpans<Tallies>;
  CHECK(Sum::threads <= gdpo::cuda::most_threads);
  CHECK(Sum::shared_bytes <= 64 * 1024);
  CHECK(AddSpans<Tallies>::shared_bytes <= 32 * 1024);
  for (const int units : {0, 1, 2, 31, 32, 33, 100, 1024}) {
    INFO(Parts << " parts of " << units << " units");
    const std::vector<Tallies> tallies = random_units<Tallies>(units);
    OnDevice<Tallies> on(tallies), result(std::vector<Tallies>(1));
    const TestDevice device = test_device(static_cast<unsigned>(units));
    const gdpo::cuda::detail::Spans spans(units);
    gdpo::cuda::detail::add_spans(device, on.data(), spans);
    device.launch(1, Sum::threads, Sum::shared_bytes,
                  Finish<Tallies>{on.data(), spans, result.data()});
    const Tallies got = result.host()[0], expected = by_hand(tallies);
    bool same = true;
    for (int part = 0; part < Parts; ++part)
      same = same && got.sum[part] == expected.sum[part] && got.rows[part] == units;
    CHECK(same);
  }
}

TEST_CASE("tallies of any size are added in the order of their units", "[sanitize]") {
  check_parts<1>();
  check_parts<29>();   // as many as a LossResult has
  check_parts<32>();   // a part for each warp
  check_parts<33>();   // one more
  check_parts<130>();  // more than AddSpans has threads, and than 64 KiB hold
  check_parts<600>();
}

}  // namespace

}  // namespace spans_test
