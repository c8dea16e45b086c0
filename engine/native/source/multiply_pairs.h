// Products as dot products of bfloat16 pairs, for processors with AVX512-BF16 and no tile unit.
//
// Every sum is one chain of additions in the order of the inputs, in whatever company it is computed, so a row's bits
// depend on its own inputs alone. Several rows by several panels are computed together: enough chains to hide how long
// an addition takes, and few enough loads for each.
#pragma once

#include "halves.h"
#include "multiply_wide.h"
#include "rows.h"

namespace muster {
namespace {

// From this many rows on, a prompt's queries, keys and values are computed with quantised weights unpacked to bfloat16.
// Eight bits are faster, but most of what they do to logits they do here: it stays in the cache, and moves near-ties for
// good.
constexpr int kPairsFrom = 32;
constexpr int kPairRows = 8;  // divides sixteen, so that rows which are computed together lie together
constexpr int kPairPanels = 3;

template <int P, int R>
struct PairSums {
  __m512 of[P][R];
};

// Adds blocks [0, num_blocks) of R rows by P panels. `between(b)` is done before block b.
template <int P, int R, class Between>
MUSTER_INLINE void add_pairs(const uint16_t* rows, const uint8_t* const (&panels)[P], int num_blocks,
                             PairSums<P, R>* to, const Between& between) {
  PairSums<P, R> sums = *to;
  for (int b = 0; b < num_blocks; ++b, rows += 16 * kBlock) {
    between(b);
#pragma GCC unroll 4
    for (int pair = 0; pair < kBlock / 2; ++pair) {
      __m512bh weights[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const uint8_t* at = panels[p] + (b * (kBlock / 2) + pair) * size_t{64};
        weights[p] = (__m512bh)_mm512_loadu_si512(at);
      }
#pragma GCC unroll 8
      for (int m = 0; m < R; ++m) {
        int32_t both;
        std::memcpy(&both, rows + m * kBlock + pair * 2, 4);
        const __m512bh inputs = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sums.of[p][m] = _mm512_dpbf16_ps(sums.of[p][m], weights[p], inputs);
      }
    }
  }
  *to = sums;
}

MUSTER_INLINE __mmask16 lanes_of(const Matrix& matrix, int panel) {
  const int left = matrix.rows - panel * kPanel;
  return static_cast<__mmask16>(left >= kPanel ? 0xffff : (1 << left) - 1);
}

// Blocks [from, from + num_blocks) of rows [row, row + R) by panels [panel, panel + P), which lie at `halves`. Sums
// begin with the bias, and with `out` where they are added to it; from the second blocks on they are continued.
template <int P, int R, class Between>
MUSTER_INLINE void multiply_pairs_at(const Matrix& matrix, const Activations& x, const uint8_t* const* halves,
                                     int panel, int row, int from, int num_blocks, float* out, size_t stride,
                                     bool accumulate, const Between& between) {
  PairSums<P, R> sums;
  const uint8_t* panels[P];
  float* rows = out + row * stride + panel * kPanel;
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    panels[p] = halves[p] + from * size_t{1024};
    const __mmask16 lanes = lanes_of(matrix, panel + p);
    __m512 bias = _mm512_setzero_ps();
    if (matrix.bias != nullptr && from == 0) bias = _mm512_maskz_loadu_ps(lanes, matrix.bias + (panel + p) * kPanel);
#pragma GCC unroll 8
    for (int m = 0; m < R; ++m) {
      sums.of[p][m] = bias;
      if (accumulate || from > 0)
        sums.of[p][m] = _mm512_add_ps(bias, _mm512_maskz_loadu_ps(lanes, rows + m * stride + p * kPanel));
    }
  }
  add_pairs<P, R>(x.halves + block_index(x, row, from) * kBlock, panels, num_blocks, &sums, between);
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const __mmask16 lanes = lanes_of(matrix, panel + p);
#pragma GCC unroll 8
    for (int m = 0; m < R; ++m) _mm512_mask_storeu_ps(rows + m * stride + p * kPanel, lanes, sums.of[p][m]);
  }
}

// Panels that are unpacked together fit the second-level cache beside the rows.
constexpr size_t kPairRoomBytes = 384 << 10;
constexpr int kMostPairPanels = 24;
// Blocks of inputs at a time, so that the rows of a turn stay in the first-level cache while panels pass by.
constexpr int kPairBlocks = 18;

MUSTER_INLINE int panels_in_room(const Matrix& matrix, int multiple) {
  const size_t fit = kPairRoomBytes / (static_cast<size_t>(matrix.num_blocks) * 1024) / multiple * multiple;
  const size_t least = multiple, most = kMostPairPanels;
  return static_cast<int>(fit < least ? least : (fit > most ? most : fit));
}

// Calls multiply(NumRows<R>, first row) for all rows.
template <class F>
MUSTER_INLINE void walk_rows(int num_rows, F&& multiply) {
  int row = 0;
  for (; row + kPairRows <= num_rows; row += kPairRows) multiply(NumRows<kPairRows>{}, row);
  with_num_rows<kPairRows - 1>(num_rows - row, [&](auto rest) { multiply(rest, row); });
}

// Weights in bfloat16, rows that are all computed together: panels stream by once, more of them where rows are few.
template <int P, int R>
void stream_panels(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                   int end) {
  const size_t size = matrix.panel_bytes;
  int panel = begin;
  for (; panel + P <= end; panel += P) {
    const uint8_t* pairs[P];
    for (int p = 0; p < P; ++p) pairs[p] = matrix.data + (panel + p) * size + matrix.codes_offset;
    multiply_pairs_at<P, R>(matrix, x, pairs, panel, 0, 0, matrix.num_blocks, out, stride, accumulate, [&](int b) {
      // Behind its end each stream goes on where the panels of the next turn lie.
      const size_t skipped = b * size_t{1024} + kFetchAhead < size ? 0 : (P - 1) * size;
      for (int p = 0; p < P; ++p) fetch_ahead<1024>(pairs[p] + skipped, b);
    });
  }
  if constexpr (P > 1) stream_panels<1, R>(matrix, x, out, stride, accumulate, panel, end);
}

void stream_pairs(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                  int end) {
  with_num_rows<kPairRows>(x.rows, [&](auto num_rows) {
    constexpr int kRows = decltype(num_rows)::value;
    stream_panels<(kRows <= 2 ? 4 : kRows <= 4 ? 2 : 1), kRows>(matrix, x, out, stride, accumulate, begin, end);
  });
}

void multiply_pairs(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                    int end, Scratch* scratch) {
  if (matrix.codes == Codes::kBfloat16 && x.rows <= kPairRows)
    return stream_pairs(matrix, x, out, stride, accumulate, begin, end);
  const size_t panel_size = static_cast<size_t>(matrix.num_blocks) * 1024;
  const int most = panels_in_room(matrix, kPairPanels);
  auto* room = static_cast<uint8_t*>(reserve(scratch, most * panel_size));
  const int num_turns = (matrix.num_blocks + kPairBlocks - 1) / kPairBlocks;
  const int blocks = (matrix.num_blocks + num_turns - 1) / num_turns;
  for (int panel = begin; panel < end; panel += most) {
    const int count = end - panel < most ? end - panel : most;
    const uint8_t* halves[kMostPairPanels];
    for (int i = 0; i < count; ++i) halves[i] = halves_of(matrix, panel + i, room + i * panel_size);
    Ahead ahead = ahead_of(matrix, panel + count, end, most);
    for (int from = 0; from < matrix.num_blocks; from += blocks) {
      const int num_blocks = matrix.num_blocks - from < blocks ? matrix.num_blocks - from : blocks;
      walk_rows(x.rows, [&](auto num_rows, int row) {
        constexpr int kRows = decltype(num_rows)::value;
        const auto at = [&](auto num_panels, int i) {
          multiply_pairs_at<decltype(num_panels)::value, kRows>(matrix, x, halves + i, panel + i, row, from, num_blocks,
                                                                out, stride, accumulate,
                                                                [&](int) { fetch_some(ahead); });
        };
        int i = 0;
        for (; i + kPairPanels <= count; i += kPairPanels) at(NumRows<kPairPanels>{}, i);
        with_num_rows<kPairPanels - 1>(count - i, [&](auto rest) { at(rest, i); });
      });
    }
  }
}

// silu(x * gate) * (x * up) as bfloat16, without a stop in memory.
void gate_pairs(const Matrix& gate, const Matrix& up, const Activations& x, const Activations& to, int begin, int end,
                Scratch* scratch) {
  const size_t panel_size = static_cast<size_t>(gate.num_blocks) * 1024;
  const int most = panels_in_room(gate, 2) / 2;
  const bool streams = gate.codes == Codes::kBfloat16 && x.rows <= kPairRows;
  auto* room = static_cast<uint8_t*>(reserve(scratch, 2 * most * panel_size));
  for (int panel = begin; panel < end; panel += most) {
    const int count = end - panel < most ? end - panel : most;
    const uint8_t* halves[kMostPairPanels];
    for (int i = 0; i < count; ++i) {
      halves[2 * i] = halves_of(gate, panel + i, room + 2 * i * panel_size);
      halves[2 * i + 1] = halves_of(up, panel + i, room + (2 * i + 1) * panel_size);
    }
    Ahead ahead = ahead_of_both(gate, up, panel + count, end, most);
    walk_rows(x.rows, [&](auto num_rows, int row) {
      constexpr int kRows = decltype(num_rows)::value;
      for (int i = 0; i < count; ++i) {
        const uint8_t* const both[2] = {halves[2 * i], halves[2 * i + 1]};
        PairSums<2, kRows> sums;
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) sums.of[0][m] = sums.of[1][m] = _mm512_setzero_ps();
        add_pairs<2, kRows>(x.halves + block_index(x, row, 0) * kBlock, both, gate.num_blocks, &sums, [&](int b) {
          if (!streams) return fetch_some(ahead);
          fetch_ahead<1024>(both[0], b);
          fetch_ahead<1024>(both[1], b);
        });
        const int to_panel = panel + i;
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const Floats value = silu(reinterpret_cast<Floats>(sums.of[0][m])) * reinterpret_cast<Floats>(sums.of[1][m]);
          uint16_t* out = to.halves + block_index(to, row + m, to_panel / 2) * kBlock + to_panel % 2 * kPanel;
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                              (__m256i)_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
        }
      }
    });
  }
}

Format choose_format(Codes codes, int rows, Use use) {
  return codes == Codes::kBfloat16 || (use == Use::kPromptKeys && rows >= kPairsFrom) ? Format::kBfloat16 : Format::kInt8;
}

void multiply(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
              int end, Scratch* scratch) {
  const bool has_codes = x.formats & static_cast<int>(Format::kInt8);
  if (matrix.codes == Codes::kBfloat16 || !has_codes)
    multiply_pairs(matrix, x, out, stride, accumulate, begin, end, scratch);
  else if (matrix.codes == Codes::kFiveBits || matrix.codes == Codes::kSixBits)
    multiply_wide(matrix, x, out, stride, accumulate, begin, end, scratch);
  else
    multiply_by_rows(matrix, x, out, stride, accumulate, begin, end);
}

}  // namespace
}  // namespace muster
