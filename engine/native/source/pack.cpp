#include "pack.h"

#include <cmath>
#include <cstring>

namespace muster {
namespace {

// Where a block of 32 weights of one output goes.
struct Place {
  uint8_t* scale;
  uint8_t* minimum;
  uint8_t* codes;  // of the block, all lanes
  int lane;
};

void put_half(uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, 2); }

uint16_t get_half(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return bits;
}

float half_to_float(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  float value;
  if (exponent == 0)
    value = std::ldexp(static_cast<float>(fraction), -24);
  else if (exponent == 31)
    value = fraction != 0 ? NAN : INFINITY;
  else
    value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return half & 0x8000 ? -value : value;
}

// To nearest, ties to even.
uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (!(magnitude < 65520.0f)) return static_cast<uint16_t>(sign | (std::isnan(value) ? 0x7e00 : 0x7c00));
  if (magnitude < 6.103515625e-05f) return static_cast<uint16_t>(sign | std::lrint(std::ldexp(magnitude, 24)));
  bits &= 0x7fffffff;
  bits += 0xfff + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | ((bits >> 13) - (112 << 10)));
}

uint16_t float_to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// codes: 32 numbers of four bits, a byte each.
void put_four_bits(const Place& place, const uint8_t* codes) {
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 4; ++i)
      place.codes[j * 64 + place.lane * 4 + i] = static_cast<uint8_t>(codes[8 * j + i] | codes[8 * j + 4 + i] << 4);
}

void split_nibbles(const uint8_t* packed, int count, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < count; ++i) {
    low[i] = packed[i] & 15;
    high[i] = packed[i] >> 4;
  }
}

void pack_q4_0(const uint8_t* block, const Place& place) {
  uint8_t codes[kBlock];
  split_nibbles(block + 2, 16, codes, codes + 16);
  put_half(place.scale, get_half(block));
  put_half(place.minimum, float_to_half(-8.0f * half_to_float(get_half(block))));
  put_four_bits(place, codes);
}

void pack_q4_1(const uint8_t* block, const Place& place) {
  uint8_t codes[kBlock];
  split_nibbles(block + 4, 16, codes, codes + 16);
  put_half(place.scale, get_half(block));
  put_half(place.minimum, get_half(block + 2));
  put_four_bits(place, codes);
}

void pack_q8_0(const uint8_t* block, const Place& place) {
  put_half(place.scale, get_half(block));
  for (int k = 0; k < kBlock; ++k) place.codes[k / 4 * 64 + place.lane * 4 + k % 4] = block[2 + k];
}

// Group `which` of the eight of a super-block. Its scale and minimum are products, rounded to float16 here.
void pack_q4_k(const uint8_t* super, int which, const Place& place) {
  const uint8_t* packed = super + 4;
  uint8_t scale, minimum;
  if (which < 4) {
    scale = packed[which] & 63;
    minimum = packed[which + 4] & 63;
  } else {
    scale = static_cast<uint8_t>((packed[which + 4] & 15) | (packed[which - 4] >> 6) << 4);
    minimum = static_cast<uint8_t>((packed[which + 4] >> 4) | (packed[which] >> 6) << 4);
  }
  put_half(place.scale, float_to_half(half_to_float(get_half(super)) * scale));
  put_half(place.minimum, float_to_half(-half_to_float(get_half(super + 2)) * minimum));
  uint8_t low[kBlock], high[kBlock];
  split_nibbles(super + 16 + which / 2 * 32, 32, low, high);
  put_four_bits(place, which % 2 == 0 ? low : high);
}

uint16_t stored_bfloat16(Stored type, const uint8_t* row, int k) {
  if (type == Stored::kBf16) return get_half(row + 2 * k);
  if (type == Stored::kF16) return float_to_bfloat16(half_to_float(get_half(row + 2 * k)));
  float value;
  std::memcpy(&value, row + 4 * k, 4);
  return float_to_bfloat16(value);
}

Codes codes_of(Stored type) {
  switch (type) {
    case Stored::kQ4_0:
    case Stored::kQ4_1:
    case Stored::kQ4_K: return Codes::kFourBits;
    case Stored::kQ8_0: return Codes::kEightBits;
    default: return Codes::kBfloat16;
  }
}

size_t row_bytes(Stored type, size_t cols) {
  switch (type) {
    case Stored::kQ4_0: return cols / 32 * 18;
    case Stored::kQ4_1: return cols / 32 * 20;
    case Stored::kQ8_0: return cols / 32 * 34;
    case Stored::kQ4_K: return cols / 256 * 144;
    case Stored::kF32: return cols * 4;
    default: return cols * 2;
  }
}

void pack_row(const Matrix& matrix, Stored type, const uint8_t* row, uint8_t* panel, int lane) {
  uint8_t* codes = panel + matrix.codes_offset;
  if (matrix.codes == Codes::kBfloat16) {
    auto* pairs = reinterpret_cast<uint16_t*>(codes);
    for (int k = 0; k < matrix.cols; ++k) pairs[(k / 2 * kPanel + lane) * 2 + k % 2] = stored_bfloat16(type, row, k);
    return;
  }
  for (int b = 0; b < matrix.num_blocks; ++b) {
    uint8_t* scale = panel + b * 32 + lane * 2;
    const Place place{scale, scale + matrix.minima_offset,
                      codes + static_cast<size_t>(b) * (matrix.codes == Codes::kFourBits ? 256 : 512), lane};
    switch (type) {
      case Stored::kQ4_0: pack_q4_0(row + b * 18, place); break;
      case Stored::kQ4_1: pack_q4_1(row + b * 20, place); break;
      case Stored::kQ8_0: pack_q8_0(row + b * 34, place); break;
      default: pack_q4_k(row + b / 8 * 144, b % 8, place); break;
    }
  }
}

}  // namespace

bool can_pack(Stored type, int cols) {
  switch (type) {
    case Stored::kF32:
    case Stored::kF16:
    case Stored::kBf16: return true;
    case Stored::kQ4_0:
    case Stored::kQ4_1:
    case Stored::kQ8_0: return cols % 32 == 0;
    case Stored::kQ4_K: return cols % 256 == 0;
  }
  return false;
}

bool allocate(Matrix* matrix, Stored type, int rows, int cols, Arena* arena) {
  *matrix = {};
  matrix->codes = codes_of(type);
  matrix->rows = rows;
  matrix->cols = cols;
  matrix->num_panels = (rows + kPanel - 1) / kPanel;
  matrix->num_blocks = (cols + kBlock - 1) / kBlock;
  const size_t blocks = matrix->num_blocks, scales = (blocks * 32 + 63) / 64 * 64;
  switch (matrix->codes) {
    case Codes::kFourBits:
      matrix->minima_offset = scales;
      matrix->codes_offset = 2 * scales;
      matrix->panel_bytes = 2 * scales + blocks * 256;
      break;
    case Codes::kEightBits:
      matrix->codes_offset = scales;
      matrix->panel_bytes = scales + blocks * 512;
      break;
    case Codes::kBfloat16: matrix->panel_bytes = blocks * 1024; break;
  }
  matrix->data = arena->take(matrix->num_panels * matrix->panel_bytes);
  return matrix->data != nullptr;
}

void pack(const Matrix& matrix, Stored type, const uint8_t* data, const int32_t* order, int first, int last) {
  const size_t bytes = row_bytes(type, matrix.cols);
  for (int row = first; row < last; ++row) {
    uint8_t* panel = const_cast<uint8_t*>(matrix.data) + row / kPanel * matrix.panel_bytes;
    const size_t source = order != nullptr ? order[row] : row;
    pack_row(matrix, type, data + source * bytes, panel, row % kPanel);
  }
}

}  // namespace muster
