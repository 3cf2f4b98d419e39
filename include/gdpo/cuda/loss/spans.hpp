#pragma once
// Adds the tallies of the units of a batch, of the policy loss and of the value loss: first those
// of each span of consecutive units, then the spans.
#include <gdpo/cuda/loss/rows.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// The units of a batch in spans of consecutive ones: span s has `each` units from s * each on.
struct Spans {
  static constexpr int most = warp;
  int units, each;
  explicit Spans(int of_batch) : units(of_batch), each((of_batch + most - 1) / most) {}
  GDPO_INLINE int begin(int span) const { return span * each < units ? span * each : units; }
  /// How many spans there are.
  int count() const { return each == 0 ? 0 : (units + each - 1) / each; }
};

/// Copies n tallies with all threads of a block, in words.
template <class Tallies, class Block>
GDPO_DEVICE void copy_tallies(Block& block, Tallies* to, const Tallies* from, int n) {
  struct alignas(8) Word {
    unsigned char of[8];
  };
  constexpr int words = sizeof(Tallies) / sizeof(Word);
  static_assert(sizeof(Tallies) == words * sizeof(Word), "a tally is copied in words");
  block.each([&](int thread) {
    for (int i = thread; i < n * words; i += block.threads())
      reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  });
}

/// Adds the tallies of each span, in the order of its units, into that of its first unit. A block
/// takes a span, and each of its threads one part of the tallies (add_part).
template <class Tallies>
struct AddSpans {
  static constexpr int threads = loss_threads, largest_block = threads, at_once = 16;
  static_assert(Tallies::parts <= threads);
  static constexpr std::size_t shared_bytes = (at_once + 1) * sizeof(Tallies);
  Tallies* tallies;
  Spans spans;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Tallies* const total = block.template shared<Tallies>();
    const int span = static_cast<int>(block.index());
    const int begin = spans.begin(span), end = spans.begin(span + 1);
    block.each([&](int thread) {
      if (thread == 0) *total = Tallies{};
    });
    for (int first = begin; first < end; first += at_once) {
      const int n = end - first < at_once ? end - first : at_once;
      copy_tallies(block, total + 1, tallies + first, n);
      block.each([&](int thread) {
        for (int u = 0; thread < Tallies::parts && u < n; ++u)
          total->add_part(thread, total[1 + u]);
      });
    }
    copy_tallies(block, tallies + begin, total, begin < end);
  }
};
/// Launches AddSpans where a span has more than one unit.
template <class Device, class Tallies>
void add_spans(const Device& device, Tallies* tallies, const Spans& spans) {
  using Kernel = AddSpans<Tallies>;
  if (spans.each > 1)
    device.launch(spans.count(), Kernel::threads, Kernel::shared_bytes, Kernel{tallies, spans});
}

/// Adds the tallies of the spans, as a tree, into the first of of_span. Neighbouring spans first: a
/// sum then always stands for consecutive units, so the first input that is not finite stays the
/// first. The block has a thread for each part of each span. of_span: (Spans::most) in its memory.
template <class Tallies, class Block>
GDPO_DEVICE void sum_of_spans(Block& block, Tallies* of_span, const Tallies* tallies,
                              const Spans& spans) {
  block.each([&](int thread) {
    if (thread < Spans::most) of_span[thread] = Tallies{};
  });
  block.each([&](int thread) {
    const int span = thread % Spans::most, at = spans.begin(span);
    if (at < spans.units) of_span[span].add_part(thread / Spans::most, tallies[at]);
  });
  for (int by = 1; by < Spans::most; by *= 2) {
    block.each([&](int thread) {
      const int span = thread % Spans::most;
      if (span % (2 * by) == 0) of_span[span].add_part(thread / Spans::most, of_span[span + by]);
    });
  }
}

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
