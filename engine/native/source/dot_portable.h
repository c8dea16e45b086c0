// Sums of products of bytes for processors without wider instructions: 64-bit x86 at its oldest, and 64-bit ARM.
#pragma once

#include "vector.h"

#ifdef __ARM_FEATURE_DOTPROD
#include <arm_neon.h>
#endif

namespace muster {
namespace {

typedef uint8_t DotBytes __attribute__((vector_size(64)));
typedef uint8_t LooseDotBytes __attribute__((vector_size(64), aligned(1), may_alias));

// Adds to each of sixteen lanes the products of its four signed bytes with the four inputs.
MUSTER_INLINE Ints add_products(Ints total, DotBytes codes, const int8_t* x) {
#if defined(__SSE2__)
  union {
    DotBytes all;
    __m128i quarter[4];
  } bytes{codes};
  union {
    Ints all;
    __m128i quarter[4];
  } sums{total};
  const __m128i even = _mm_set1_epi32(static_cast<uint16_t>(x[0]) | static_cast<uint32_t>(x[2]) << 16);
  const __m128i odd = _mm_set1_epi32(static_cast<uint16_t>(x[1]) | static_cast<uint32_t>(x[3]) << 16);
  for (int i = 0; i < 4; ++i) {
    const __m128i first = _mm_srai_epi16(_mm_slli_epi16(bytes.quarter[i], 8), 8);
    const __m128i second = _mm_srai_epi16(bytes.quarter[i], 8);
    sums.quarter[i] = _mm_add_epi32(sums.quarter[i], _mm_add_epi32(_mm_madd_epi16(first, even),
                                                                  _mm_madd_epi16(second, odd)));
  }
  return sums.all;
#elif defined(__ARM_FEATURE_DOTPROD)
  union {
    DotBytes all;
    int8x16_t quarter[4];
  } bytes{codes};
  union {
    Ints all;
    int32x4_t quarter[4];
  } sums{total};
  int32_t four;
  std::memcpy(&four, x, 4);
  const int8x16_t inputs = vreinterpretq_s8_s32(vdupq_n_s32(four));
  for (int i = 0; i < 4; ++i) sums.quarter[i] = vdotq_s32(sums.quarter[i], bytes.quarter[i], inputs);
  return sums.all;
#else
  const Ints words = reinterpret_cast<Ints>(codes);
  total += (words << 24 >> 24) * static_cast<int32_t>(x[0]);
  total += (words << 16 >> 24) * static_cast<int32_t>(x[1]);
  total += (words << 8 >> 24) * static_cast<int32_t>(x[2]);
  return total + (words >> 24) * static_cast<int32_t>(x[3]);
#endif
}

template <int M>
MUSTER_INLINE void dot_four_bits(const uint8_t* codes, const int8_t* const (&x)[M], Ints (&sums)[M]) {
  for (int m = 0; m < M; ++m) sums[m] = Ints{};
  for (int j = 0; j < 4; ++j) {
    const DotBytes packed = *reinterpret_cast<const LooseDotBytes*>(codes + j * 64);
    for (int m = 0; m < M; ++m) {
      sums[m] = add_products(sums[m], packed & 15, x[m] + j * 8);
      sums[m] = add_products(sums[m], packed >> 4, x[m] + j * 8 + 4);
    }
  }
}

template <int M>
MUSTER_INLINE void dot_eight_bits(const uint8_t* codes, const int8_t* const (&x)[M], const int32_t (&)[M],
                                  Ints (&sums)[M]) {
  for (int m = 0; m < M; ++m) sums[m] = Ints{};
  for (int j = 0; j < 8; ++j) {
    const DotBytes packed = *reinterpret_cast<const LooseDotBytes*>(codes + j * 64);
    for (int m = 0; m < M; ++m) sums[m] = add_products(sums[m], packed, x[m] + j * 4);
  }
}

}  // namespace
}  // namespace muster
