#include "pack_wide.h"

namespace muster {
namespace {

size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// codes: 32 numbers of five bits.
void put_five_bits(const Place& place, const uint8_t* codes, uint8_t* high) {
  put_four_bits(place, codes);
  for (int i = 0; i < 4; ++i) {
    uint8_t bits = 0;
    for (int q = 0; q < 8; ++q) bits = static_cast<uint8_t>(bits | (codes[4 * q + i] >> 4 & 1) << q);
    high[place.lane * 4 + i] = bits;
  }
}

// codes: 32 numbers of six bits, 32 more than what they stand for.
void put_six_bits(const Place& place, const uint8_t* codes, uint8_t* high) {
  put_four_bits(place, codes);
  for (int group = 0; group < 2; ++group)
    for (int i = 0; i < 4; ++i) {
      uint8_t bits = 0;
      for (int q = 0; q < 4; ++q) bits = static_cast<uint8_t>(bits | (codes[16 * group + 4 * q + i] >> 4 & 3) << 2 * q);
      high[group * 64 + place.lane * 4 + i] = bits;
    }
}

// Nibbles and the word with the fifth bits, as in Q5_0 and Q5_1.
void join_five(const uint8_t* high, const uint8_t* packed, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  split_nibbles(packed, 16, codes, codes + 16);
  for (int k = 0; k < kBlock; ++k) codes[k] = static_cast<uint8_t>(codes[k] | (bits >> k & 1) << 4);
}

void read_q5_0(const uint8_t* block, const Place& place, uint8_t* codes) {
  join_five(block + 2, block + 6, codes);
  put_half(place.scale, get_half(block));
  put_half(place.minimum, float_to_half(-16.0f * half_to_float(get_half(block))));
}

void read_q5_1(const uint8_t* block, const Place& place, uint8_t* codes) {
  join_five(block + 4, block + 8, codes);
  put_half(place.scale, get_half(block));
  put_half(place.minimum, get_half(block + 2));
}

void read_q5_k(const uint8_t* super, int which, const Place& place, uint8_t* codes) {
  uint8_t low[kBlock], high[kBlock];
  split_nibbles(super + 48 + which / 2 * 32, 32, low, high);
  const uint8_t* nibbles = which % 2 == 0 ? low : high;
  for (int k = 0; k < kBlock; ++k) codes[k] = static_cast<uint8_t>(nibbles[k] | (super[16 + k] >> which & 1) << 4);
  put_k_scales(super, which, place);
}

// Eighth `which` of a super-block, and its two groups' factors.
void read_q6_k(const uint8_t* super, int which, uint8_t* codes, int8_t* factors) {
  const int half = which / 4, part = which % 4;
  const uint8_t* low = super + half * 64 + part % 2 * 32;
  const uint8_t* high = super + 128 + half * 32;
  for (int k = 0; k < kBlock; ++k) {
    const int nibble = part < 2 ? low[k] & 15 : low[k] >> 4;
    codes[k] = static_cast<uint8_t>(nibble | (high[k] >> 2 * part & 3) << 4);
  }
  std::memcpy(factors, super + 192 + 2 * which, 2);
}

// Three bits stand for -4 to 3, six-bit factors for -32 to 31.
void read_q3_k(const uint8_t* super, int which, uint8_t* codes, int8_t* factors) {
  const uint8_t* low = super + 32 + which / 4 * 32;
  const uint8_t* scales = super + 96;
  for (int k = 0; k < kBlock; ++k) {
    const int code = (low[k] >> 2 * (which % 4) & 3) | (super[k] >> which & 1) << 2;
    codes[k] = static_cast<uint8_t>(code - 4 + 32);
  }
  for (int group = 0; group < 2; ++group) {
    const int i = 2 * which + group;
    const int nibble = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
    factors[group] = static_cast<int8_t>((nibble | (scales[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32);
  }
}

}  // namespace

void lay_out_wide(Matrix* matrix) {
  const size_t blocks = matrix->num_blocks;
  if (matrix->codes == Codes::kFiveBits) {
    matrix->minima_offset = whole_lines(blocks * 32);
    matrix->codes_offset = 2 * matrix->minima_offset;
    matrix->high_offset = matrix->codes_offset + blocks * 256;
    matrix->panel_bytes = matrix->high_offset + blocks * 64;
  } else {
    matrix->factors_offset = whole_lines(blocks / 8 * 32);
    matrix->codes_offset = matrix->factors_offset + blocks * 32;
    matrix->high_offset = matrix->codes_offset + blocks * 256;
    matrix->panel_bytes = matrix->high_offset + blocks * 128;
  }
}

void pack_wide_row(const Matrix& matrix, Stored type, const uint8_t* row, uint8_t* panel, int lane) {
  const bool five = matrix.codes == Codes::kFiveBits;
  for (int b = 0; b < matrix.num_blocks; ++b) {
    uint8_t codes[kBlock];
    int8_t factors[2];
    uint8_t* scale = panel + (five ? b : b / 8) * 32 + lane * 2;
    const Place place{scale, scale + matrix.minima_offset, panel + matrix.codes_offset + b * size_t{256}, lane};
    uint8_t* high = panel + matrix.high_offset + static_cast<size_t>(b) * (five ? 64 : 128);
    const uint8_t* super = row;
    switch (type) {
      case Stored::kQ5_0: read_q5_0(row + b * size_t{22}, place, codes); break;
      case Stored::kQ5_1: read_q5_1(row + b * size_t{24}, place, codes); break;
      case Stored::kQ5_K: read_q5_k(row + b / 8 * size_t{176}, b % 8, place, codes); break;
      case Stored::kQ6_K:
        super = row + b / 8 * size_t{210};
        read_q6_k(super, b % 8, codes, factors);
        put_half(scale, get_half(super + 208));
        break;
      default:
        super = row + b / 8 * size_t{110};
        read_q3_k(super, b % 8, codes, factors);
        put_half(scale, get_half(super + 108));
        break;
    }
    if (five) {
      put_five_bits(place, codes, high);
      continue;
    }
    put_six_bits(place, codes, high);
    for (int group = 0; group < 2; ++group)
      panel[matrix.factors_offset + (2 * b + group) * kPanel + lane] = static_cast<uint8_t>(factors[group]);
  }
}

}  // namespace muster
