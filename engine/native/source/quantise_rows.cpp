#include "quantise_rows.h"

#include <cmath>

#include "numbers.h"

namespace muster {
namespace {

constexpr int kLaneCount = 16;

size_t number_bytes(Stored type) { return type == Stored::kF32 ? 4 : 2; }
size_t block_bytes(Stored type) { return type == Stored::kQ8_0 ? 34 : type == Stored::kQ5_1 ? 24 : 20; }

float read_number(Stored type, const uint8_t* at) {
  if (type == Stored::kBf16) return bfloat16_to_float(get_half(at));
  if (type == Stored::kF16) return half_to_float(get_half(at));
  float value;
  std::memcpy(&value, at, 4);
  return value;
}

// Block `b` of up to sixteen rows, a row a lane; false where a weight is not finite.
bool gather(Stored from, const uint8_t* data, int cols, int first, int count, int b, float* x) {
  const size_t size = number_bytes(from);
  bool finite = true;
  for (int lane = 0; lane < count; ++lane) {
    const uint8_t* at = data + (static_cast<size_t>(first + lane) * cols + b * kBlock) * size;
    for (int k = 0; k < kBlock; ++k) {
      x[k * kLaneCount + lane] = read_number(from, at + k * size);
      finite = finite && std::isfinite(x[k * kLaneCount + lane]);
    }
  }
  return finite;
}

void write_q8_0(const float* scales, const int8_t* codes, int lane, uint8_t* block) {
  put_half(block, float_to_half(scales[lane]));
  for (int k = 0; k < kBlock; ++k) block[2 + k] = static_cast<uint8_t>(codes[k * kLaneCount + lane]);
}

void write_q4_1(const float* scales, const float* minima, const uint8_t* codes, int lane, uint8_t* block) {
  put_half(block, float_to_half(scales[lane]));
  put_half(block + 2, float_to_half(minima[lane]));
  for (int k = 0; k < 16; ++k) {
    const uint8_t low = codes[k * kLaneCount + lane], high = codes[(k + 16) * kLaneCount + lane];
    block[4 + k] = static_cast<uint8_t>(low | high << 4);
  }
}

void write_q5_1(const float* scales, const float* minima, const uint8_t* codes, int lane, uint8_t* block) {
  put_half(block, float_to_half(scales[lane]));
  put_half(block + 2, float_to_half(minima[lane]));
  uint32_t high = 0;
  for (int k = 0; k < kBlock; ++k) high |= static_cast<uint32_t>(codes[k * kLaneCount + lane] >> 4) << k;
  std::memcpy(block + 4, &high, 4);
  for (int k = 0; k < 16; ++k) {
    const int first = codes[k * kLaneCount + lane] & 15, second = codes[(k + 16) * kLaneCount + lane] & 15;
    block[8 + k] = static_cast<uint8_t>(first | second << 4);
  }
}

}  // namespace

bool can_quantise(Stored from, Stored to, int cols) {
  const bool floating = from == Stored::kF32 || from == Stored::kF16 || from == Stored::kBf16;
  return floating && (to == Stored::kQ8_0 || to == Stored::kQ5_1 || to == Stored::kQ4_1) && cols % kBlock == 0;
}

bool quantise_rows(const Quantisers& quantisers, Stored from, const uint8_t* data, int cols, Stored to, uint8_t* out,
                   int first, int last) {
  alignas(64) float x[kBlock * kLaneCount] = {}, scales[kLaneCount], minima[kLaneCount];
  alignas(64) uint8_t codes[kBlock * kLaneCount];
  const int num_blocks = cols / kBlock;
  const size_t size = block_bytes(to);
  for (int row = first; row < last; row += kLaneCount) {
    const int count = last - row < kLaneCount ? last - row : kLaneCount;
    for (int b = 0; b < num_blocks; ++b) {
      if (!gather(from, data, cols, row, count, b, x)) return false;
      uint8_t* block = out + (static_cast<size_t>(row) * num_blocks + b) * size;
      auto* signed_codes = reinterpret_cast<int8_t*>(codes);
      if (to == Stored::kQ8_0)
        quantisers.eight_bits(x, scales, signed_codes);
      else if (to == Stored::kQ5_1)
        quantisers.five_bits(x, scales, minima, codes);
      else
        quantisers.four_bits(x, scales, minima, codes);
      for (int lane = 0; lane < count; ++lane, block += num_blocks * size) {
        if (to == Stored::kQ8_0)
          write_q8_0(scales, signed_codes, lane, block);
        else if (to == Stored::kQ5_1)
          write_q5_1(scales, minima, codes, lane, block);
        else
          write_q4_1(scales, minima, codes, lane, block);
      }
    }
  }
  return true;
}

}  // namespace muster
