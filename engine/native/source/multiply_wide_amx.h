// Products of many rows with codes of five and six bits on the tile unit.
//
// Five bits share the tiles of four bits once they are unpacked. Six bits have a factor for every sixteen inputs, so
// their tiles are half as deep and two sums are scaled where others have one.
#pragma once

#include "multiply_amx.h"
#include "multiply_wide.h"

namespace muster {
namespace {

// Scales one block's two sums of each row and adds them to the running totals.
template <int R>
MUSTER_INLINE void add_six_block(const int32_t* first, const int32_t* second, const uint8_t* base,
                                 const Matrix& matrix, const float* scales, size_t b, Floats (&total)[R]) {
  const uint8_t* factors = base + matrix.factors_offset + b * 2 * kPanel;
  const Floats one = load_factors(factors), other = load_factors(factors + kPanel);
  const Floats scale = load_float16(base + b / 8 * 32);
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) {
    const Ints a = reinterpret_cast<Ints>(_mm512_load_si512(first + m * 16));
    const Ints c = reinterpret_cast<Ints>(_mm512_load_si512(second + m * 16));
    const Floats whole = __builtin_convertvector(a, Floats) * one + __builtin_convertvector(c, Floats) * other;
    total[m] += whole * (scale * scales[b * 16 + m]);
  }
}

// R rows from `row` on; the last ones may be padding, which is computed and dropped.
template <int R>
void tile_six_rows(const Matrix& matrix, const Activations& x, int row, int panel, const uint8_t* codes, float* out,
                   size_t stride, bool accumulate) {
  const size_t num_blocks = matrix.num_blocks;
  const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
  const size_t index = block_index(x, row, 0);
  const int8_t* inputs = x.codes + index * kBlock;
  // The sums of one block are scaled while the tile unit works on the next.
  alignas(64) int32_t sums[2][2][16 * 16];
  Floats total[R];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) total[m] = Floats{};
  for (size_t b = 0; b < num_blocks + 1; ++b) {
    if (b < num_blocks) {
      _tile_zero(0);
      _tile_loadd(2, inputs + b * 16 * kBlock, kBlock);
      _tile_loadd(4, codes + b * 512, 64);
      _tile_dpbssd(0, 2, 4);
      _tile_zero(1);
      _tile_loadd(3, inputs + b * 16 * kBlock + kGroup, kBlock);
      _tile_loadd(5, codes + b * 512 + 256, 64);
      _tile_dpbssd(1, 3, 5);
      _tile_stored(0, sums[b % 2][0], 64);
      _tile_stored(1, sums[b % 2][1], 64);
    }
    if (b == 0) continue;
    const auto& done = sums[(b - 1) % 2];
    add_six_block<R>(done[0], done[1], base, matrix, x.scales + index, b - 1, total);
  }
  const int valid = x.rows - row < R ? x.rows - row : R;
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
    if (m < valid) put(matrix, panel, out + (row + m) * stride, accumulate, total[m]);
}

template <int R>
void tile_six_panels(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                     int end, Scratch* scratch) {
  TileShape shape;
  for (int tile = 0; tile < 2; ++tile) shape.set(tile, R, 64);
  for (int tile = 2; tile < 4; ++tile) shape.set(tile, R, kGroup);
  for (int tile = 4; tile < 6; ++tile) shape.set(tile, 4, 64);
  _tile_loadconfig(&shape);
  auto* codes = static_cast<uint8_t*>(reserve(scratch, matrix.num_blocks * size_t{512}));
  for (int panel = begin; panel < end; ++panel) {
    unpack_wide(matrix, panel, codes);
    for (int row = 0; row < x.rows; row += R) tile_six_rows<R>(matrix, x, row, panel, codes, out, stride, accumulate);
  }
  _tile_release();
}

void tile_six_bits(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                   int end, Scratch* scratch) {
  if (x.rows <= 4)
    tile_six_panels<4>(matrix, x, out, stride, accumulate, begin, end, scratch);
  else if (x.rows <= 8)
    tile_six_panels<8>(matrix, x, out, stride, accumulate, begin, end, scratch);
  else if (x.rows <= 12)
    tile_six_panels<12>(matrix, x, out, stride, accumulate, begin, end, scratch);
  else
    tile_six_panels<16>(matrix, x, out, stride, accumulate, begin, end, scratch);
}

}  // namespace
}  // namespace muster
