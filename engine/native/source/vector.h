// Sixteen numbers at a time, for code that is compiled once per instruction set.
//
// Files that include this must keep everything in an anonymous namespace and use no library templates: an inline
// function compiled for AVX-512 must never be the copy that the linker keeps for a processor without it.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace muster {
namespace {

// Where products of pairs of sixteen-bit codes cost little more than those of eight bits.
#if defined(__AVX2__) && !defined(__AVX512F__)
#define MUSTER_HAS_WORDS
#endif

#define MUSTER_INLINE static inline __attribute__((always_inline, unused))

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t LooseHalves __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t LooseWords __attribute__((vector_size(64), aligned(4), may_alias));

MUSTER_INLINE Floats load(const float* p) { return *reinterpret_cast<const LooseFloats*>(p); }
MUSTER_INLINE void store(float* p, Floats v) { *reinterpret_cast<LooseFloats*>(p) = v; }
MUSTER_INLINE Floats spread(float v) { return v - Floats{}; }
MUSTER_INLINE Floats as_floats(Words v) { return reinterpret_cast<Floats>(v); }
MUSTER_INLINE Words as_words(Floats v) { return reinterpret_cast<Words>(v); }
MUSTER_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Sixteen bfloat16 numbers.
MUSTER_INLINE Floats load_halves(const uint16_t* p) {
  const Halves halves = *reinterpret_cast<const LooseHalves*>(p);
  return as_floats(__builtin_convertvector(halves, Words) << 16);
}

// Rounds to nearest, ties to even; the low sixteen bits are the result.
MUSTER_INLINE Words to_bfloat16(Floats v) {
  const Words bits = as_words(v);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

MUSTER_INLINE void store_halves(uint16_t* p, Floats v) {
  *reinterpret_cast<LooseHalves*>(p) = __builtin_convertvector(to_bfloat16(v), Halves);
}

MUSTER_INLINE uint16_t to_bfloat16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

MUSTER_INLINE float from_bfloat16(uint16_t v) {
  const uint32_t bits = static_cast<uint32_t>(v) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

// Sixteen float16 numbers.
MUSTER_INLINE Floats load_float16(const uint8_t* p) {
#ifdef __AVX512F__
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  union {
    Floats all;
    __m256 half[2];
  } result;
  result.half[0] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  result.half[1] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + 1));
  return result.all;
#else
  // The exponent's bias differs by 112; the product also rights numbers below the smallest normal one.
  const Words bits = __builtin_convertvector(*reinterpret_cast<const LooseHalves*>(p), Words);
  const Words magnitude = as_words(as_floats((bits & 0x7fff) << 13) * 0x1p112f);
  return as_floats(magnitude | (bits & 0x8000) << 16);
#endif
}

// Both in the same order everywhere: halves, quarters, pairs.
MUSTER_INLINE float sum(Floats v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
  float lanes[16];
  store(lanes, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

MUSTER_INLINE float largest(Floats v) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
  float lanes[16];
  store(lanes, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
#endif
}

MUSTER_INLINE int32_t sum(Ints v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(v));
#else
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += v[i];
  return total;
#endif
}

// 2 to the power of x, for x of 0 or less and minus infinity; relative error 2e-7.
MUSTER_INLINE Floats exp2_negative(Floats x) {
#ifdef __AVX512F__
  // Below the normal numbers each lane would cost a trip through microcode: hidden tokens, all minus infinity, hundreds.
  const __m512 lowest = _mm512_set1_ps(-126.0f);
  const __mmask16 normal = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), lowest, _CMP_NLT_UQ);
  const __m512 v = _mm512_max_ps(reinterpret_cast<__m512>(x), lowest);
  const __m512 whole = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats r = reinterpret_cast<Floats>(_mm512_sub_ps(v, whole));
#else
  const Floats v = larger(x, spread(-126.0f));
  const Floats shifted = v + 12582912.0f;
  const Floats whole = shifted - 12582912.0f;
  const Floats r = v - whole;
#endif
  Floats y = spread(1.540353e-4f);
  y = y * r + 1.3333558e-3f;
  y = y * r + 9.6181291e-3f;
  y = y * r + 5.5504109e-2f;
  y = y * r + 2.4022651e-1f;
  y = y * r + 6.9314718e-1f;
  y = y * r + 1.0f;
#ifdef __AVX512F__
  return reinterpret_cast<Floats>(_mm512_maskz_scalef_ps(normal, reinterpret_cast<__m512>(y), whole));
#else
  const Ints exponent = __builtin_convertvector(whole, Ints);
  const Floats result = reinterpret_cast<Floats>(reinterpret_cast<Ints>(y) + (exponent << 23));
  return x < -125.0f ? Floats{} : result;
#endif
}

// Where a token's keys or values lie.
MUSTER_INLINE size_t token_offset(const Cache& cache, const Context& context, int token) {
  const size_t block = static_cast<size_t>(context.blocks[token / cache.block_size]);
  return (block * cache.block_size + token % cache.block_size) * cache.num_kv_heads * cache.head_dim;
}

}  // namespace
}  // namespace muster
