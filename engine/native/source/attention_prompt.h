// Attention of many query tokens of one sequence, on vectors: up to 64 of them are the columns of two products, with keys
// and with values, and 32 keys take their turn at a time.
//
// A column's numbers depend on its own token alone: turns begin at multiples of 32 tokens, and what a column does not
// see adds zeros to it. So prompts may be cut anywhere.
#pragma once

#include "attention.h"

namespace muster {
namespace {

constexpr int kTurn = 32;     // keys
constexpr int kColumns = 64;  // query tokens, at most
constexpr int kMostVectors = kColumns / kLanes;
#ifdef __AVX512F__
constexpr int kVectorsAtOnce = 4;
#else
constexpr int kVectorsAtOnce = 1;
#endif
constexpr int kParts = kLanes / kRegister;  // registers of a vector

// Rows of a product whose sums fit the registers, with V vectors of columns; all divide sixteen.
template <int V>
struct Sums {
#if defined(__AVX512F__)
  static constexpr int kRows = V > 2 ? 4 : 8;
#elif defined(__AVX__) || defined(__aarch64__)
  static constexpr int kRows = 4;
#else
  static constexpr int kRows = 2;
#endif
  Register sums[kRows][V * kParts];
};

// sums[i][column] += sum over k of left[i * row + k * step] * right[k][column].
template <int V>
MUSTER_INLINE void multiply_add(const float* left, size_t row, size_t step, const float* right, int count,
                                Sums<V>* to) {
  constexpr int kRows = Sums<V>::kRows, kWidth = V * kParts;
  Sums<V> total = *to;
  for (int k = 0; k < count; ++k, left += step, right += kColumns) {
    Register columns[kWidth];
    for (int r = 0; r < kWidth; ++r) columns[r] = load_register(right + r * kRegister);
    for (int i = 0; i < kRows; ++i) {
      const float number = left[i * row];
      for (int r = 0; r < kWidth; ++r) total.sums[i][r] += columns[r] * number;
    }
  }
  *to = total;
}

// One head's part of a prompt: columns [16 * first, 16 * end) of all that is laid out for 64.
struct Prompt {
  const Cache* cache;
  const Context* context;
  int kv_head;
  int position;    // of the first column
  int num_queries;
  float* queries;  // [D][64]
  float* keys;     // [32][D], one turn's
  float* values;   // alike
  float* weights;  // [32][64], scores at first
  float* sums;     // [D][64]
  float peaks[kColumns];
  float totals[kColumns];
  float scales[kColumns];  // of the sums, when a turn has a larger score than those before
};

// Keys or values of tokens [first, first + 32) as float32, zero from `last` on: pages may hold anything there.
MUSTER_INLINE void lay_out(const Prompt& prompt, const uint16_t* pages, int first, int last, float* out) {
  const int dim = prompt.cache->head_dim;
  const int end = first + kTurn < last ? first + kTurn : last;
  for (int t = first; t < end; t += kChunkTokens) {
    const Rows rows = rows_at(*prompt.cache, *prompt.context, pages + prompt.kv_head * dim, t, end);
    for (int i = 0; i < rows.count; ++i, out += dim)
      for (int d = 0; d < dim; d += 16) store(out + d, load_halves(rows.at[i] + d));
  }
  std::memset(out, 0, static_cast<size_t>(first + kTurn - end) * dim * sizeof(float));
}

template <int V>
MUSTER_INLINE void score_turn(const Prompt& prompt, int vector) {
  const int dim = prompt.cache->head_dim;
  for (int t = 0; t < kTurn; t += Sums<V>::kRows) {
    Sums<V> scores = {};
    multiply_add<V>(prompt.keys + t * dim, dim, 1, prompt.queries + vector * kLanes, dim, &scores);
    for (int i = 0; i < Sums<V>::kRows; ++i)
      for (int r = 0; r < V * kParts; ++r)
        store_register(prompt.weights + (t + i) * kColumns + vector * kLanes + r * kRegister, scores.sums[i][r]);
  }
}

template <int V>
MUSTER_INLINE void sum_turn(const Prompt& prompt, int vector) {
  const int dim = prompt.cache->head_dim;
  for (int d = 0; d < dim; d += Sums<V>::kRows) {
    Sums<V> sums;
    float* to = prompt.sums + d * kColumns + vector * kLanes;
    for (int i = 0; i < Sums<V>::kRows; ++i)
      for (int r = 0; r < V * kParts; ++r)
        sums.sums[i][r] = load_register(to + i * kColumns + r * kRegister) *
                          load_register(prompt.scales + vector * kLanes + r * kRegister);
    multiply_add<V>(prompt.values + d, 1, dim, prompt.weights + vector * kLanes, kTurn, &sums);
    for (int i = 0; i < Sums<V>::kRows; ++i)
      for (int r = 0; r < V * kParts; ++r) store_register(to + i * kColumns + r * kRegister, sums.sums[i][r]);
  }
}

// Scores of tokens from `first` on become weights, relative to the largest score so far.
MUSTER_INLINE void soften_turn(Prompt* prompt, int first, int vector) {
  float* scores = prompt->weights + vector * kLanes;
  const int length = prompt->context->length, position = prompt->position + vector * kLanes;
  const int window = prompt->context->window;
  if (first + kTurn - 1 > position || first <= position + kLanes - 1 - window) {
    Ints own;
    for (int i = 0; i < kLanes; ++i) own[i] = position + i < length ? position + i : length - 1;
    for (int t = 0; t < kTurn; ++t) {
      const Ints token = Ints{} + (first + t);
      const Ints hidden = (token > own) | (token <= own - window);
      store(scores + t * kColumns, hidden ? spread(-__builtin_inff()) : load(scores + t * kColumns));
    }
  }
  const Floats before = load(prompt->peaks + vector * kLanes);
  Floats peaks[4];
  for (auto& peak : peaks) peak = before;
  for (int t = 0; t < kTurn; t += 4)
    for (int i = 0; i < 4; ++i) peaks[i] = larger(peaks[i], load(scores + (t + i) * kColumns));
  const Floats peak = larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3]));
  const Floats scale = exp2_negative(before - peak);
  Floats total = load(prompt->totals + vector * kLanes) * scale;
#pragma GCC unroll 4
  for (int t = 0; t < kTurn; ++t) {
    const Floats weight = exp2_negative(load(scores + t * kColumns) - peak);
    total += weight;
    store(scores + t * kColumns, weight);
  }
  store(prompt->peaks + vector * kLanes, peak);
  store(prompt->totals + vector * kLanes, total);
  store(prompt->scales + vector * kLanes, scale);
}

template <int V>
void take_turn_of(Prompt* prompt, int first, int vector) {
  score_turn<V>(*prompt, vector);
  for (int v = 0; v < V; ++v) soften_turn(prompt, first, vector + v);
  sum_turn<V>(*prompt, vector);
}

// The vectors of columns that see anything of the turn that begins at `first`.
void take_turn(Prompt* prompt, int first) {
  const int behind = first - prompt->position - (kLanes - 1);  // a vector's last column sees the most of what comes late
  int vector = behind > 0 ? (behind + kLanes - 1) / kLanes : 0;
  const int end = (prompt->num_queries + kLanes - 1) / kLanes;
  for (; vector < end; vector += kVectorsAtOnce) {
    switch (end - vector < kVectorsAtOnce ? end - vector : kVectorsAtOnce) {
      case 1: take_turn_of<1>(prompt, first, vector); break;
#ifdef __AVX512F__
      case 2: take_turn_of<2>(prompt, first, vector); break;
      case 3: take_turn_of<3>(prompt, first, vector); break;
      default: take_turn_of<4>(prompt, first, vector); break;
#endif
    }
  }
}

// [lanes][D] to [D][64], zeros in lanes that no query has, and back.
MUSTER_INLINE void lay_out_queries(const float* q, size_t stride, int count, int dim, float* out) {
  std::memset(out, 0, static_cast<size_t>(dim) * kColumns * sizeof(float));
  int i = 0;
  for (; i + 4 <= count; i += 4)
    for (int d = 0; d < dim; d += 4) transpose_four(q + i * stride + d, stride, out + d * kColumns + i, kColumns);
  for (; i < count; ++i)
    for (int d = 0; d < dim; ++d) out[d * kColumns + i] = q[i * stride + d];
}

MUSTER_INLINE void put_back(const Prompt& prompt, float* out, size_t stride) {
  const int dim = prompt.cache->head_dim, count = prompt.num_queries;
  float factors[kColumns];
  for (int i = 0; i < count; i += kLanes) store(factors + i, 1.0f / load(prompt.totals + i));
  for (int d = 0; d < dim; ++d)
    for (int i = 0; i < count; i += kLanes)
      store(prompt.sums + d * kColumns + i, load(prompt.sums + d * kColumns + i) * load(factors + i));
  int i = 0;
  for (; i + 4 <= count; i += 4)
    for (int d = 0; d < dim; d += 4)
      transpose_four(prompt.sums + d * kColumns + i, kColumns, out + i * stride + d, stride);
  for (; i < count; ++i)
    for (int d = 0; d < dim; ++d) out[i * stride + d] = prompt.sums[d * kColumns + i];
}

void attend_many_plain(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                       size_t out_stride, int head, int begin, int end, Scratch* scratch) {
  const int dim = cache.head_dim;
  const size_t columns_size = static_cast<size_t>(dim) * kColumns, turn_size = static_cast<size_t>(dim) * kTurn;
  const size_t size = 2 * columns_size + 2 * turn_size + kTurn * kColumns;
  Prompt prompt;
  prompt.cache = &cache;
  prompt.context = &context;
  prompt.kv_head = head / (cache.num_heads / cache.num_kv_heads);
  prompt.queries = static_cast<float*>(reserve(scratch, size * sizeof(float)));
  prompt.sums = prompt.queries + columns_size;
  prompt.keys = prompt.sums + columns_size;
  prompt.values = prompt.keys + turn_size;
  prompt.weights = prompt.values + turn_size;
  for (int i = begin; i < end; i += kColumns) {
    const size_t row = context.first_row + i;
    prompt.num_queries = end - i < kColumns ? end - i : kColumns;
    prompt.position = context.length - context.num_queries + i;
    lay_out_queries(q + row * q_stride + head * dim, q_stride, prompt.num_queries, dim, prompt.queries);
    std::memset(prompt.sums, 0, columns_size * sizeof(float));
    for (int c = 0; c < kColumns; ++c) {
      prompt.peaks[c] = -1e30f;  // no infinity: their difference must be a number
      prompt.totals[c] = 0.0f;
    }
    const int last = prompt.position + prompt.num_queries;
    for (int t = first_visible(context, prompt.position) / kTurn * kTurn; t < last; t += kTurn) {
      lay_out(prompt, cache.keys, t, last, prompt.keys);
      lay_out(prompt, cache.values, t, last, prompt.values);
      take_turn(&prompt, t);
    }
    put_back(prompt, out + row * out_stride + head * dim, out_stride);
  }
}

}  // namespace
}  // namespace muster
