// Attention over pages where they lie. Scores are kept as [token][lane]: softmax needs no sums across lanes.
//
// Queries are expected to be scaled by log2(e) / sqrt(D), so that powers of two do.
#pragma once

#include "vector.h"

namespace muster {
namespace {

#ifdef __AVX512F__
constexpr int kHeadsAtOnce = 4;
#else
constexpr int kHeadsAtOnce = 2;  // half as many registers, half as wide
#endif
constexpr int kUpToThree = kHeadsAtOnce < 3 ? kHeadsAtOnce : 3;
constexpr int kDimsAtOnce = 4;  // in vectors of sixteen

MUSTER_INLINE int first_visible(const Context& context, int position) {
  return position + 1 > context.window ? position + 1 - context.window : 0;
}

// Scores of H heads that share keys, for tokens [first, last), into lanes [lane, lane + H).
template <int H>
MUSTER_INLINE void score_heads(const Cache& cache, const Context& context, const float* q, int kv_head, int first,
                               int last, int lane, float* scores) {
  const int dim = cache.head_dim;
  for (int t = first; t < last; ++t) {
    const uint16_t* key = cache.keys + token_offset(cache, context, t) + kv_head * dim;
    Floats products[H];
    for (int h = 0; h < H; ++h) products[h] = Floats{};
    for (int d = 0; d < dim; d += 16) {
      const Floats part = load_halves(key + d);
      for (int h = 0; h < H; ++h) products[h] += part * load(q + h * dim + d);
    }
    for (int h = 0; h < H; ++h) scores[static_cast<size_t>(t - first) * kLanes + lane + h] = sum(products[h]);
  }
}

void score_group(const Cache& cache, const Context& context, const float* q, int kv_head, int num_heads, int first,
                 int last, int lane, float* scores) {
  for (int h = 0; h < num_heads; h += kHeadsAtOnce, q += kHeadsAtOnce * cache.head_dim) {
    switch (num_heads - h) {
      case 1: score_heads<1>(cache, context, q, kv_head, first, last, lane + h, scores); break;
      case 2: score_heads<2>(cache, context, q, kv_head, first, last, lane + h, scores); break;
      case 3: score_heads<kUpToThree>(cache, context, q, kv_head, first, last, lane + h, scores); break;
      default: score_heads<kHeadsAtOnce>(cache, context, q, kv_head, first, last, lane + h, scores); break;
    }
  }
}

// Turns scores into weights, in place. Returns one over the sums.
MUSTER_INLINE Floats soften(float* scores, int count) {
  Floats peak = load(scores);
  for (int t = 1; t < count; ++t) peak = larger(peak, load(scores + static_cast<size_t>(t) * kLanes));
  Floats total{};
  for (int t = 0; t < count; ++t) {
    float* row = scores + static_cast<size_t>(t) * kLanes;
    const Floats weight = exp2_negative(load(row) - peak);
    total += weight;
    store(row, weight);
  }
  return 1.0f / total;
}

// Weighted values of H heads, V vectors of dimensions.
template <int H, int V>
MUSTER_INLINE void sum_values(const Cache& cache, const Context& context, const uint16_t* values, const float* weights,
                              int first, int last, const float* factors, float* out) {
  Floats total[H][V];
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < V; ++v) total[h][v] = Floats{};
  const size_t step = static_cast<size_t>(cache.num_kv_heads) * cache.head_dim;
  for (int t = first; t < last;) {
    const int in_block = cache.block_size - t % cache.block_size;
    const int stop = t + in_block < last ? t + in_block : last;
    const uint16_t* value = values + token_offset(cache, context, t);
    // Pages lie anywhere, so the processor cannot guess the next one.
    const uint16_t* next = stop < last ? values + token_offset(cache, context, stop) : value;
    for (; t < stop; ++t, value += step, weights += kLanes) {
      for (int v = 0; v < V; v += 2) __builtin_prefetch(next + v * 16);
      next += step;
      for (int v = 0; v < V; ++v) {
        const Floats part = load_halves(value + v * 16);
        for (int h = 0; h < H; ++h) total[h][v] += part * weights[h];
      }
    }
  }
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < V; ++v) store(out + h * cache.head_dim + v * 16, total[h][v] * factors[h]);
}

template <int H>
MUSTER_INLINE void sum_heads(const Cache& cache, const Context& context, int kv_head, const float* weights, int first,
                             int last, const float* factors, float* out) {
  const uint16_t* values = cache.values + kv_head * cache.head_dim;
  int d = 0;
  for (; d + 16 * kDimsAtOnce <= cache.head_dim; d += 16 * kDimsAtOnce)
    sum_values<H, kDimsAtOnce>(cache, context, values + d, weights, first, last, factors, out + d);
  for (; d < cache.head_dim; d += 16)
    sum_values<H, 1>(cache, context, values + d, weights, first, last, factors, out + d);
}

void sum_group(const Cache& cache, const Context& context, int kv_head, int num_heads, const float* weights, int first,
               int last, const float* factors, float* out) {
  for (int h = 0; h < num_heads; h += kHeadsAtOnce) {
    const float* w = weights + h;
    float* o = out + h * cache.head_dim;
    switch (num_heads - h) {
      case 1: sum_heads<1>(cache, context, kv_head, w, first, last, factors + h, o); break;
      case 2: sum_heads<2>(cache, context, kv_head, w, first, last, factors + h, o); break;
      case 3: sum_heads<kUpToThree>(cache, context, kv_head, w, first, last, factors + h, o); break;
      default: sum_heads<kHeadsAtOnce>(cache, context, kv_head, w, first, last, factors + h, o); break;
    }
  }
}

// The token at `position` with the tokens before it; q and out point to its row. Heads share keys in whole groups,
// or lie within one group.
void attend_position(const Cache& cache, const Context& context, const float* q, float* out, int first_head,
                     int num_heads, int position, float* scores) {
  const int group = cache.num_heads / cache.num_kv_heads, dim = cache.head_dim;
  const int first = first_visible(context, position), last = position + 1;
  for (int h = 0; h < num_heads; h += group) {
    const int head = first_head + h, count = num_heads - h < group ? num_heads - h : group;
    score_group(cache, context, q + head * dim, head / group, count, first, last, h, scores);
  }
  float factors[kLanes];
  store(factors, soften(scores, last - first));
  for (int h = 0; h < num_heads; h += group) {
    const int head = first_head + h, count = num_heads - h < group ? num_heads - h : group;
    sum_group(cache, context, head / group, count, scores + h, first, last, factors + h, out + head * dim);
  }
}

// Lanes that no head uses hold whatever was there; their weights are never read.
MUSTER_INLINE float* reserve_scores(Scratch* scratch, const Context& context, int copies) {
  const size_t padded = (static_cast<size_t>(context.length) + 63) / 32 * 32;
  return static_cast<float*>(reserve(scratch, padded * kLanes * sizeof(float) * copies + 16384));
}

void attend_one_plain(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                      size_t out_stride, int first_head, int num_heads, Scratch* scratch) {
  float* scores = reserve_scores(scratch, context, 1);
  const size_t row = context.first_row;
  attend_position(cache, context, q + row * q_stride, out + row * out_stride, first_head, num_heads,
                  context.length - 1, scores);
}

void attend_many_plain(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                       size_t out_stride, int head, int begin, int end, Scratch* scratch) {
  float* scores = reserve_scores(scratch, context, 1);
  for (int i = begin; i < end; ++i) {
    const size_t row = context.first_row + i;
    attend_position(cache, context, q + row * q_stride, out + row * out_stride, head, 1,
                    context.length - context.num_queries + i, scores);
  }
}

}  // namespace
}  // namespace muster
