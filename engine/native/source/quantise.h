// Blocks of 32 weights from floating-point numbers: scales that lose least, found by trying some.
//
// Eight blocks at a time, one a lane. Compiled without fused multiply-adds: every processor, and the reference in
// engine/model/quantise.py, must find the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster {
namespace {

#define MUSTER_INLINE static inline __attribute__((always_inline, unused))

constexpr int kSize = 32;           // weights of a block
constexpr int kStride = 16;         // blocks that lie side by side, eight of which are taken at a time
constexpr int kTries = 16;          // of the search for scale and minimum
constexpr float kLargestHalf = 65504.0f;

// As wide as the registers: comparisons of wider vectors are taken apart by the compiler.
typedef float Eight __attribute__((vector_size(32)));
typedef int32_t EightInts __attribute__((vector_size(32)));
typedef uint32_t EightWords __attribute__((vector_size(32)));
typedef float LooseEight __attribute__((vector_size(32), aligned(4), may_alias));

MUSTER_INLINE Eight get(const float* p) { return *reinterpret_cast<const LooseEight*>(p); }
MUSTER_INLINE void set(float* p, Eight v) { *reinterpret_cast<LooseEight*>(p) = v; }
MUSTER_INLINE Eight all(float v) { return v - Eight{}; }
MUSTER_INLINE Eight lesser(Eight a, Eight b) { return a < b ? a : b; }
MUSTER_INLINE Eight greater(Eight a, Eight b) { return a > b ? a : b; }
MUSTER_INLINE Eight bounded(Eight v, float low, float high) { return lesser(greater(v, all(low)), all(high)); }

// To the nearest whole number, ties to even; for magnitudes below 2^22.
MUSTER_INLINE Eight rounded(Eight v) {
  const float magic = 12582912.0f;
  return v + magic - magic;
}

// To the nearest float16, as a float.
MUSTER_INLINE Eight as_half(Eight v) {
  v = bounded(v, -kLargestHalf, kLargestHalf);
  const EightWords bits = reinterpret_cast<EightWords>(v);
  const Eight normal = reinterpret_cast<Eight>((bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000u);
  const Eight magnitude = reinterpret_cast<Eight>(bits & 0x7fffffffu);
  const Eight tiny = v + 0.75f - 0.75f;  // below 2^-14 the steps are 2^-24, those of a float near 0.75
  return magnitude < 6.103515625e-05f ? tiny : normal;
}

MUSTER_INLINE Eight inverse(Eight v) { return v != 0.0f ? 1.0f / v : Eight{}; }

// Codes from 0 on: the last one, and over how many a block's range is spread in the first try and from try to try.
struct FourBits {
  static constexpr float kLast = 15, kFirstReach = 13.6f, kReachStep = 0.2f;
};
struct FiveBits {
  static constexpr float kLast = 31, kFirstReach = 28.6f, kReachStep = 0.4f;
};

// Codes that come nearest to `v`.
template <class Range>
MUSTER_INLINE Eight nearest(Eight v, Eight minimum, Eight back) {
  return bounded(rounded(bounded((v - minimum) * back, -200, 200)), 0, Range::kLast);
}

template <class Code>
MUSTER_INLINE void put_codes(Code* codes, Eight v) {
  const EightInts numbers = __builtin_convertvector(v, EightInts);
  for (int lane = 0; lane < 8; ++lane) codes[lane] = static_cast<Code>(numbers[lane]);
}

MUSTER_INLINE void eight_by_eight_bits(const float* x, float* scales, int8_t* codes) {
  Eight limit{};
  for (int k = 0; k < kSize; ++k) limit = greater(limit, greater(get(x + k * kStride), -get(x + k * kStride)));
  const Eight scale = as_half(limit / 127.0f), back = inverse(scale);
  set(scales, scale);
  for (int k = 0; k < kSize; ++k)
    put_codes(codes + k * kStride, bounded(rounded(bounded(get(x + k * kStride) * back, -200, 200)), -127, 127));
}

// One try: codes for a spread of the range, the line that fits the weights best for them, and what is lost.
template <class Range>
MUSTER_INLINE void try_line(const float* x, Eight low, Eight total, Eight stretch, Eight* scale, Eight* minimum,
                            Eight* best) {
  Eight sum{}, squares{}, products{};
  for (int k = 0; k < kSize; ++k) {
    const Eight v = get(x + k * kStride);
    const Eight code = bounded(rounded((v - low) * stretch), 0, Range::kLast);
    sum += code;
    squares += code * code;
    products += code * v;
  }
  const Eight factor = inverse(32.0f * squares - sum * sum);
  const Eight tried = as_half((32.0f * products - total * sum) * factor);
  const Eight fitted = (squares * total - sum * products) * factor;
  const Eight start = as_half(factor != 0.0f ? fitted : total / 32.0f);
  const Eight back = inverse(tried);
  Eight error{};
  for (int k = 0; k < kSize; ++k) {
    const Eight v = get(x + k * kStride);
    const Eight off = tried * nearest<Range>(v, start, back) + start - v;
    error += off * off;
  }
  const auto better = error < *best;
  *best = better ? error : *best;
  *scale = better ? tried : *scale;
  *minimum = better ? start : *minimum;
}

template <class Range>
MUSTER_INLINE void eight_by_line(const float* x, float* scales, float* minima, uint8_t* codes) {
  Eight low = get(x), high = low, total = low;
  for (int k = 1; k < kSize; ++k) {
    const Eight v = get(x + k * kStride);
    low = lesser(low, v);
    high = greater(high, v);
    total += v;
  }
  const Eight unit = inverse(high - low);
  Eight best = all(__builtin_inff()), scale{}, minimum{};
  for (int t = 0; t < kTries; ++t)
    try_line<Range>(x, low, total, unit * (Range::kReachStep * static_cast<float>(t) + Range::kFirstReach), &scale,
                    &minimum, &best);
  set(scales, scale);
  set(minima, minimum);
  const Eight back = inverse(scale);
  for (int k = 0; k < kSize; ++k) put_codes(codes + k * kStride, nearest<Range>(get(x + k * kStride), minimum, back));
}

// Sixteen blocks, x: [32][16]. Weight = scale * code, code -127 to 127.
void quantise_eight_bits(const float* x, float* scales, int8_t* codes) {
  for (int lane = 0; lane < kStride; lane += 8) eight_by_eight_bits(x + lane, scales + lane, codes + lane);
}

// Weight = scale * code + minimum, code 0 to 15 or to 31.
template <class Range>
void quantise_line(const float* x, float* scales, float* minima, uint8_t* codes) {
  for (int lane = 0; lane < kStride; lane += 8)
    eight_by_line<Range>(x + lane, scales + lane, minima + lane, codes + lane);
}

#undef MUSTER_INLINE

}  // namespace
}  // namespace muster
