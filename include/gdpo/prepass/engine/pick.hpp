#pragma once
// Numbers by their place in the order of a batch, and picks of tokens by a number each, for
// pre-passes that decide from the whole batch.
#include <gdpo/prepass/engine/row_lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The number at a place of an order, what follows it, and how many are smaller than it.
struct Ranked {
  double value, next;
  index_t smaller;
};

/// Finds numbers of a batch by their place in its order, without sorting it: counts them in bins by
/// their leading bits, and looks at those in the bin of the place.
///
/// `visit_all(visit)` calls visit(values, mask, n) for each row; both times in the same order. NaN
/// and values without a mask do not count. 0 and -0 are equal. Counting takes a read of the batch
/// and each place another.
template <class V, class T, class VisitAll>
class Ranking {
  using F = std::conditional_t<std::is_same_v<V, double>, float, math::Native<float>>;
  static constexpr int block = 256, shift = 18, bins = 1 << (32 - shift), sets = 4,
                       no_bin = bins - 1;  // of NaN; that of infinity is before it
  static constexpr index_t few = 16384;    // so many are sorted out faster without bins

 public:
  template <class S>
  Ranking(const VisitAll& visit_all, const PrepassRows<S>& rows)
      : visit_all_(visit_all),
        found_(rows.scratch()),
        counts_(rows.bins()),
        few_(rows.positions() < few) {
    if (few_) {
      gather(-math::infinity, math::infinity);
      n_ = static_cast<index_t>(found_.size());
      return;
    }
    counts_.assign(static_cast<std::size_t>(bins) * sets, 0);
    visit_blocks([this](const float* values, const T*, int n) { count(values, n); });
    for (int bin = 0; bin < bins; ++bin) {
      for (int set = 1; set < sets; ++set) counts_[at_bin(bin)] += counts_[at_bin(bin, set)];
      if (bin != no_bin) n_ += counts_[at_bin(bin)];
    }
  }

  /// How many numbers there are.
  index_t size() const { return n_; }

  /// The number at place k, from 0, of at least k + 1; `next` is infinite at the last place.
  Ranked at(index_t k) {
    index_t before = 0;  // numbers in the bins before
    if (!few_) {
      int low = 0;
      while (before + in_bin(low) <= k) before += in_bin(low++);
      int high = low;
      for (index_t end = before + in_bin(low); end <= k + 1 && end < n_;) end += in_bin(++high);
      gather(edge(low), edge(high, true));
    }
    const auto place = found_.begin() + static_cast<std::ptrdiff_t>(k - before);
    std::nth_element(found_.begin(), place, found_.end());
    Ranked ranked{*place, math::infinity, before};
    for (auto x = found_.begin(); x != place; ++x) ranked.smaller += *x < ranked.value;
    for (auto x = place + 1; x != found_.end(); ++x) ranked.next = (std::min)(ranked.next, *x);
    return ranked;
  }

 private:
  static std::size_t at_bin(int bin, int set = 0) {
    return static_cast<std::size_t>(set * bins + bin);
  }
  index_t in_bin(int bin) const { return counts_[at_bin(bin)]; }

  /// Calls use(as_floats, values, n) for up to `block` numbers at a time. Those that do not count
  /// are NaN as floats; the others are rounded, which keeps their order.
  template <class Use>
  void visit_blocks(const Use& use) const {
    visit_all_([&](const T* values, const unsigned char* mask, index_t length) {
      float as_floats[block];
      for (index_t begin = 0; begin < length; begin += block) {
        const int n = static_cast<int>((std::min<index_t>)(block, length - begin));
        using In = std::conditional_t<std::is_same_v<T, float>, F, V>;
        for_each_lanes<In>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
          using L = typename decltype(lanes)::type;
          L x = L(math::Lanes<L>::load(values + begin + t)) + math::constant<L>(0.0);  // no -0
          if (mask) {
            x = math::select(math::Lanes<L>::load_mask(mask + begin + t), x,
                             math::constant<L>(math::nan()));
          }
          math::Lanes<L>::store(as_floats + t, x);
        });
        use(as_floats, values + begin, n);
      }
    });
  }

  /// Counts some numbers. Numbers that follow each other go to different sets of counts: an
  /// addition to the count of the number before would wait for that.
  void count(const float* values, int n) {
    std::int32_t bin[block] = {};
    for_each_lanes<F>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
      using L = typename decltype(lanes)::type;
      const L x = math::Lanes<L>::load(values + t);
      const L number = math::select(math::is_nan(x), math::constant<L>(not_counted()), x);
      if constexpr (math::Lanes<L>::width == 1) {
        std::int32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        bin[t] = bin_of(bits);
      } else {
        const auto bits = bin_of(reinterpret_cast<typename math::Lanes<L>::Bits>(number.v));
        std::memcpy(bin + t, &bits, sizeof bits);
      }
    });
    std::uint32_t* const c = counts_.data();
    int t = 0;
    for (; t + sets <= n; t += sets)
      ++c[bin[t]], ++c[bins + bin[t + 1]], ++c[2 * bins + bin[t + 2]], ++c[3 * bins + bin[t + 3]];
    for (; t < n; ++t) ++c[bin[t]];
  }
  /// A NaN in the last bin.
  static float not_counted() { return math::from_bits(std::uint32_t{0x7fffffffu}); }
  /// The bin of floats, from their bits.
  template <class Bits>
  static GDPO_INLINE Bits bin_of(const Bits& bits) {
    return ((bits ^ ((bits >> 31) & 0x7fffffff)) >> shift) + bins / 2;
  }
  /// The smallest or the largest number of a bin.
  static double edge(int bin, bool largest = false) {
    const std::int32_t in_order =
        (bin - bins / 2) * (1 << shift) + (largest ? (1 << shift) - 1 : 0);
    const std::int32_t bits = in_order ^ (in_order < 0 ? 0x7fffffff : 0);
    const float number = math::from_bits(static_cast<std::uint32_t>(bits));
    if (math::is_nan(number)) return largest ? math::infinity : -math::infinity;
    return static_cast<double>(number);
  }

  /// Keeps the numbers that are from low to high as floats.
  void gather(double low, double high) {
    found_.clear();
    visit_blocks([&](const float* as_floats, const T* values, int n) {
      for_each_lanes<F>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        const L x = math::Lanes<L>::load(as_floats + t);
        const auto inside = math::both(x >= math::constant<L>(low), x <= math::constant<L>(high));
        if constexpr (math::Lanes<L>::width == 1) {
          if (inside && !math::is_nan(x)) found_.push_back(static_cast<double>(values[t]));
        } else {
          if (!math::any(inside)) return;
          for (int j = 0; j < math::Lanes<L>::width; ++j) {
            const auto one = static_cast<double>(as_floats[t + j]);
            // Under -ffast-math a comparison with NaN may be true.
            if (!math::is_nan(one) && one >= low && one <= high)
              found_.push_back(static_cast<double>(values[t + j]));
          }
        }
      });
    });
  }

  const VisitAll& visit_all_;
  std::vector<double>& found_;
  std::vector<std::uint32_t>& counts_;
  bool few_;
  index_t n_ = 0;
};

/// Calls visit(keys, mask, n) for each row, with the weights of its tokens.
template <class S, class Visit>
void visit_weights(const PrepassArgs<S>& args, const Visit& visit) {
  for (index_t i = 0; i < args.rows.size(); ++i) {
    const TokenRow<S> row = args.rows(i);
    visit(args.weights_of(i), row.mask, row.length);
  }
}

/// Replaces keys by weights: the `count` valid tokens with the smallest keys get `picked`, all
/// other valid tokens `rest`. A token whose key is NaN is never picked. Of equal keys the first in
/// the batch is picked first.
template <class V, class S>
void pick_smallest(const PrepassArgs<S>& args, std::size_t count, double picked, double rest) {
  const auto keys = [&args](const auto& visit) { visit_weights(args, visit); };
  Ranking<V, double, decltype(keys)> ranking(keys, args.rows);
  const index_t n = (std::min)(static_cast<index_t>(count), ranking.size());
  double limit = -math::infinity;
  index_t at_limit = 0;  // how many of the tokens whose key is `limit` are picked
  if (n > 0) {
    const Ranked last = ranking.at(n - 1);
    limit = last.value, at_limit = n - last.smaller;
  }
  visit_weights(args, [&](double* key, const unsigned char* mask, index_t length) {
    for_each_lanes<V>(length, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
      using L = typename decltype(lanes)::type;
      constexpr int width = math::Lanes<L>::width;
      const L x = math::Lanes<L>::load(key + t), most = math::constant<L>(limit);
      if constexpr (width > 1) {
        if (at_limit == 0 || !math::any(x == most)) {
          const L weight =
              math::select(x < most, math::constant<L>(picked), math::constant<L>(rest));
          const L kept =
              mask ? L(math::select(math::Lanes<L>::load_mask(mask + t), weight, x)) : weight;
          math::Lanes<L>::store(key + t, kept);
          return;
        }
      }
      for (int j = 0; j < width; ++j) {
        double& one = key[t + j];
        if (mask && mask[t + j] == 0) continue;
        const bool is_number = !math::is_nan(one), below = is_number && one < limit;
        const bool equal = is_number && !(one < limit) && !(one > limit) && at_limit > 0;
        if (equal) --at_limit;
        one = below || equal ? picked : rest;
      }
    });
  });
}

}  // namespace detail
GDPO_END_NAMESPACE
