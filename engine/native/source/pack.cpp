#include "pack.h"

#include <cstring>

#include "numbers.h"
#include "pack_wide.h"

namespace muster {
namespace {

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
  put_k_scales(super, which, place);
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
    case Stored::kQ5_0:
    case Stored::kQ5_1:
    case Stored::kQ5_K: return Codes::kFiveBits;
    case Stored::kQ3_K:
    case Stored::kQ6_K: return Codes::kSixBits;
    case Stored::kQ8_0: return Codes::kEightBits;
    default: return Codes::kBfloat16;
  }
}

size_t row_bytes(Stored type, size_t cols) {
  switch (type) {
    case Stored::kQ4_0: return cols / 32 * 18;
    case Stored::kQ4_1: return cols / 32 * 20;
    case Stored::kQ8_0: return cols / 32 * 34;
    case Stored::kQ5_0: return cols / 32 * 22;
    case Stored::kQ5_1: return cols / 32 * 24;
    case Stored::kQ3_K: return cols / 256 * 110;
    case Stored::kQ4_K: return cols / 256 * 144;
    case Stored::kQ5_K: return cols / 256 * 176;
    case Stored::kQ6_K: return cols / 256 * 210;
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
  if (matrix.codes == Codes::kFiveBits || matrix.codes == Codes::kSixBits) {
    pack_wide_row(matrix, type, row, panel, lane);
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
    case Stored::kQ5_0:
    case Stored::kQ5_1:
    case Stored::kQ8_0: return cols % 32 == 0;
    case Stored::kQ3_K:
    case Stored::kQ4_K:
    case Stored::kQ5_K:
    case Stored::kQ6_K: return cols % 256 == 0;
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
    case Codes::kFiveBits:
    case Codes::kSixBits: lay_out_wide(matrix); break;
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
