// Checkpoint blocks of three, five and six bits into panels of five and six: see wide_codes.h.
#pragma once

#include "kernels.h"
#include "numbers.h"
#include "pack.h"

namespace muster {

// Where a block of 32 weights of one output goes.
struct Place {
  uint8_t* scale;
  uint8_t* minimum;
  uint8_t* codes;  // of the block, all lanes: the low four bits
  int lane;
};

// codes: 32 numbers, a byte each; the low four bits of each are stored.
static inline void put_four_bits(const Place& place, const uint8_t* codes) {
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 4; ++i)
      place.codes[j * 64 + place.lane * 4 + i] =
          static_cast<uint8_t>((codes[8 * j + i] & 15) | (codes[8 * j + 4 + i] & 15) << 4);
}

static inline void split_nibbles(const uint8_t* packed, int count, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < count; ++i) {
    low[i] = packed[i] & 15;
    high[i] = packed[i] >> 4;
  }
}

// Scale and minimum of group `which` of the eight of a super-block: products, rounded to float16 here.
static inline void put_k_scales(const uint8_t* super, int which, const Place& place) {
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
}

// Offsets and size of a panel; `codes` and `num_blocks` are set.
void lay_out_wide(Matrix* matrix);

// One row of a checkpoint into a lane of its panel.
void pack_wide_row(const Matrix& matrix, Stored type, const uint8_t* row, uint8_t* panel, int lane);

}  // namespace muster
