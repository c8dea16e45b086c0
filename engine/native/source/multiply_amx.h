// Products of many rows on the tile unit: eight-bit for decode batches, bfloat16 for prefill.
#pragma once

#include "halves.h"
#include "multiply_wide.h"
#include "rows.h"

namespace muster {
namespace {

// See multiply_wide_amx.h.
void tile_six_bits(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                   int end, Scratch* scratch);

// From this many rows on, dequantising a panel once costs less than scaling every block's sums.
constexpr int kHalvesFrom = 32;
constexpr int kTilesFrom = 3;

struct alignas(64) TileShape {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  void set(int tile, int num_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};

// A panel's four-bit codes as signed bytes, in the order of the eight-bit format.
MUSTER_INLINE void unpack_panel(const uint8_t* codes, int num_blocks, uint8_t* out) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int j = 0; j < num_blocks * 4; ++j) {
    const __m512i packed = _mm512_loadu_si512(codes + j * 64);
    _mm512_store_si512(out + j * 128, _mm512_and_si512(packed, mask));
    _mm512_store_si512(out + j * 128 + 64, _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask));
  }
}

// Adds one block's scaled integer sums to the running totals of R rows.
template <int R, bool kFour>
MUSTER_INLINE void add_block(const int32_t* sums, const uint8_t* base, size_t minima_offset, const float* scales,
                             const float* input_sums, size_t b, Floats (&total)[R]) {
  const Floats scale = load_float16(base + b * 32);
  Floats minimum{};
  if constexpr (kFour) minimum = load_float16(base + minima_offset + b * 32);
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) {
    const Ints row = reinterpret_cast<Ints>(_mm512_load_si512(sums + m * 16));
    total[m] += __builtin_convertvector(row, Floats) * (scale * scales[b * 16 + m]);
    if constexpr (kFour) total[m] += minimum * input_sums[b * 16 + m];
  }
}

// R rows (the tile's height) from `row` on; the last ones may be padding, which is computed and dropped.
template <int R, bool kFour>
void tile_codes(const Matrix& matrix, const Activations& x, int row, int panel, const uint8_t* codes, float* out,
                size_t stride, bool accumulate) {
  const size_t num_blocks = matrix.num_blocks;
  const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
  const size_t index = block_index(x, row, 0);
  const int8_t* inputs = x.codes + index * kBlock;
  const float* scales = x.scales + index;
  const float* input_sums = x.sums + index;
  // The sums of one pair of blocks are scaled while the tile unit works on the next pair.
  alignas(64) int32_t sums[2][2][16 * 16];
  Floats total[R];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) total[m] = Floats{};
  const size_t num_pairs = (num_blocks + 1) / 2;
  for (size_t pair = 0; pair < num_pairs + 1; ++pair) {
    const size_t b = pair * 2;
    if (b < num_blocks) {
      _tile_zero(0);
      _tile_loadd(2, inputs + b * 16 * kBlock, kBlock);
      _tile_loadd(4, codes + b * 512, 64);
      _tile_dpbssd(0, 2, 4);
      if (b + 1 < num_blocks) {
        _tile_zero(1);
        _tile_loadd(3, inputs + (b + 1) * 16 * kBlock, kBlock);
        _tile_loadd(5, codes + (b + 1) * 512, 64);
        _tile_dpbssd(1, 3, 5);
        _tile_stored(1, sums[pair % 2][1], 64);
      }
      _tile_stored(0, sums[pair % 2][0], 64);
    }
    if (pair == 0) continue;
    const auto& done = sums[(pair - 1) % 2];
    add_block<R, kFour>(done[0], base, matrix.minima_offset, scales, input_sums, b - 2, total);
    if (b - 1 < num_blocks) add_block<R, kFour>(done[1], base, matrix.minima_offset, scales, input_sums, b - 1, total);
  }
  const int valid = x.rows - row < R ? x.rows - row : R;
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
    if (m < valid) put(matrix, panel, out + (row + m) * stride, accumulate, total[m]);
}

template <int R, bool kFour>
void tile_panels(const Matrix& matrix, const Activations& x, int first, int last, float* out, size_t stride,
                 bool accumulate, int begin, int end, Scratch* scratch) {
  TileShape shape;
  for (int tile = 0; tile < 4; ++tile) shape.set(tile, R, tile < 2 ? 64 : kBlock);
  for (int tile = 4; tile < 6; ++tile) shape.set(tile, 8, 64);
  _tile_loadconfig(&shape);
  auto* unpacked = kFour ? static_cast<uint8_t*>(reserve(scratch, matrix.num_blocks * 512)) : nullptr;
  for (int panel = begin; panel < end; ++panel) {
    const uint8_t* codes = matrix.data + panel * matrix.panel_bytes + matrix.codes_offset;
    if constexpr (kFour) {
      if (matrix.codes == Codes::kFiveBits)
        unpack_wide(matrix, panel, unpacked);
      else
        unpack_panel(codes, matrix.num_blocks, unpacked);
      codes = unpacked;
    }
    for (int row = first; row < last; row += R)
      tile_codes<R, kFour>(matrix, x, row, panel, codes, out, stride, accumulate);
  }
  _tile_release();
}

template <bool kFour>
void tile_rows(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
               int end, Scratch* scratch) {
  const int whole = x.rows / 16 * 16, rest = x.rows - whole;
  if (whole > 0 && rest == 0) {
    tile_panels<16, kFour>(matrix, x, 0, whole, out, stride, accumulate, begin, end, scratch);
  } else if (whole > 0) {
    // One pass over the weights; the last tile computes padding.
    tile_panels<16, kFour>(matrix, x, 0, x.rows, out, stride, accumulate, begin, end, scratch);
  } else if (rest <= 4) {
    tile_panels<4, kFour>(matrix, x, 0, rest, out, stride, accumulate, begin, end, scratch);
  } else if (rest <= 8) {
    tile_panels<8, kFour>(matrix, x, 0, rest, out, stride, accumulate, begin, end, scratch);
  } else if (rest <= 12) {
    tile_panels<12, kFour>(matrix, x, 0, rest, out, stride, accumulate, begin, end, scratch);
  } else {
    tile_panels<16, kFour>(matrix, x, 0, rest, out, stride, accumulate, begin, end, scratch);
  }
}

// Where a tile of 16 rows and 16 outputs goes.
struct Target {
  float* out;
  int num_rows;
  bool direct;  // the tile unit itself can read and write it
};

MUSTER_INLINE Target target_of(const Matrix& matrix, int panel, int row, int num_rows, float* out, size_t stride) {
  const int left = num_rows - row < 16 ? num_rows - row : 16;
  const bool whole = left == 16 && matrix.rows - panel * kPanel >= kPanel;
  return {out + row * stride, left, whole && matrix.bias == nullptr};
}

// Sums that do not fill a tile, or get a bias, take the way round.
MUSTER_INLINE void put_tile(const Matrix& matrix, int panel, const float* sums, const Target& target, size_t stride,
                            bool accumulate) {
  for (int m = 0; m < target.num_rows; ++m)
    put(matrix, panel, target.out + m * stride, accumulate, load(sums + m * 16));
}

#define MUSTER_BEGIN_TILE(tile, panel, target)                                    \
  if ((target).direct && accumulate)                                              \
    _tile_loadd(tile, (target).out + (panel) * kPanel, static_cast<long>(stride * 4)); \
  else                                                                            \
    _tile_zero(tile);
#define MUSTER_END_TILE(tile, panel, target)                                       \
  if ((target).direct) {                                                           \
    _tile_stored(tile, (target).out + (panel) * kPanel, static_cast<long>(stride * 4)); \
  } else {                                                                         \
    _tile_stored(tile, sums, 64);                                                  \
    put_tile(matrix, panel, sums, target, stride, accumulate);                     \
  }

// Sixteen or thirty-two rows by one or two panels: up to four accumulating tiles, four loads. The rows are loaded again
// for every panel, so they belong in the nearest cache; panels pass by it and leave the rows there.
// `between(b)` is done before block b, while the tile unit is busy.
template <bool kTwo, bool kBoth, class Between>
MUSTER_INLINE void add_products(const uint16_t* upper, const uint16_t* lower, const uint8_t* first,
                                const uint8_t* second, int num_blocks, const Between& between) {
  for (int b = 0; b < num_blocks; ++b) {
    between(b);
    _tile_loadd(4, upper + b * 16 * kBlock, 64);
    _tile_stream_loadd(6, first + b * 1024, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (kBoth) {
      _tile_loadd(5, lower + b * 16 * kBlock, 64);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (kTwo) {
      _tile_stream_loadd(7, second + b * 1024, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (kBoth) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// Blocks [from, from + num_blocks) of rows [row, row + 32) by one or two panels that lie at `first` and `second`.
template <bool kTwo>
MUSTER_INLINE void tile_panel_pair(const Matrix& matrix, const Activations& x, const uint8_t* first,
                                   const uint8_t* second, int panel, int row, int from, int num_blocks, float* out,
                                   size_t stride, bool accumulate, Ahead& ahead) {
  alignas(64) float sums[16 * 16];
  const uint16_t* upper = x.halves + block_index(x, row, from) * kBlock;
  const uint16_t* lower = x.halves + block_index(x, row + 16, from) * kBlock;
  first += from * 1024;
  second += from * 1024;
  const bool both = x.rows - row > 16;
  const Target t0 = target_of(matrix, panel, row, x.rows, out, stride);
  const Target t1 = target_of(matrix, panel + 1, row, x.rows, out, stride);
  const Target t2 = target_of(matrix, panel, row + 16, x.rows, out, stride);
  const Target t3 = target_of(matrix, panel + 1, row + 16, x.rows, out, stride);
  MUSTER_BEGIN_TILE(0, panel, t0)
  if (kTwo) MUSTER_BEGIN_TILE(1, panel + 1, t1)
  if (both) {
    MUSTER_BEGIN_TILE(2, panel, t2)
    if (kTwo) MUSTER_BEGIN_TILE(3, panel + 1, t3)
    add_products<kTwo, true>(upper, lower, first, second, num_blocks, [&](int) { fetch_some(ahead); });
  } else {
    add_products<kTwo, false>(upper, lower, first, second, num_blocks, [&](int) { fetch_some(ahead); });
  }
  MUSTER_END_TILE(0, panel, t0)
  if (kTwo) MUSTER_END_TILE(1, panel + 1, t1)
  if (both) {
    MUSTER_END_TILE(2, panel, t2)
    if (kTwo) MUSTER_END_TILE(3, panel + 1, t3)
  }
}

#undef MUSTER_BEGIN_TILE
#undef MUSTER_END_TILE

// Panels that are unpacked together fit the second-level cache beside the rows; each row is then fetched from afar
// once for all of them.
constexpr size_t kRoomBytes = 512 << 10;
constexpr int kMostPanels = 32;
// Blocks of inputs at a time: 32 rows of so many (36 KiB) stay in the first-level cache.
constexpr int kBlocksAtOnce = 18;

MUSTER_INLINE int panels_at_once(const Matrix& matrix) {
  const size_t fit = kRoomBytes / (static_cast<size_t>(matrix.num_blocks) * 1024) / 2 * 2;
  return fit < 2 ? 2 : (fit > kMostPanels ? kMostPanels : static_cast<int>(fit));
}

MUSTER_INLINE void configure_whole_tiles() {
  TileShape shape;
  for (int tile = 0; tile < 8; ++tile) shape.set(tile, 16, 64);
  _tile_loadconfig(&shape);
}

void tile_halves(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                 int end, Scratch* scratch) {
  const size_t panel_size = static_cast<size_t>(matrix.num_blocks) * 1024;
  const int most = panels_at_once(matrix);
  auto* room = static_cast<uint8_t*>(reserve(scratch, most * panel_size));
  Matrix without_bias = matrix;
  without_bias.bias = nullptr;
  const int num_turns = (matrix.num_blocks + kBlocksAtOnce - 1) / kBlocksAtOnce;
  const int blocks = (matrix.num_blocks + num_turns - 1) / num_turns;
  configure_whole_tiles();
  for (int panel = begin; panel < end; panel += most) {
    const int count = end - panel < most ? end - panel : most;
    const uint8_t* halves[kMostPanels];
    for (int i = 0; i < count; ++i) halves[i] = halves_of(matrix, panel + i, room + i * panel_size);
    Ahead ahead = ahead_of(matrix, panel + count, end, most);
    for (int from = 0; from < matrix.num_blocks; from += blocks) {
      const int num_blocks = matrix.num_blocks - from < blocks ? matrix.num_blocks - from : blocks;
      const Matrix& target = from == 0 ? matrix : without_bias;
      const bool adding = accumulate || from > 0;
      for (int row = 0; row < x.rows; row += 32) {
        int i = 0;
        for (; i + 1 < count; i += 2)
          tile_panel_pair<true>(target, x, halves[i], halves[i + 1], panel + i, row, from, num_blocks, out, stride,
                                adding, ahead);
        if (i < count)
          tile_panel_pair<false>(target, x, halves[i], halves[i], panel + i, row, from, num_blocks, out, stride, adding,
                                 ahead);
      }
    }
  }
  _tile_release();
}

// Sums of 32 rows by one panel of the gate and one of the other factor, still to become the next product's input.
struct Ungated {
  const float* sums = nullptr;  // gate and factor of the upper sixteen rows, then of the lower: [4][16][16]
  int row = 0;
  int panel = 0;
  int num_rows = 0;
};

MUSTER_INLINE void finish_gates(const Ungated& from, int first, int count, const Activations& to) {
  for (int m = first; m < first + count && m < from.num_rows; ++m) {
    const float* gate = from.sums + m / 16 * 512 + m % 16 * 16;
    const Floats value = silu(load(gate)) * load(gate + 256);
    uint16_t* out = to.halves + block_index(to, from.row + m, from.panel / 2) * kBlock + from.panel % 2 * kPanel;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
  }
}

// silu(x * gate) * (x * up) as bfloat16, without a stop in memory: the sums of one turn are finished during the next.
void tile_gated(const Matrix& gate, const Matrix& up, const Activations& x, const Activations& to, int begin, int end,
                Scratch* scratch) {
  const int num_blocks = gate.num_blocks;
  const size_t panel_size = static_cast<size_t>(num_blocks) * 1024;
  const int most = panels_at_once(gate) / 2 < 1 ? 1 : panels_at_once(gate) / 2;
  auto* room = static_cast<uint8_t*>(reserve(scratch, 2 * most * panel_size));
  alignas(64) float sums[2][4 * 16 * 16];
  int turn = 0;
  Ungated waiting;
  const int rows_at_once = (32 + num_blocks - 1) / num_blocks;
  configure_whole_tiles();
  for (int panel = begin; panel < end; panel += most) {
    const int count = end - panel < most ? end - panel : most;
    const uint8_t *gates[kMostPanels], *ups[kMostPanels];
    for (int i = 0; i < count; ++i) gates[i] = halves_of(gate, panel + i, room + 2 * i * panel_size);
    for (int i = 0; i < count; ++i) ups[i] = halves_of(up, panel + i, room + (2 * i + 1) * panel_size);
    Ahead ahead = ahead_of_both(gate, up, panel + count, end, most);
    for (int row = 0; row < x.rows; row += 32) {
      const uint16_t* upper = x.halves + block_index(x, row, 0) * kBlock;
      const uint16_t* lower = x.halves + block_index(x, row + 16, 0) * kBlock;
      const bool both = x.rows - row > 16;
      for (int i = 0; i < count; ++i) {
        const auto between = [&](int b) {
          fetch_some(ahead);
          finish_gates(waiting, b * rows_at_once, rows_at_once, to);
        };
        float* here = sums[turn++ % 2];
        _tile_zero(0);
        _tile_zero(1);
        if (both) {
          _tile_zero(2);
          _tile_zero(3);
          add_products<true, true>(upper, lower, gates[i], ups[i], num_blocks, between);
          _tile_stored(2, here + 512, 64);
          _tile_stored(3, here + 768, 64);
        } else {
          add_products<true, false>(upper, lower, gates[i], ups[i], num_blocks, between);
        }
        _tile_stored(0, here, 64);
        _tile_stored(1, here + 256, 64);
        waiting = {here, row, panel + i, both ? 32 : 16};
      }
    }
  }
  finish_gates(waiting, 0, 32, to);
  _tile_release();
}

Format choose_format(Codes codes, int rows, Use) {
  if (codes == Codes::kBfloat16) return rows >= kTilesFrom ? Format::kBfloat16 : Format::kFloat;
  return rows >= kHalvesFrom ? Format::kBfloat16 : Format::kInt8;
}

void multiply(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
              int end, Scratch* scratch) {
  if (choose_format(matrix.codes, x.rows, Use::kPrompt) == Format::kBfloat16)
    tile_halves(matrix, x, out, stride, accumulate, begin, end, scratch);
  else if (matrix.codes == Codes::kSixBits && x.rows >= kTilesFrom)
    tile_six_bits(matrix, x, out, stride, accumulate, begin, end, scratch);
  else if (x.rows < kTilesFrom && (matrix.codes == Codes::kFiveBits || matrix.codes == Codes::kSixBits))
    multiply_wide(matrix, x, out, stride, accumulate, begin, end, scratch);
  else if (x.rows < kTilesFrom)
    multiply_by_rows(matrix, x, out, stride, accumulate, begin, end);
  else if (matrix.codes == Codes::kFourBits || matrix.codes == Codes::kFiveBits)
    tile_rows<true>(matrix, x, out, stride, accumulate, begin, end, scratch);
  else
    tile_rows<false>(matrix, x, out, stride, accumulate, begin, end, scratch);
}

}  // namespace
}  // namespace muster
