// Attention of a decoding sequence over pages where they lie: its heads, four that share keys at a time.
//
// Scores of such a quad are kept as [token][head], in rows of one, two or four: four sums across lanes are taken
// together, and the softmax has no empty lanes. A head's numbers do not depend on what other quads a call has.
// Queries are expected to be scaled by log2(e) / sqrt(D), so that powers of two do.
#pragma once

#include "registers.h"

namespace muster {
namespace {

constexpr int kQuad = 4;  // heads
constexpr int kChunkTokens = 16;
#ifdef __AVX512F__
constexpr int kPairsAtOnce = 2;
#else
constexpr int kPairsAtOnce = 1;  // half as many registers
#endif

MUSTER_INLINE int first_visible(const Context& context, int position) {
  return position + 1 > context.window ? position + 1 - context.window : 0;
}

MUSTER_INLINE int row_width(int num_heads) { return num_heads == 3 ? 4 : num_heads; }

MUSTER_INLINE int padded_to_pairs(int dim) { return (dim + kPairs - 1) / kPairs * kPairs; }

// Where the keys or the values of some tokens lie.
struct Rows {
  const uint16_t* at[kChunkTokens];
  int count;
};

MUSTER_INLINE Rows rows_at(const Cache& cache, const Context& context, const uint16_t* base, int first, int last) {
  const size_t step = static_cast<size_t>(cache.num_kv_heads) * cache.head_dim;
  Rows rows;
  rows.count = last - first < kChunkTokens ? last - first : kChunkTokens;
  for (int i = 0; i < rows.count;) {
    const uint16_t* row = base + token_offset(cache, context, first + i);
    const int in_block = cache.block_size - (first + i) % cache.block_size;
    const int stop = i + in_block < rows.count ? i + in_block : rows.count;
    for (; i < stop; ++i, row += step) rows.at[i] = row;
  }
  return rows;
}

// Pages lie anywhere, so the processor cannot guess the next one.
MUSTER_INLINE void fetch(const uint16_t* numbers, int count) {
  for (int i = 0; i < count; i += 32) __builtin_prefetch(numbers + i);
}

// Scores of H heads for a chunk of tokens; `ahead` numbers of each row of the next one are fetched. queries: [H][D as
// pairs]. Writes whole quads of scores, so up to three behind the last.
template <int H>
MUSTER_INLINE void score_chunk(const Rows& rows, const Rows& next, int ahead, int column, int dim,
                               const float* queries, float* scores) {
  constexpr int kTokens = H > 2 ? 1 : kQuad / H;
  const int head_size = padded_to_pairs(dim);
  for (int t = 0; t < rows.count; t += kTokens) {
    Register products[kQuad];
    for (auto& product : products) product = Register{};
    for (int i = 0; i < kTokens; ++i) {
      const int token = t + i < rows.count ? t + i : rows.count - 1;
      const uint16_t* key = rows.at[token] + column;
      if (token < next.count) fetch(next.at[token] + column, ahead);
      for (int d = 0; d < dim; d += kPairs) {
        const Pairs part = load_pairs(key + d, dim - d);
        for (int h = 0; h < H; ++h) {
          const float* query = queries + h * head_size + d;
          products[i * H + h] += part.even * load_register(query);
          products[i * H + h] += part.odd * load_register(query + kRegister);
        }
      }
    }
    store_four(scores, sum_four(products[0], products[1], products[2], products[3]));
    scores += kQuad;
  }
}

// Turns scores, [count][width] with width a power of two, into weights, in place; up to a whole `Floats` is written.
// factors: [kLanes], one over the sums.
MUSTER_INLINE void soften(float* scores, int count, int width, float* factors) {
  const size_t size = static_cast<size_t>(count) * width;
  const size_t padded = (size + kLanes - 1) / kLanes * kLanes;
  for (size_t i = size; i < padded; ++i) scores[i] = -__builtin_inff();
  // Four at a time: each maximum waits for the one before it.
  Floats peaks[4];
  for (auto& peak : peaks) peak = load(scores);
  size_t i = kLanes;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) peaks[j] = larger(peaks[j], load(scores + i + j * kLanes));
  for (; i < padded; i += kLanes) peaks[0] = larger(peaks[0], load(scores + i));
  float lanes[kLanes];
  store(lanes, larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3])));
  for (int lane = width; lane < kLanes; ++lane)
    lanes[lane % width] = lanes[lane] > lanes[lane % width] ? lanes[lane] : lanes[lane % width];
  for (int lane = width; lane < kLanes; ++lane) lanes[lane] = lanes[lane % width];
  const Floats peak = load(lanes);
  Floats total{};
#pragma GCC unroll 4
  for (i = 0; i < padded; i += kLanes) {
    const Floats weight = exp2_negative(load(scores + i) - peak);
    total += weight;
    store(scores + i, weight);
  }
  store(factors, total);
  for (int lane = width; lane < kLanes; ++lane) factors[lane % width] += factors[lane];
  store(factors, 1.0f / load(factors));
}

// Adds a chunk's weighted values of H heads, V registers of pairs of dimensions from `column` on.
// weights: [count][width]; sums: [H][D as pairs]. `ahead` numbers of each row of the next chunk are fetched.
template <int H, int V>
MUSTER_INLINE void sum_values(const Rows& rows, const Rows& next, int ahead, int column, int dims, int head_size,
                              const float* weights, int width, float* sums) {
  Register even[H][V], odd[H][V];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < V; ++v) {
      even[h][v] = load_register(sums + h * head_size + v * kPairs);
      odd[h][v] = load_register(sums + h * head_size + v * kPairs + kRegister);
    }
  }
  for (int t = 0; t < rows.count; ++t, weights += width) {
    if (t < next.count) fetch(next.at[t] + column, ahead);
    for (int v = 0; v < V; ++v) {
      const Pairs part = load_pairs(rows.at[t] + column + v * kPairs, dims - v * kPairs);
      for (int h = 0; h < H; ++h) {
        even[h][v] += part.even * weights[h];
        odd[h][v] += part.odd * weights[h];
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < V; ++v) {
      store_register(sums + h * head_size + v * kPairs, even[h][v]);
      store_register(sums + h * head_size + v * kPairs + kRegister, odd[h][v]);
    }
  }
}

template <int H>
MUSTER_INLINE void sum_chunk(const Rows& rows, const Rows& next, int ahead, int column, int dim, const float* weights,
                             int width, float* sums) {
  const int head_size = padded_to_pairs(dim);
  int d = 0;
  for (; d + kPairsAtOnce * kPairs <= dim; d += kPairsAtOnce * kPairs, ahead = 0)
    sum_values<H, kPairsAtOnce>(rows, next, ahead, column + d, dim - d, head_size, weights, width, sums + d);
  for (; d < dim; d += kPairs, ahead = 0)
    sum_values<H, 1>(rows, next, ahead, column + d, dim - d, head_size, weights, width, sums + d);
}

// Up to four heads that share keys.
struct Quad {
  int first_head;
  int num_heads;
};

// The quad that begins at `head`; heads end at `end`.
MUSTER_INLINE Quad quad_at(int head, int end, int group) {
  const int group_end = (head / group + 1) * group;
  const int stop = group_end < end ? group_end : end;
  return {head, stop - head < kQuad ? stop - head : kQuad};
}

// Weighted values of heads [first_head, end_head) over all tokens, into their places of the row `out`. weights: of each
// quad [last - first][its width]; factors: of each head; sums: room for [heads][D as pairs].
void sum_heads(const Cache& cache, const Context& context, int first_head, int end_head, int first, int last,
               const float* const* weights, const int* widths, const float* factors, float* sums, float* out) {
  const int group = cache.num_heads / cache.num_kv_heads, dim = cache.head_dim;
  const int head_size = padded_to_pairs(dim);
  std::memset(sums, 0, static_cast<size_t>(end_head - first_head) * head_size * sizeof(float));
  Rows next = rows_at(cache, context, cache.values, first, last);
  for (int t = first; t < last; t += kChunkTokens) {
    const Rows rows = next;
    next = rows_at(cache, context, cache.values, t + rows.count, last);
    int index = 0;
    for (int head = first_head; head < end_head; ++index) {
      const Quad quad = quad_at(head, end_head, group);
      const int column = head / group * dim, width = widths[index];
      const int ahead = head % group == 0 ? dim : 0;
      const float* from = weights[index] + static_cast<size_t>(t - first) * width;
      float* to = sums + static_cast<size_t>(head - first_head) * head_size;
      switch (quad.num_heads) {
        case 1: sum_chunk<1>(rows, next, ahead, column, dim, from, width, to); break;
        case 2: sum_chunk<2>(rows, next, ahead, column, dim, from, width, to); break;
        case 3: sum_chunk<3>(rows, next, ahead, column, dim, from, width, to); break;
        default: sum_chunk<4>(rows, next, ahead, column, dim, from, width, to); break;
      }
      head += quad.num_heads;
    }
  }
  for (int head = first_head; head < end_head; ++head, sums += head_size) {
    const float factor = *factors++;
    for (int d = 0; d < dim; d += kPairs) {
      const Pairs part = {load_register(sums + d) * factor, load_register(sums + d + kRegister) * factor};
      join_pairs(part, dim - d, out + head * dim + d);
    }
  }
}

void attend_one_plain(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                      size_t out_stride, int first_head, int num_heads, Scratch* scratch) {
  const int group = cache.num_heads / cache.num_kv_heads, dim = cache.head_dim, end_head = first_head + num_heads;
  const int first = first_visible(context, context.length - 1), last = context.length;
  const int head_size = padded_to_pairs(dim);
  const size_t queries_size = static_cast<size_t>(num_heads) * head_size;
  const size_t scores_size = static_cast<size_t>(last - first + kLanes) / kLanes * kLanes * kQuad;
  float* queries = static_cast<float*>(reserve(scratch, (2 * queries_size + num_heads * scores_size) * sizeof(float)));
  float* sums = queries + queries_size;
  float* scores = sums + queries_size;
  const float* row = q + context.first_row * q_stride + first_head * dim;
  for (int h = 0; h < num_heads; ++h) {
    for (int d = 0; d < dim; d += kPairs) {
      const Pairs part = part_pairs(row + h * dim + d, dim - d);
      store_register(queries + h * head_size + d, part.even);
      store_register(queries + h * head_size + d + kRegister, part.odd);
    }
  }
  Rows next = rows_at(cache, context, cache.keys, first, last);
  for (int t = first; t < last; t += kChunkTokens) {
    const Rows rows = next;
    const bool ends = t + rows.count == last;
    next = ends ? rows_at(cache, context, cache.values, first, last)
                : rows_at(cache, context, cache.keys, t + rows.count, last);
    const float* query = queries;
    float* quad_scores = scores;
    for (int head = first_head; head < end_head; quad_scores += scores_size) {
      const Quad quad = quad_at(head, end_head, group);
      const int column = head / group * dim, ahead = head % group == 0 ? dim : 0;
      float* to = quad_scores + static_cast<size_t>(t - first) * row_width(quad.num_heads);
      switch (quad.num_heads) {
        case 1: score_chunk<1>(rows, next, ahead, column, dim, query, to); break;
        case 2: score_chunk<2>(rows, next, ahead, column, dim, query, to); break;
        case 3: score_chunk<3>(rows, next, ahead, column, dim, query, to); break;
        default: score_chunk<4>(rows, next, ahead, column, dim, query, to); break;
      }
      query += quad.num_heads * head_size;
      head += quad.num_heads;
    }
  }
  const float* weights[kLanes];
  int widths[kLanes];
  float factors[2 * kLanes];
  int index = 0;
  for (int head = first_head; head < end_head; scores += scores_size, ++index) {
    const Quad quad = quad_at(head, end_head, group);
    weights[index] = scores;
    widths[index] = row_width(quad.num_heads);
    soften(scores, last - first, widths[index], factors + (head - first_head));
    head += quad.num_heads;
  }
  sum_heads(cache, context, first_head, end_head, first, last, weights, widths, factors, sums,
            out + context.first_row * out_stride);
}

}  // namespace
}  // namespace muster
