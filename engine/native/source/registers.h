// Numbers in one register of the processor, where `Floats` would take several: compilers keep sums that are wider than a
// register in memory.
#pragma once

#include "vector.h"

namespace muster {
namespace {

#if defined(__AVX512F__)
constexpr int kRegister = 16;
#elif defined(__AVX__)
constexpr int kRegister = 8;
#else
constexpr int kRegister = 4;
#endif

typedef float Register __attribute__((vector_size(kRegister * 4)));
typedef uint32_t RegisterWords __attribute__((vector_size(kRegister * 4)));
typedef float Four __attribute__((vector_size(16)));
typedef float LooseRegister __attribute__((vector_size(kRegister * 4), aligned(4), may_alias));
typedef uint32_t LooseRegisterWords __attribute__((vector_size(kRegister * 4), aligned(2), may_alias));
typedef float LooseFour __attribute__((vector_size(16), aligned(4), may_alias));

MUSTER_INLINE Register load_register(const float* p) { return *reinterpret_cast<const LooseRegister*>(p); }
MUSTER_INLINE void store_register(float* p, Register v) { *reinterpret_cast<LooseRegister*>(p) = v; }
MUSTER_INLINE Four load_four(const float* p) { return *reinterpret_cast<const LooseFour*>(p); }
MUSTER_INLINE void store_four(float* p, Four v) { *reinterpret_cast<LooseFour*>(p) = v; }

// Two numbers of each side's quarter of a register, alternating: the first two, or the last two.
MUSTER_INLINE Register mix_low(Register a, Register b) {
#if defined(__AVX512F__)
  return (Register)_mm512_unpacklo_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Register)_mm256_unpacklo_ps((__m256)a, (__m256)b);
#elif defined(__clang__)
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#else
  return __builtin_shuffle(a, b, (RegisterWords){0, 4, 1, 5});
#endif
}

MUSTER_INLINE Register mix_high(Register a, Register b) {
#if defined(__AVX512F__)
  return (Register)_mm512_unpackhi_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Register)_mm256_unpackhi_ps((__m256)a, (__m256)b);
#elif defined(__clang__)
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
  return __builtin_shuffle(a, b, (RegisterWords){2, 6, 3, 7});
#endif
}

// The sum of each of four registers: a tree that adds them up together, in an order that is the same for all.
MUSTER_INLINE Four sum_four(Register a, Register b, Register c, Register d) {
  const Register first = mix_low(a, b) + mix_high(a, b), second = mix_low(c, d) + mix_high(c, d);
#if defined(__AVX512F__)
  const __m512 all = _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)first, (__m512d)second),
                                   (__m512)_mm512_unpackhi_pd((__m512d)first, (__m512d)second));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
#elif defined(__AVX__)
  const __m256 half = _mm256_add_ps((__m256)_mm256_unpacklo_pd((__m256d)first, (__m256d)second),
                                    (__m256)_mm256_unpackhi_pd((__m256d)first, (__m256d)second));
#elif defined(__clang__)
  return __builtin_shufflevector(first, second, 0, 1, 4, 5) + __builtin_shufflevector(first, second, 2, 3, 6, 7);
#else
  return __builtin_shuffle(first, second, (RegisterWords){0, 1, 4, 5}) +
         __builtin_shuffle(first, second, (RegisterWords){2, 3, 6, 7});
#endif
#ifdef __AVX__
  return (Four)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#endif
}

// Four rows of four numbers, as columns. The rows lie `in_stride` numbers apart, the columns `out_stride`.
MUSTER_INLINE void transpose_four(const float* in, size_t in_stride, float* out, size_t out_stride) {
  typedef uint32_t Order __attribute__((vector_size(16)));
  const Four a = load_four(in), b = load_four(in + in_stride);
  const Four c = load_four(in + 2 * in_stride), d = load_four(in + 3 * in_stride);
#ifdef __clang__
#define MUSTER_MIX(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define MUSTER_MIX(x, y, ...) __builtin_shuffle(x, y, (Order){__VA_ARGS__})
#endif
  const Four ab = MUSTER_MIX(a, b, 0, 4, 1, 5), cd = MUSTER_MIX(c, d, 0, 4, 1, 5);
  const Four ef = MUSTER_MIX(a, b, 2, 6, 3, 7), gh = MUSTER_MIX(c, d, 2, 6, 3, 7);
  store_four(out, MUSTER_MIX(ab, cd, 0, 1, 4, 5));
  store_four(out + out_stride, MUSTER_MIX(ab, cd, 2, 3, 6, 7));
  store_four(out + 2 * out_stride, MUSTER_MIX(ef, gh, 0, 1, 4, 5));
  store_four(out + 3 * out_stride, MUSTER_MIX(ef, gh, 2, 3, 6, 7));
#undef MUSTER_MIX
}

// bfloat16 numbers of two registers, those at even places and those at odd ones: half the work of keeping their order.
struct Pairs {
  Register even, odd;
};

constexpr int kPairs = 2 * kRegister;  // numbers in both

// `count` numbers, a multiple of sixteen or more than there is place for; zeros behind them.
MUSTER_INLINE Pairs load_pairs(const uint16_t* p, int count) {
#ifdef __AVX512F__
  const __mmask16 there = count >= kPairs ? 0xffff : 0xff;
  const RegisterWords words = (RegisterWords)_mm512_maskz_loadu_epi32(there, p);
#else
  const RegisterWords words = *reinterpret_cast<const LooseRegisterWords*>(p);
#endif
  return {reinterpret_cast<Register>(words << 16), reinterpret_cast<Register>(words & 0xffff0000u)};
}

MUSTER_INLINE Pairs part_pairs(const float* in, int count) {
  float numbers[kPairs] = {}, even[kRegister], odd[kRegister];
  std::memcpy(numbers, in, (count < kPairs ? count : kPairs) * sizeof(float));
  for (int i = 0; i < kRegister; ++i) {
    even[i] = numbers[2 * i];
    odd[i] = numbers[2 * i + 1];
  }
  return {load_register(even), load_register(odd)};
}

MUSTER_INLINE void join_pairs(Pairs pairs, int count, float* out) {
  float numbers[kPairs], even[kRegister], odd[kRegister];
  store_register(even, pairs.even);
  store_register(odd, pairs.odd);
  for (int i = 0; i < kRegister; ++i) {
    numbers[2 * i] = even[i];
    numbers[2 * i + 1] = odd[i];
  }
  std::memcpy(out, numbers, (count < kPairs ? count : kPairs) * sizeof(float));
}

}  // namespace
}  // namespace muster
