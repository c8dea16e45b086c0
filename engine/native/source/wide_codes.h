// Codes of five and six bits, and their way back to a byte each.
//
// A panel of five bits holds, in this order,
//   float16 scales [K/32][16], padded to 64 bytes
//   float16 minima [K/32][16], padded to 64 bytes
//   low four bits  [K/32][4][16][4 bytes], as in panels of four bits
//   fifth bits     [K/32][16][4 bytes]: bit q of byte i of lane n belongs to input 4q+i
// Weight = scale * code + minimum.
//
// A panel of six bits holds
//   float16 scales [K/256][16], padded to 64 bytes
//   factors        [K/16][16], signed bytes
//   low four bits  as above
//   high two bits  [K/16][16][4 bytes]: bits 2q and 2q+1 of byte i of lane n belong to input 4q+i
// Weight = scale * factor * (code - 32).
#pragma once

#include "vector.h"

namespace muster {
namespace {

constexpr int kGroup = 16;        // inputs that share a factor
constexpr int kSixBitsZero = 32;  // the code that stands for zero

typedef uint8_t Bytes64 __attribute__((vector_size(64)));
typedef uint8_t LooseBytes64 __attribute__((vector_size(64), aligned(1), may_alias));
typedef int8_t Signed16 __attribute__((vector_size(16)));

MUSTER_INLINE Bytes64 load_bytes(const uint8_t* p) { return *reinterpret_cast<const LooseBytes64*>(p); }

// Codes of inputs [4 * kInput, +4) of a block, a byte each. low: the block's 256 bytes; high: its 64.
template <int kInput>
MUSTER_INLINE Bytes64 five_bits(const uint8_t* low, Bytes64 high) {
  const Bytes64 packed = load_bytes(low + kInput / 2 * 64);
  const Bytes64 four = kInput % 2 == 0 ? packed & 15 : packed >> 4;
  constexpr int kShift = kInput - 4;
  if constexpr (kShift > 0)
    return four | (high >> kShift & 16);
  else
    return four | (high << -kShift & 16);
}

// The same for six bits; high: the 64 bytes of the block's half that holds these inputs.
template <int kInput>
MUSTER_INLINE Bytes64 six_bits(const uint8_t* low, Bytes64 high) {
  const Bytes64 packed = load_bytes(low + kInput / 2 * 64);
  const Bytes64 four = kInput % 2 == 0 ? packed & 15 : packed >> 4;
  constexpr int kShift = 2 * (kInput % 4) - 4;
  if constexpr (kShift > 0)
    return four | (high >> kShift & 48);
  else
    return four | (high << -kShift & 48);
}

// Sixteen signed bytes as numbers.
MUSTER_INLINE Floats load_factors(const uint8_t* p) {
  Signed16 bytes;
  std::memcpy(&bytes, p, 16);
  return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
}

// Weights of one output, as an embedding needs them.
void read_wide_row(const Matrix& matrix, int row, float* out) {
  const uint8_t* panel = matrix.data + (row / kPanel) * matrix.panel_bytes;
  const bool five = matrix.codes == Codes::kFiveBits;
  const int lane = row % kPanel;
  for (int b = 0; b < matrix.num_blocks; ++b) {
    const uint8_t* low = panel + matrix.codes_offset + b * size_t{256};
    const uint8_t* high = panel + matrix.high_offset + static_cast<size_t>(b) * (five ? 64 : 128);
    const float scale = load_float16(panel + (five ? b : b / 8) * 32)[lane];
    const float minimum = five ? load_float16(panel + matrix.minima_offset + b * 32)[lane] : 0.0f;
    for (int k = 0; k < kBlock; ++k) {
      const uint8_t byte = low[k / 8 * 64 + lane * 4 + k % 4];
      const int four = k % 8 < 4 ? byte & 15 : byte >> 4;
      if (five) {
        const int code = four | (high[lane * 4 + k % 4] >> k / 4 & 1) << 4;
        out[b * kBlock + k] = scale * static_cast<float>(code) + minimum;
      } else {
        const int group = k / kGroup, q = k % kGroup / 4;
        const int code = four | (high[group * 64 + lane * 4 + k % 4] >> 2 * q & 3) << 4;
        const auto factor = static_cast<int8_t>(panel[matrix.factors_offset + (2 * b + group) * kPanel + lane]);
        out[b * kBlock + k] = scale * static_cast<float>(factor) * static_cast<float>(code - kSixBitsZero);
      }
    }
  }
}

}  // namespace
}  // namespace muster
