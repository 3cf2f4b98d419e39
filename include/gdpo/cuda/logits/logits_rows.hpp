#pragma once
// A row of logits by a block of threads: its sums in one read, its gradient in one read and one
// write. The formulas use powers of 2, which a device computes faster than powers of e.
#include <gdpo/cuda/logits/load_logits.hpp>
#include <gdpo/logits/shared/gradient_row.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// State of each thread that lasts from one `each` to the next. On a device it is in registers.
template <class T>
class PerThread {
 public:
  GDPO_INLINE T& operator[](int thread) {
#if defined(__CUDA_ARCH__)
    (void)thread;
    return state_;
#else
    return state_[thread];
#endif
  }

 private:
#if defined(__CUDA_ARCH__)
  T state_;
#else
  T state_[most_threads];
#endif
};

/// Most threads of a block, and vectors that a thread reads per step. Vector v is 16 bytes of the
/// row (the last one may have fewer entries) and belongs to thread v mod threads. So the order of
/// summation depends on the vocabulary and the storage type alone.
constexpr int logit_threads = 384, vectors_per_step = 4;
/// Rows that a multiprocessor is to hold at once: two, so that one is read while another is
/// computed. One where the row is computed in double or its gradient is wider than its logits: that
/// needs the registers of both.
template <class T, class U = T>
constexpr int row_blocks_at_once = sizeof(gdpo::detail::logit_scalar_t<T>) == 4 &&
                                           sizeof(U) <= sizeof(T)
                                       ? 2
                                       : 1;
/// Threads for a row, in whole warps: a thread for every vectors_per_step vectors, at most
/// logit_threads.
template <class T>
int threads_of(index_t vocabulary) {
  const index_t vectors = (vocabulary + LogitVector<T>::size - 1) / LogitVector<T>::size;
  const index_t warps = (vectors + vectors_per_step * warp - 1) / (vectors_per_step * warp);
  constexpr index_t most = logit_threads / warp;
  return static_cast<int>(warps < 1 ? 1 : warps > most ? most : warps) * warp;
}

/// The numbers of a row as powers of 2: e^((x - m) / temperature) = 2^t(x) / 2^t(m), where t(x) = x
/// scale - k with a whole k. In the quotient k cancels, and so does the rounding of `scale` except
/// for its effect on x - m. Sums with different k differ by exactly a power of 2.
template <class S>
struct PowerScale {
  S scale;                           ///< log2(e) / temperature
  S minus_k = 0;                     ///< -k
  S reference = 0, t_reference = 0;  ///< a logit m near k / scale, and t(m)
  double whole = 0;                  ///< k
  bool precise = false;              ///< |k| < 2^20: power<true> is exact enough

  GDPO_INLINE explicit PowerScale(S row_scale) : scale(row_scale) {}
  /// Chooses k so that t(m) is nearest 0.
  GDPO_INLINE void set(S m) {
    const double x = static_cast<double>(m), s = static_cast<double>(scale);
    whole = std::rint(math::mul(x, s));
    minus_k = -static_cast<S>(whole);
    reference = m, t_reference = static_cast<S>(fused(x, s, -whole));
    precise = (math::abs)(whole) < (1 << 20);
  }
  /// t(x). Near: |k| is small, and one fma rounds once. Otherwise (logits of 1e6) the distance from
  /// the reference is taken first, so that a large x does not cost digits.
  template <bool Near>
  GDPO_INLINE S power(S x) const {
    return Near ? fused(x, scale, minus_k) : fused(x - reference, scale, t_reference);
  }
};
template <class S>
GDPO_INLINE S power_scale(double temperature) {
  return static_cast<S>(1.44269504088896341 / temperature);
}

/// A thread's sums over its part of a row: 2^t and t 2^t with a k of its own, which is raised when
/// a logit has a t above 8. The entries of 16 bytes, and four of these, are added in S; the results
/// are added one after the other in double.
template <class T>
class LogitSums {
 public:
  using Vector = LogitVector<T>;
  using S = typename Vector::S;
  static constexpr double lowest_k = -1e300;  ///< k of a thread without a finite logit

  GDPO_INLINE LogitSums() : powers_(S(0)) {}
  GDPO_INLINE explicit LogitSums(S scale) : powers_(scale) {}

  /// Adds the first n of vectors_per_step vectors. All: n is vectors_per_step.
  template <bool All>
  GDPO_INLINE void add(const Vector* v, int n) {
    const S most = largest_of<T, vectors_per_step>(v);
    top = larger(top, most);
    if (most > limit_) raise(most);
    if (precise_) {
      add_terms<true, All>(v, n);
    } else {
      add_terms<false, All>(v, n);
    }
  }
  /// k.
  GDPO_INLINE double whole() const { return any() ? powers_.whole : lowest_k; }

  S top = gdpo::detail::minus_infinity<S>();  ///< the largest logit
  gdpo::detail::PowerSums sums;               ///< sum 2^t, sum t 2^t

 private:
  GDPO_INLINE bool any() const { return limit_ > gdpo::detail::minus_infinity<S>(); }
  /// Moves k up to logit `most` and the sums with it.
  GDPO_DEVICE void raise(S most) {
    const double old_whole = powers_.whole;
    const bool had_logits = any();
    powers_.set(most);
    if (had_logits) {
      const double shift = old_whole - powers_.whole;
      sums = gdpo::detail::rescaled(sums, shift, whole_power_of_2(shift));
    }
    limit_ = static_cast<S>((powers_.whole + 8) / static_cast<double>(powers_.scale));
    precise_ = powers_.precise;
    if constexpr (Vector::halves) {
      // 16-bit logits far below the others are replaced by a number whose power is still 0. So no t
      // is infinite, and t 2^t is 0, not NaN.
      using H = Halves<typename Vector::L>;
      const auto low =
          static_cast<float>((powers_.whole - 300) / static_cast<double>(powers_.scale));
      floor_ = H::pack(low, low);
      const float t = powers_.template power<true>(H::low(floor_));
      precise_ = precise_ && t > -1e30f && t < -140.0f;
    }
  }
  template <bool Near, bool All>
  GDPO_INLINE void add_terms(const Vector* v, int n) {
    S part[vectors_per_step] = {}, weighted[vectors_per_step] = {};
    GDPO_UNROLL
    for (int u = 0; u < vectors_per_step; ++u) {
      if (All || u < n) terms<Near>(v[u], part[u], weighted[u]);
    }
    sums.add({static_cast<double>((part[0] + part[1]) + (part[2] + part[3])),
              static_cast<double>((weighted[0] + weighted[1]) + (weighted[2] + weighted[3]))});
  }
  template <bool Near>
  GDPO_INLINE void terms(Vector v, S& s, S& w) const {
    constexpr int n = Vector::size;
    S t[n], e[n];
    constexpr bool clamps_halves = Near && Vector::halves;
    if constexpr (clamps_halves) {
      GDPO_UNROLL
      for (std::uint32_t& word : v.w.word) word = halves_at_least<typename Vector::L>(word, floor_);
    }
    v.numbers(t);
    GDPO_UNROLL
    for (int j = 0; j < n; ++j) {
      t[j] = powers_.template power<Near>(t[j]);
      if constexpr (!clamps_halves) t[j] = at_least(t[j], lowest_power<S>);
      e[j] = power_of_2(t[j]);
    }
    if constexpr (n == 2) {
      s = e[0] + e[1], w = math::fma(t[1], e[1], math::mul(t[0], e[0]));
    } else {
      S part[n / 4], weight[n / 4];
      GDPO_UNROLL
      for (int q = 0; q < n / 4; ++q) {
        const S* const a = t + 4 * q;
        const S* const b = e + 4 * q;
        part[q] = (b[0] + b[1]) + (b[2] + b[3]);
        weight[q] = math::fma(a[3], b[3],
                              math::fma(a[2], b[2], math::fma(a[1], b[1], math::mul(a[0], b[0]))));
      }
      s = part[0], w = weight[0];
      if constexpr (n == 8) s = s + part[1], w = w + weight[1];
    }
  }

  PowerScale<S> powers_;
  S limit_ = gdpo::detail::minus_infinity<S>();
  std::uint32_t floor_ = 0;
  bool precise_ = false;
};

/// The sums of a whole row, added over the threads of the block.
template <class S>
struct RowStats {
  S top = 0;                     ///< the largest logit
  double whole = 0;              ///< the k of the sums
  gdpo::detail::PowerSums sums;  ///< sum 2^t, sum t 2^t
};
/// The largest logit of a row, and the largest k of a thread.
template <class S>
struct Tops {
  double whole = LogitSums<float>::lowest_k;
  S top = gdpo::detail::minus_infinity<S>();
  GDPO_INLINE void add(const Tops& o) {
    whole = o.whole > whole ? o.whole : whole, top = larger(top, o.top);
  }
};

/// The row with its largest logit as reference. The sums are divided by the power of that logit as
/// the device computed it, so that one entry with all the probability has sum 1 and logp 0 exactly.
template <class S>
GDPO_DEVICE LogitRow logit_row_of(const RowStats<S>& stats, double temperature) {
  LogitRow row;
  if (math::is_zero(stats.sums.sum)) return row;
  const auto scale = static_cast<double>(power_scale<S>(temperature));
  const auto t = static_cast<S>(fused(static_cast<double>(stats.top), scale, -stats.whole));
  const double most = static_cast<double>(power_of_2(t));
  row.max = math::mul(static_cast<double>(stats.top), 1 / temperature);
  row.sum = stats.sums.sum / most;
  row.weighted =
      math::mul(0.693147180559945309,
                (stats.sums.weighted - math::mul(static_cast<double>(t), stats.sums.sum)) / most);
  return row;
}

/// A row of n entries as the threads of a block read it.
template <class T>
struct RowVectors {
  using Vector = LogitVector<T>;
  const T* x;      ///< the logits
  int n, vectors;  ///< entries and vectors; the last vector may have fewer entries
  int whole;       ///< vectors that are full and aligned; 0 where x is not aligned
  int block_step;  ///< vectors that all threads together read per step
  Vector* cache;   ///< the first cache_size vectors, in shared memory
  int cache_size;  ///< vectors in the cache

  GDPO_INLINE RowVectors(const T* row, index_t entries, int threads)
      : x(row),
        n(static_cast<int>(entries)),
        vectors((n + Vector::size - 1) / Vector::size),
        whole(is_aligned_to(row, 16) ? n / Vector::size : 0),
        block_step(threads * vectors_per_step),
        cache(nullptr),
        cache_size(0) {}
  /// Gives the row `bytes` of shared memory to keep its first vectors in: all of them, or whole
  /// multiples of block_step.
  GDPO_INLINE void keep(void* memory, std::size_t bytes) {
    const int room = static_cast<int>(bytes / sizeof(Vector));
    cache = static_cast<Vector*>(memory),
    cache_size = room >= vectors ? vectors : room / block_step * block_step;
  }
  /// Reads vectors v, v + threads, and so on, vectors_per_step of them; beyond the row they are
  /// -inf. All: none is beyond the row, and x is aligned. Last: the vectors are not read again.
  template <bool All, bool Last = false>
  GDPO_INLINE void load(int v, int threads, Vector* out) const {
    GDPO_UNROLL
    for (int u = 0; u < vectors_per_step; ++u, v += threads) {
      if constexpr (All) {
        out[u] = {load_words<16, Last>(x + index_t{v} * Vector::size)};
      } else {
        out[u] = v < vectors ? Vector::load(x, v * Vector::size, n, v < whole) : Vector::nothing();
      }
    }
  }
};

/// The sums of a row, known to all threads. Vectors that fit row.cache are left there for
/// gradient_of_row.
template <class T, class Block>
GDPO_DEVICE RowStats<typename LogitVector<T>::S> sums_of_row(Block& block, const RowVectors<T>& row,
                                                             double temperature) {
  using Vector = LogitVector<T>;
  using S = typename Vector::S;
  const S scale = power_scale<S>(temperature);
  const int threads = block.threads();
  PerThread<LogitSums<T>> thread_sums;
  block.each([&](int thread) {
    LogitSums<T> sums(scale);
    Vector v[vectors_per_step];
    int begin = 0;
    for (; begin + row.block_step <= row.whole; begin += row.block_step) {
      if (begin < row.cache_size) {
        row.template load<true, true>(begin + thread, threads, v);
        GDPO_UNROLL
        for (int u = 0; u < vectors_per_step; ++u) row.cache[begin + u * threads + thread] = v[u];
      } else {
        row.template load<true>(begin + thread, threads, v);
      }
      sums.template add<true>(v, vectors_per_step);
    }
    for (; begin < row.vectors; begin += row.block_step) {
      row.template load<false>(begin + thread, threads, v);
      const int rest = row.vectors - begin;
      GDPO_UNROLL
      for (int u = 0; u < vectors_per_step; ++u) {
        const int index = begin + u * threads + thread;
        if (index < row.cache_size) row.cache[index] = v[u];
      }
      sums.template add<false>(
          v, rest >= row.block_step ? vectors_per_step : (rest + threads - 1) / threads);
    }
    thread_sums[thread] = sums;
  });
  const Tops<S> tops = block.template reduce<Tops<S>>([&](int thread) {
    Tops<S> thread_tops;
    thread_tops.whole = thread_sums[thread].whole(), thread_tops.top = thread_sums[thread].top;
    return thread_tops;
  });
  const auto total = block.template reduce<gdpo::detail::PowerSums>([&](int thread) {
    const double shift = thread_sums[thread].whole() - tops.whole;
    return gdpo::detail::rescaled(thread_sums[thread].sums, shift, whole_power_of_2(shift));
  });
  return {tops.top, tops.whole, total};
}

/// What the threads of a block need for the gradient of a row: out[j] = 2^t (slope t + constant),
/// except at the target. It is the GradientLine of logits/shared/gradient_row.hpp in powers of 2.
template <class S>
struct PowerLine {
  PowerScale<S> powers{S(0)};
  S slope = 0, constant = 0;
  double target_gradient = 0;
  int target = -1;
  bool zero = true, unknown = false;  ///< the whole row is 0; the whole row is NaN

  PowerLine() = default;
  /// gradient_line() takes u of log p_j = d + u; here d = t(x_j) ln 2. It holds that
  ///   log p_j = x_j / temperature - logsumexp
  ///   (x_j - center) / temperature = (t(x_j) - t(center)) ln 2
  /// with `center`, the logsumexp as a logit. So u = center / temperature - logsumexp - t(center)
  /// ln 2.
  GDPO_DEVICE PowerLine(const gdpo::detail::RowGradient& row, double x_target, double temperature)
      : powers(power_scale<S>(temperature)),
        target(static_cast<int>(row.target)),
        zero(math::is_zero(row.g) && math::is_zero(row.g_entropy)),
        unknown(math::not_finite(row.logsumexp)) {
    if (zero || unknown) return;
    constexpr double ln2 = 0.693147180559945309;
    powers.set(static_cast<S>(math::mul(row.logsumexp, temperature)));
    const auto center = static_cast<double>(powers.reference);
    // t(center), rounded once in double.
    const double t = fused(center, static_cast<double>(powers.scale), -powers.whole);
    const double u = math::mul(center, 1 / temperature) - row.logsumexp - math::mul(t, ln2);
    const auto line = gdpo::detail::gradient_line(row, x_target, temperature, u);
    slope = static_cast<S>(math::mul(line.slope, ln2)), constant = static_cast<S>(line.constant);
    target_gradient = line.target_gradient;
  }
};

/// The gradient of this thread's vectors among those from `begin` on, vectors_per_step of them,
/// read from x or from row.cache. Near: as PowerScale::power. Sloped: the slope is not 0.
template <bool Near, bool Sloped, bool All, class T, class U, class S>
GDPO_INLINE void gradient_of_vectors(const RowVectors<T>& row, const PowerLine<S>& line, U* out,
                                     bool out_aligned, int begin, int thread, int threads) {
  using Vector = LogitVector<T>;
  Vector v[vectors_per_step];
  if (begin < row.cache_size) {
    GDPO_UNROLL
    for (int u = 0; u < vectors_per_step; ++u) {
      const int index = begin + u * threads + thread;
      v[u] = All || index < row.cache_size ? row.cache[index] : Vector::nothing();
    }
  } else {
    row.template load<All, true>(begin + thread, threads, v);
  }
  GDPO_UNROLL
  for (int u = 0; u < vectors_per_step; ++u) {
    const int index = begin + u * threads + thread;
    if (!All && index >= row.vectors) break;
    S y[Vector::size];
    v[u].numbers(y);
    GDPO_UNROLL
    for (int j = 0; j < Vector::size; ++j) {
      S t = line.powers.template power<Near>(y[j]);
      if constexpr (Sloped) {
        t = at_least(t, lowest_power<S>);
        y[j] = math::mul(power_of_2(t), math::fma(line.slope, t, line.constant));
      } else {
        y[j] = math::mul(power_of_2(t), line.constant);
      }
    }
    const int first = index * Vector::size;
    store_numbers<Vector::size>(out, first, row.n,
                                All || (out_aligned && first + Vector::size <= row.n), y);
  }
}

/// Writes `number` to every entry of a row.
template <class T, class U, class Block, class S>
GDPO_DEVICE void fill_of_row(Block& block, const RowVectors<T>& row, S number, U* out) {
  using Vector = LogitVector<T>;
  const bool aligned = is_aligned_to(out, store_step<Vector::size, U>);
  block.each([&](int thread) {
    S y[Vector::size];
    GDPO_UNROLL
    for (S& element : y) element = number;
    for (int v = thread; v < row.vectors; v += block.threads()) {
      const int first = v * Vector::size;
      store_numbers<Vector::size>(out, first, row.n, aligned && first + Vector::size <= row.n, y);
    }
  });
}

/// The gradient of a row; out may be the row itself. It goes from the end of the row to its
/// beginning, because what was read last is still in the caches.
template <class T, class U, class Block, class S>
GDPO_DEVICE void gradient_of_row(Block& block, const RowVectors<T>& row,
                                 const PowerLine<S>& shared_line, U* out) {
  using Vector = LogitVector<T>;
  const PowerLine<S> line = shared_line;  // a copy in registers
  if (line.zero || line.unknown)
    return fill_of_row(block, row, line.zero ? S(0) : math::nan<S>(), out);
  const int threads = block.threads();
  const bool out_aligned = is_aligned_to(out, store_step<Vector::size, U>);
  block.each([&](int thread) {
    const auto go = [&](auto precise, auto sloped) {
      constexpr bool is_precise = decltype(precise)::value, is_sloped = decltype(sloped)::value;
      const int times = (row.vectors + row.block_step - 1) / row.block_step,
                all = out_aligned ? row.whole / row.block_step : 0;
      int i = times - 1;
      for (; i >= all; --i) {
        gradient_of_vectors<is_precise, is_sloped, false>(row, line, out, out_aligned,
                                                          i * row.block_step, thread, threads);
      }
      for (; i >= 0; --i) {
        gradient_of_vectors<is_precise, is_sloped, true>(row, line, out, out_aligned,
                                                         i * row.block_step, thread, threads);
      }
    };
    const bool sloped = !math::is_zero(line.slope);
    if (!line.powers.precise) {
      go(std::false_type{}, std::true_type{});
    } else if (sloped) {
      go(std::true_type{}, std::true_type{});
    } else {
      go(std::true_type{}, std::false_type{});
    }
    // The target, by the thread that has just written its entry, so that the order is certain.
    if (line.target >= 0 && line.target / Vector::size % threads == thread) {
      store_number(out + line.target, static_cast<S>(line.target_gradient));
    }
  });
}

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
