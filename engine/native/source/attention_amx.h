// Attention on the tile unit. Keys are read where they lie: sixteen tokens of a page are the rows of a left operand,
// and the queries, packed once, are the right one. So scores come out as [token][lane], as the plain kernels have them.
#pragma once

#include "attention_prompt.h"
#include "multiply_amx.h"

namespace muster {
namespace {

constexpr int kTileTokens = 16;
constexpr int kChunk = 32;  // dimensions of one tile

MUSTER_INLINE bool tiles_fit(const Cache& cache) {
  return cache.block_size % kTileTokens == 0 && cache.head_dim % kChunk == 0;
}

// Queries of up to sixteen lanes as right operands: [D/32][16 pairs][16 lanes][2]. A null lane is zero.
MUSTER_INLINE void pack_queries(const float* const (&lanes)[kLanes], int dim, uint16_t* out) {
  std::memset(out, 0, static_cast<size_t>(dim) * kLanes * 2);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lanes[lane] == nullptr) continue;
    for (int d = 0; d < dim; d += 16) {
      uint16_t halves[16];
      store_halves(halves, load(lanes[lane] + d));
      auto* pairs = reinterpret_cast<uint32_t*>(out) + static_cast<size_t>(d / 2) * kLanes + lane;
      for (int p = 0; p < 8; ++p) std::memcpy(pairs + p * kLanes, halves + 2 * p, 4);
    }
  }
}

// Pages lie anywhere, so the processor cannot guess the next one.
MUSTER_INLINE void prefetch(const uint16_t* memory, long size) {
  for (long i = 0; i < size; i += 64) _mm_prefetch(reinterpret_cast<const char*>(memory) + i, _MM_HINT_T0);
}

// Scores of tokens [first, last), both multiples of sixteen, for heads of several key/value heads at once: each
// has its own lanes in its own operand, and the zeros elsewhere leave the others alone.
template <bool kFetchAhead>
MUSTER_INLINE void score_tiles(const Cache& cache, const Context& context, const uint16_t* queries, int first_kv_head,
                               int num_kv_heads, int first, int last, float* scores) {
  const int dim = cache.head_dim;
  const long step = static_cast<long>(cache.num_kv_heads) * dim * 2;
  for (int t = first; t < last; t += kTileTokens) {
    const uint16_t* keys = cache.keys + token_offset(cache, context, t);
    const uint16_t* operand = queries;
    if (kFetchAhead && t + kTileTokens < last)
      prefetch(cache.keys + token_offset(cache, context, t + kTileTokens), kTileTokens * step);
    _tile_zero(0);
    for (int kv = 0; kv < num_kv_heads; ++kv) {
      for (int d = 0; d < dim; d += kChunk, operand += kChunk * kLanes) {
        _tile_loadd(1, keys + (first_kv_head + kv) * dim + d, step);
        _tile_loadd(2, operand, 64);
        _tile_dpbf16ps(0, 1, 2);
      }
    }
    _tile_stored(0, scores + static_cast<size_t>(t - first) * kLanes, 64);
  }
}

void attend_one(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                size_t out_stride, int first_head, int num_heads, Scratch* scratch) {
  if (!tiles_fit(cache)) {
    attend_one_plain(cache, context, q, out, q_stride, out_stride, first_head, num_heads, scratch);
    return;
  }
  const int group = cache.num_heads / cache.num_kv_heads, dim = cache.head_dim;
  const int num_groups = (num_heads + group - 1) / group;
  const int first = first_visible(context, context.length - 1), last = context.length;
  const int from = first / kTileTokens * kTileTokens;
  const int to = (last + kTileTokens - 1) / kTileTokens * kTileTokens;
  const size_t queries_size = static_cast<size_t>(num_groups) * dim * kLanes * 2;
  const size_t scores_size = static_cast<size_t>(to - from) * kLanes * sizeof(float);
  const size_t sums_size = static_cast<size_t>(num_heads) * dim * sizeof(float);
  auto* memory = static_cast<uint8_t*>(reserve(scratch, scores_size + queries_size + sums_size));
  auto* scores = reinterpret_cast<float*>(memory);
  auto* queries = reinterpret_cast<uint16_t*>(memory + scores_size);
  auto* sums = reinterpret_cast<float*>(memory + scores_size + queries_size);
  const float* row = q + context.first_row * q_stride;
  for (int g = 0; g < num_groups; ++g) {
    const float* lanes[kLanes] = {};
    for (int h = g * group; h < num_heads && h < (g + 1) * group; ++h) lanes[h] = row + (first_head + h) * dim;
    pack_queries(lanes, dim, queries + static_cast<size_t>(g) * dim * kLanes);
  }
  configure_whole_tiles();
  score_tiles<true>(cache, context, queries, first_head / group, num_groups, from, to, scores);
  _tile_release();
  float* visible = scores + static_cast<size_t>(first - from) * kLanes;
  float factors[kLanes];
  soften(visible, last - first, kLanes, factors);
  const float* weights[kLanes];
  int widths[kLanes], quads = 0;
  for (int head = first_head; head < first_head + num_heads; ++quads) {
    weights[quads] = visible + (head - first_head);
    widths[quads] = kLanes;
    head += quad_at(head, first_head + num_heads, group).num_heads;
  }
  sum_heads(cache, context, first_head, first_head + num_heads, first, last, weights, widths, factors, sums,
            out + context.first_row * out_stride);
}

void transpose_values(const Cache& cache, const Context& context, int kv_head) {
  if (!tiles_fit(cache)) return;
  const int dim = cache.head_dim;
  const int64_t stride = context.transposed_stride;
  uint16_t* out = context.transposed + kv_head * dim * stride;
  const size_t step = static_cast<size_t>(cache.num_kv_heads) * dim;
  for (int t = 0; t < context.length; t += kTileTokens) {
    const uint16_t* values = cache.values + token_offset(cache, context, t) + kv_head * dim;
    for (int d = 0; d < dim; d += 16) {
      uint16_t square[kTileTokens][16];
      for (int i = 0; i < kTileTokens; ++i) std::memcpy(square[i], values + i * step + d, 32);
      for (int j = 0; j < 16; ++j) {
        uint16_t column[kTileTokens];
        for (int i = 0; i < kTileTokens; ++i) column[i] = square[i][j];
        std::memcpy(out + (d + j) * stride + t, column, 32);
      }
    }
  }
  // The tokens that fill up the last tile have weight zero; their values only have to be numbers.
  for (int64_t t = (context.length + 15) / 16 * 16; t < (context.length + 31) / 32 * 32; t += 16)
    for (int d = 0; d < dim; ++d) std::memset(out + d * stride + t, 0, 32);
}

// Weights of tokens [0, count) from scores, hidden ones zero, packed as right operands [count/2][16 lanes][2].
// Lane i stands at `position + i`. Returns one over the sums.
MUSTER_INLINE Floats soften_causally(const Context& context, float* scores, int from, int to, int position,
                                     uint8_t* weights) {
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = position + i < context.length ? position + i : context.length - 1;
  const int all_below = position;                            // every lane sees tokens up to here
  const int all_above = lanes[kLanes - 1] - context.window;  // and from behind here on
  const auto hide = [&](int first, int last) {
    for (int t = first; t < last; ++t) {
      float* row = scores + static_cast<size_t>(t - from) * kLanes;
      const Ints token = Ints{} + t;
      const Ints hidden = (token > lanes) | (token <= lanes - context.window);
      store(row, hidden ? spread(-__builtin_inff()) : load(row));
    }
  };
  const int above_end = all_above + 1 < to ? all_above + 1 : to;
  hide(from, above_end);
  const int below_begin = all_below + 1 > from ? all_below + 1 : from;
  hide(below_begin > above_end ? below_begin : above_end, to);
  // Four at a time: each maximum waits for the one before it.
  Floats peaks[4];
  for (auto& peak : peaks) peak = load(scores);
  for (int t = 0; t < to - from; t += 4)
    for (int i = 0; i < 4; ++i) peaks[i] = larger(peaks[i], load(scores + static_cast<size_t>(t + i) * kLanes));
  const Floats peak = larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3]));
  Floats total{};
#pragma GCC unroll 4
  for (int t = 0; t < to - from; t += 2) {
    const float* row = scores + static_cast<size_t>(t) * kLanes;
    const Floats first = exp2_negative(load(row) - peak), second = exp2_negative(load(row + kLanes) - peak);
    total += first + second;
    _mm512_store_si512(weights + static_cast<size_t>(t) * 32, pair_up(first, second));
  }
  return 1.0f / total;
}

// out[lane][dimension] = sums[dimension][lane] * factor[lane].
MUSTER_INLINE void put_square(const float* sums, const float* factors, int num_lanes, float* out, size_t stride) {
  const __m512i rows = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 4);
  for (int lane = 0; lane < num_lanes; ++lane) {
    const Floats column = reinterpret_cast<Floats>(_mm512_i32gather_ps(rows, sums + lane, 4));
    store(out + lane * stride, column * factors[lane]);
  }
}

void attend_many(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                 size_t out_stride, int head, int begin, int end, Scratch* scratch) {
  if (!tiles_fit(cache)) {
    attend_many_plain(cache, context, q, out, q_stride, out_stride, head, begin, end, scratch);
    return;
  }
  const int dim = cache.head_dim, kv_head = head / (cache.num_heads / cache.num_kv_heads);
  const size_t most = static_cast<size_t>(context.length + 31) / 32 * 32;
  auto* memory = static_cast<uint8_t*>(reserve(scratch, most * kLanes * 6 + static_cast<size_t>(dim) * kLanes * 2));
  auto* scores = reinterpret_cast<float*>(memory);
  uint8_t* weights = memory + most * kLanes * 4;
  auto* queries = reinterpret_cast<uint16_t*>(weights + most * kLanes * 2);
  const uint16_t* values = context.transposed + static_cast<size_t>(kv_head) * dim * context.transposed_stride;
  alignas(64) float sums[16 * kLanes];
  configure_whole_tiles();
  for (int i = begin; i < end; i += kLanes) {
    const int num_lanes = end - i < kLanes ? end - i : kLanes;
    const int position = context.length - context.num_queries + i;
    const float* lanes[kLanes] = {};
    for (int lane = 0; lane < num_lanes; ++lane)
      lanes[lane] = q + (context.first_row + i + lane) * q_stride + head * dim;
    pack_queries(lanes, dim, queries);
    const int from = first_visible(context, position) / 32 * 32;
    const int last = position + num_lanes;
    const int to = (last + 31) / 32 * 32;
    const int scored = (last + 15) / 16 * 16;  // the page may end there
    score_tiles<false>(cache, context, queries, kv_head, 1, from, scored, scores);
    for (int t = scored; t < to; ++t) store(scores + static_cast<size_t>(t - from) * kLanes, Floats{});
    float factors[kLanes];
    store(factors, soften_causally(context, scores, from, to, position, weights));
    float* rows = out + (context.first_row + i) * out_stride + head * dim;
    const long stride = context.transposed_stride * 2;
    for (int d = 0; d < dim; d += 32) {
      _tile_zero(0);
      _tile_zero(1);
      for (int t = from; t < to; t += 32) {
        _tile_loadd(4, weights + static_cast<size_t>(t - from) * 32, 64);
        _tile_loadd(2, values + d * context.transposed_stride + t, stride);
        _tile_dpbf16ps(0, 2, 4);
        _tile_loadd(3, values + (d + 16) * context.transposed_stride + t, stride);
        _tile_dpbf16ps(1, 3, 4);
      }
      _tile_stored(0, sums, 64);
      put_square(sums, factors, num_lanes, rows + d, out_stride);
      _tile_stored(1, sums, 64);
      put_square(sums, factors, num_lanes, rows + d + 16, out_stride);
    }
  }
  _tile_release();
}

}  // namespace
}  // namespace muster
