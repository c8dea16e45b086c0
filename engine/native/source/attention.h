// Attention of a decoding sequence over pages where they lie: its heads, four that share keys at a time.
//
// Scores of such a quad are kept as [token][head], in rows of one, two or four, so that the sums across lanes of sixteen
// or more products are taken together and the softmax has no empty lanes. No head's numbers depend on the other quads.
// Queries are expected to be scaled by log2(e) / sqrt(D), so that powers of two do.
#pragma once

#include "registers.h"

namespace muster {
namespace {

constexpr int kQuad = 4;  // heads
#ifdef __AVX512F__
constexpr int kPairsAtOnce = 2;
#else
constexpr int kPairsAtOnce = 1;  // half as many registers
#endif

MUSTER_INLINE int first_visible(const Context& context, int position) {
  return position + 1 > context.window ? position + 1 - context.window : 0;
}

MUSTER_INLINE int row_width(int num_heads) { return num_heads == 3 ? 4 : num_heads; }

// Pages lie anywhere, so the processor cannot guess the next one.
MUSTER_INLINE void fetch_row(const uint16_t* row, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(row) + i);
}

// Tokens from one on that lie behind each other, and where the next ones lie.
struct Run {
  const uint16_t* row;
  const uint16_t* next;  // null: there are none
  int count;
};

MUSTER_INLINE Run run_at(const Cache& cache, const Context& context, const uint16_t* base, int token, int last) {
  const int in_block = cache.block_size - token % cache.block_size;
  const bool ends = token + in_block >= last;
  return {base + token_offset(cache, context, token),
          ends ? nullptr : base + token_offset(cache, context, token + in_block), ends ? last - token : in_block};
}

// Scores of H heads for a run of tokens, `step` numbers apart. queries: [H][D as pairs]. Writes whole quads of scores,
// so up to three behind the last.
template <int H>
MUSTER_INLINE void score_run(const uint16_t* keys, size_t step, int count, int dim, const float* queries,
                             float* scores) {
  constexpr int kTokens = H > 2 ? 1 : kQuad / H;
  const int head_size = (dim + kPairs - 1) / kPairs * kPairs;
  for (int t = 0; t < count; t += kTokens) {
    Register products[kQuad];
    for (auto& product : products) product = Register{};
    for (int i = 0; i < kTokens; ++i) {
      const uint16_t* key = keys + (t + i < count ? t + i : count - 1) * step;
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

// Weighted values of H heads, V registers of pairs of dimensions from `first_dim` on. weights: [last - first][width].
// While they are computed, `ahead` bytes of each row of the next page are fetched from `fetched` on.
template <int H, int V>
MUSTER_INLINE void sum_values(const Cache& cache, const Context& context, int column, int dims, const float* weights,
                              int width, int first, int last, const float* factors, float* out, int ahead) {
  Register even[H][V], odd[H][V];
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < V; ++v) even[h][v] = odd[h][v] = Register{};
  const size_t step = static_cast<size_t>(cache.num_kv_heads) * cache.head_dim;
  for (int t = first; t < last;) {
    const Run run = run_at(cache, context, cache.values, t, last);
    const uint16_t* value = run.row + column;
    for (int i = 0; i < run.count; ++i, value += step, weights += width) {
      if (run.next != nullptr) fetch_row(run.next + i * step, ahead);
      for (int v = 0; v < V; ++v) {
        const Pairs part = load_pairs(value + v * kPairs, dims - v * kPairs);
        for (int h = 0; h < H; ++h) {
          even[h][v] += part.even * weights[h];
          odd[h][v] += part.odd * weights[h];
        }
      }
    }
    t += run.count;
  }
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < V; ++v)
      join_pairs({even[h][v] * factors[h], odd[h][v] * factors[h]}, dims - v * kPairs,
                 out + h * cache.head_dim + v * kPairs);
}

template <int H>
MUSTER_INLINE void sum_heads(const Cache& cache, const Context& context, int kv_head, const float* weights, int width,
                             int first, int last, const float* factors, float* out, int ahead) {
  const int dim = cache.head_dim, column = kv_head * dim;
  int d = 0;
  for (; d + kPairsAtOnce * kPairs <= dim; d += kPairsAtOnce * kPairs, ahead = 0)
    sum_values<H, kPairsAtOnce>(cache, context, column + d, dim - d, weights, width, first, last, factors, out + d,
                                ahead);
  for (; d < dim; d += kPairs, ahead = 0)
    sum_values<H, 1>(cache, context, column + d, dim - d, weights, width, first, last, factors, out + d, ahead);
}

void sum_quad(const Cache& cache, const Context& context, int kv_head, int num_heads, const float* weights, int width,
              int first, int last, const float* factors, float* out, int ahead) {
  switch (num_heads) {
    case 1: sum_heads<1>(cache, context, kv_head, weights, width, first, last, factors, out, ahead); break;
    case 2: sum_heads<2>(cache, context, kv_head, weights, width, first, last, factors, out, ahead); break;
    case 3: sum_heads<3>(cache, context, kv_head, weights, width, first, last, factors, out, ahead); break;
    default: sum_heads<4>(cache, context, kv_head, weights, width, first, last, factors, out, ahead); break;
  }
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

void attend_one_plain(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                      size_t out_stride, int first_head, int num_heads, Scratch* scratch) {
  const int group = cache.num_heads / cache.num_kv_heads, dim = cache.head_dim, end_head = first_head + num_heads;
  const int first = first_visible(context, context.length - 1), last = context.length;
  const int head_size = (dim + kPairs - 1) / kPairs * kPairs;
  const size_t scores_size = static_cast<size_t>(last - first + kLanes) / kLanes * kLanes * kQuad + kLanes;
  const size_t step = static_cast<size_t>(cache.num_kv_heads) * dim;
  float* queries = static_cast<float*>(
      reserve(scratch, (num_heads * static_cast<size_t>(head_size) + num_heads * scores_size) * sizeof(float)));
  float* scores = queries + static_cast<size_t>(num_heads) * head_size;
  const float* row = q + context.first_row * q_stride + first_head * dim;
  for (int h = 0; h < num_heads; ++h) {
    for (int d = 0; d < dim; d += kPairs) {
      const Pairs part = part_pairs(row + h * dim + d, dim - d);
      store_register(queries + h * head_size + d, part.even);
      store_register(queries + h * head_size + d + kRegister, part.odd);
    }
  }
  for (int t = first; t < last;) {
    const Run run = run_at(cache, context, cache.keys, t, last);
    const uint16_t* fetched = run.next != nullptr ? run.next : cache.values + token_offset(cache, context, first);
    const int count = run.count;
    fetch_row(fetched, count * step * 2);
    const float* query = queries;
    float* quad_scores = scores;
    for (int head = first_head; head < end_head;) {
      const Quad quad = quad_at(head, end_head, group);
      const uint16_t* keys = run.row + head / group * dim;
      float* to = quad_scores + static_cast<size_t>(t - first) * row_width(quad.num_heads);
      switch (quad.num_heads) {
        case 1: score_run<1>(keys, step, count, dim, query, to); break;
        case 2: score_run<2>(keys, step, count, dim, query, to); break;
        case 3: score_run<3>(keys, step, count, dim, query, to); break;
        default: score_run<4>(keys, step, count, dim, query, to); break;
      }
      query += quad.num_heads * head_size;
      quad_scores += scores_size;
      head += quad.num_heads;
    }
    t += count;
  }
  float* to = out + context.first_row * out_stride;
  int ahead = static_cast<int>(step * 2);
  for (int head = first_head; head < end_head; scores += scores_size, ahead = 0) {
    const Quad quad = quad_at(head, end_head, group);
    const int width = row_width(quad.num_heads);
    float factors[kLanes];
    soften(scores, last - first, width, factors);
    sum_quad(cache, context, head / group, quad.num_heads, scores, width, first, last, factors, to + head * dim, ahead);
    head += quad.num_heads;
  }
}

}  // namespace
}  // namespace muster
