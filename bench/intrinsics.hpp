#pragma once
// The GRPO loss of naive.hpp, written by hand with AVX-512 intrinsics to the accuracy of the
// library. It shows how fast the machine could be. One thread, 16 float lanes; float sums of 1024
// tokens are added to doubles.
#include <type_traits>

#include "naive.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define GDPO_BENCH_AVX512 1
#include <immintrin.h>

namespace intrinsics {

/// e^x, e^x - 1, and e^x - 1 - x.
struct ExpParts {
  __m512 exp, expm1, k3;
};

/// With x = n ln 2 + r, one polynomial gives (e^r - 1 - r) / r^2, and the three results follow from
/// it. scalef makes the exponential infinite or 0 by itself where x is large.
[[gnu::always_inline]] inline ExpParts exp_parts(__m512 x) {
  const auto all = [](float value) { return _mm512_set1_ps(value); };
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, all(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r =
      _mm512_fmadd_ps(n, all(2.12194440e-4f), _mm512_fmadd_ps(n, all(-0.693359375f), x));
  __m512 p = _mm512_fmadd_ps(r, all(1.3905488e-3f), all(8.3629331e-3f));
  for (const float c : {4.1666765e-2f, 1.6666579e-1f, 0.5f}) p = _mm512_fmadd_ps(r, p, all(c));
  const __m512 k3_r = _mm512_mul_ps(_mm512_mul_ps(r, r), p), expm1_r = _mm512_add_ps(r, k3_r);
  const __m512 exp = _mm512_scalef_ps(_mm512_add_ps(all(1), expm1_r), n);
  // Where n is 0 the polynomial gives e^x - 1 and e^x - 1 - x; a difference would cancel there.
  const __mmask16 far = _mm512_cmp_ps_mask(n, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  const __m512 expm1 = _mm512_mask_sub_ps(expm1_r, far, exp, all(1));
  return {exp, expm1, _mm512_mask_sub_ps(k3_r, far, expm1, x)};
}

/// Bit j is set where token j counts. `inside`: the lanes that are in the row, fewer than 16 at its
/// end.
[[gnu::always_inline]] inline __mmask16 valid(const unsigned char* mask, __mmask16 inside) {
  if (!mask) return inside;
  const __m128i bytes = _mm_maskz_loadu_epi8(inside, mask);
  return _mm_test_epi8_mask(bytes, bytes);
}

/// How many tokens of a row count.
inline std::ptrdiff_t count(const unsigned char* mask, std::ptrdiff_t width) {
  if (!mask) return width;
  std::ptrdiff_t tokens = 0;
  for (std::ptrdiff_t t = 0; t < width; t += 64) {
    const __mmask64 inside = width - t >= 64 ? ~__mmask64(0) : (__mmask64(1) << (width - t)) - 1;
    const __m512i bytes = _mm512_maskz_loadu_epi8(inside, mask + t);
    tokens += __builtin_popcountll(_mm512_test_epi8_mask(bytes, bytes));
  }
  return tokens;
}

/// What naive::grpo computes.
inline naive::GrpoSums grpo(const naive::GrpoBatch& batch, float* gradient) {
  const auto all = [](double value) { return _mm512_set1_ps(float(value)); };
  naive::GrpoSums sums;
  std::ptrdiff_t valid_tokens = 0, clipped_tokens = 0;
  const __m512 low = all(1 - batch.low), high = all(1 + batch.high), zero = all(0);
  const bool against_reference = batch.beta != 0;
  for (std::ptrdiff_t i = 0; i < batch.rows; ++i) {
    const std::ptrdiff_t at = i * batch.width;
    const float *logp = batch.logp + at, *old_logp = batch.old_logp + at,
                *ref_logp = batch.ref_logp + at;
    const unsigned char* mask = batch.mask ? batch.mask + at : nullptr;
    const std::ptrdiff_t tokens = count(mask, batch.width);
    const double weight = tokens > 0 ? 1.0 / (double(tokens) * double(batch.rows)) : 0;
    const __m512 a = all(double(batch.advantages[i])), w = all(weight),
                 minus_beta_w = all(-batch.beta * weight);
    double surrogate = 0, kl = 0;
    for (std::ptrdiff_t t = 0; t < batch.width;) {
      const std::ptrdiff_t flush = std::min(t + 1024, batch.width);
      __m512 surrogates = zero, kls = zero, approx_kls = zero, ratios = zero;
      const auto step = [&](auto whole) __attribute__((always_inline)) {
        constexpr bool all_lanes = decltype(whole)::value;  // false: the last tokens of the row
        const __mmask16 inside = all_lanes ? __mmask16(0xffff) : __mmask16((1u << (flush - t)) - 1);
        const __mmask16 on = valid(mask ? mask + t : nullptr, inside);
        const auto load = [&](const float* from) __attribute__((always_inline)) {
          return all_lanes ? _mm512_loadu_ps(from + t) : _mm512_maskz_loadu_ps(inside, from + t);
        };
        const __m512 x = load(logp);
        const ExpParts policy = exp_parts(_mm512_sub_ps(x, load(old_logp)));
        const __m512 unclipped = _mm512_mul_ps(a, policy.exp);
        const __m512 bound = _mm512_mul_ps(a, _mm512_max_ps(low, _mm512_min_ps(high, policy.exp)));
        const __mmask16 clipped = _mm512_mask_cmp_ps_mask(on, unclipped, bound, _CMP_GT_OQ);
        __m512 slope = zero;
        if (against_reference) {
          const ExpParts reference = exp_parts(_mm512_sub_ps(load(ref_logp), x));
          slope = _mm512_mul_ps(minus_beta_w, reference.expm1);
          kls = _mm512_mask_add_ps(kls, on, kls, reference.k3);
        }
        slope = _mm512_maskz_mov_ps(
            on, _mm512_mask3_fnmadd_ps(unclipped, w, slope, __mmask16(~clipped)));
        if (all_lanes) {
          _mm512_storeu_ps(gradient + at + t, slope);
        } else {
          _mm512_mask_storeu_ps(gradient + at + t, inside, slope);
        }
        surrogates =
            _mm512_mask_add_ps(surrogates, on, surrogates, _mm512_min_ps(unclipped, bound));
        approx_kls = _mm512_mask_add_ps(approx_kls, on, approx_kls, policy.k3);
        ratios = _mm512_mask_add_ps(ratios, on, ratios, policy.exp);
        clipped_tokens += __builtin_popcount(clipped);
      };
      for (; t + 16 <= flush; t += 16) step(std::true_type{});
      if (t < flush) step(std::false_type{});
      t = flush;
      surrogate += double(_mm512_reduce_add_ps(surrogates));
      kl += double(_mm512_reduce_add_ps(kls));
      sums.approx_kl += double(_mm512_reduce_add_ps(approx_kls));
      sums.ratio += double(_mm512_reduce_add_ps(ratios));
    }
    sums.loss += weight * (batch.beta * kl - surrogate);
    sums.kl += kl;
    valid_tokens += tokens;
  }
  sums.clip_fraction = double(clipped_tokens);
  for (double* mean : {&sums.kl, &sums.clip_fraction, &sums.approx_kl, &sums.ratio})
    *mean /= double(valid_tokens);
  return sums;
}

}  // namespace intrinsics
#endif
