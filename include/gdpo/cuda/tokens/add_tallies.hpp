#pragma once
// Adds the tallies of the units of a batch, of the policy loss and of the value loss: first those
// of each span of consecutive units, then the spans.
#include <gdpo/cuda/tokens/device_rows.hpp>

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
    unsigned char byte[8];
  };
  constexpr int words = sizeof(Tallies) / sizeof(Word);
  static_assert(sizeof(Tallies) == words * sizeof(Word), "a tally is copied in words");
  block.each([&](int thread) {
    for (int i = thread; i < n * words; i += block.threads())
      reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  });
}

/// Adds the tallies of each span, in the order of its units, into that of its first unit. A block
/// takes a span, and its threads share the parts of the tallies (add_part).
template <class Tallies>
struct AddSpans {
  static constexpr int threads = loss_threads, largest_block = threads;
  /// How many tallies are in the block's memory at once: 16, or as many as fit 32 KiB.
  static constexpr int at_once =
      (std::max)(1, (std::min)(16, static_cast<int>(32 * 1024 / sizeof(Tallies)) - 1));
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
        for (int part = thread; part < Tallies::parts; part += threads)
          for (int u = 0; u < n; ++u) total->add_part(part, total[1 + u]);
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

/// Adds the tallies of the spans, as a tree, in one block. Neighboring spans first: a sum then
/// always stands for consecutive units, so the first input that is not finite stays the first. Each
/// warp takes a part of the tallies, or several in turns if there are more parts than warps.
template <class Tallies>
struct SumOfSpans {
  static constexpr int parts_at_once = (std::min)(+Tallies::parts, most_threads / Spans::most),
                       threads = Spans::most * parts_at_once;
  /// Whether the spans are added in the block's memory, or else where their tallies are: 64 KiB are
  /// the least memory that a device has for a block.
  static constexpr bool in_block = Spans::most * sizeof(Tallies) <= 64 * 1024;
  static constexpr int copies = in_block ? Spans::most : 1;
  static constexpr std::size_t shared_bytes = copies * sizeof(Tallies);

  /// The sum, in the block's memory. The tallies may be overwritten.
  template <class Block>
  GDPO_DEVICE static const Tallies& of(Block& block, Tallies* tallies, const Spans& spans) {
    Tallies* const memory = block.template shared<Tallies>();
    const auto each = [&](const auto& add) {
      block.each([&](int thread) {
        for (int part = thread / Spans::most; part < Tallies::parts; part += parts_at_once)
          add(thread % Spans::most, part);
      });
    };
    const auto place = [&](int span) -> Tallies& {
      return in_block ? memory[span] : tallies[spans.begin(span)];
    };
    const auto there = [&](int span) { return spans.begin(span) < spans.units; };
    const auto copy = [&] {
      each([&](int span, int part) {
        if (span < copies && there(span)) memory[span].add_part(part, tallies[spans.begin(span)]);
      });
    };
    block.each([&](int thread) {
      if (thread < copies) memory[thread] = Tallies{};
    });
    if (in_block) copy();
    for (int by = 1; by < Spans::most; by *= 2) {
      each([&](int span, int part) {
        if (span % (2 * by) == 0 && there(span + by)) place(span).add_part(part, place(span + by));
      });
    }
    if (!in_block) copy();
    return memory[0];
  }
};

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
