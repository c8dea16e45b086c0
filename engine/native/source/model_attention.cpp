// The step's heads: rotation, the cache, and who attends on which thread.
#include <cmath>
#include <cstring>

#include "model.h"

namespace muster {
namespace {

constexpr float kLog2e = 1.44269504088896f;
// Query tokens that one piece of a prefill covers: long enough to be worth handing over.
constexpr int kQueriesPerPiece = 64;

}  // namespace

void Model::plan(const Plan& plan) {
  const size_t table_size = static_cast<size_t>(plan.num_sequences) * plan.table_width;
  tables_.assign(plan.block_tables, plan.block_tables + table_size);
  slots_.assign(plan.slots, plan.slots + plan.num_tokens);
  contexts_.clear();
  num_decodes_ = 0;
  num_tokens_ = plan.num_tokens;
  int row = 0;
  for (int i = 0; i < plan.num_sequences; ++i) {
    Context context{};
    context.blocks = tables_.data() + static_cast<size_t>(i) * plan.table_width;
    context.num_queries = plan.query_lens[i];
    context.length = plan.context_lens[i];
    context.first_row = row;
    context.window = shape_.window;
    contexts_.push_back(context);
    row += plan.query_lens[i];
    if (plan.query_lens[i] == 1) ++num_decodes_;
  }
}

Cache Model::cache_of(int layer) const {
  return {keys + layer * layer_stride, values + layer * layer_stride, block_size,
          shape_.num_kv_heads,         shape_.head_dim,               shape_.num_heads};
}

void Model::find_angles(const int64_t* positions) {
  const int half = shape_.head_dim / 2;
  auto* cosines = static_cast<float*>(reserve(&angles_, static_cast<size_t>(num_tokens_) * half * 2 * sizeof(float)));
  threads_.each(num_tokens_, row_grain(num_tokens_), [&](int begin, int end, int) {
    for (int t = begin; t < end; ++t) {
      float* row = cosines + static_cast<size_t>(t) * half * 2;
      for (int i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[t]) * frequencies[i];
        row[i] = cosf(angle);
        row[half + i] = sinf(angle);
      }
    }
  });
}

void Model::store_row(const Cache& cache, int row, const float* k, const float* v) {
  const int width = shape_.num_kv_heads * shape_.head_dim;
  const size_t place = static_cast<size_t>(slots_[row]) * width;
  kernels_->round(k, width, cache.keys + place);
  kernels_->round(v, width, cache.values + place);
}

// Rows of the projected queries, keys and values: normalised and rotated in place, keys and values stored.
void Model::finish_heads(const Layer& layer, const Cache& cache, int first, int last) {
  const int dim = shape_.head_dim, num_heads = shape_.num_heads, num_kv_heads = shape_.num_kv_heads;
  const int width = (num_heads + 2 * num_kv_heads) * dim;
  const float scale = kLog2e / std::sqrt(static_cast<float>(dim));
  for (int t = first; t < last; ++t) {
    float* row = reinterpret_cast<float*>(projected_.data) + static_cast<size_t>(t) * width;
    const float* cosines = reinterpret_cast<float*>(angles_.data) + static_cast<size_t>(t) * dim;
    for (int h = 0; h < num_heads + num_kv_heads; ++h) {
      float* head = row + h * dim;
      const float* norm = h < num_heads ? layer.q_norm : layer.k_norm;
      if (norm != nullptr) kernels_->normalise(head, norm, dim, shape_.norm_eps, head);
      kernels_->rotate(head, cosines, cosines + dim / 2, dim);
    }
    for (int i = 0; i < num_heads * dim; ++i) row[i] *= scale;
    const float* k = row + num_heads * dim;
    store_row(cache, t, k, k + num_kv_heads * dim);
  }
}

void Model::attend(int layer, const float* q, const float* k, const float* v, float* out) {
  const int q_width = shape_.num_heads * shape_.head_dim, k_width = shape_.num_kv_heads * shape_.head_dim;
  const float scale = kLog2e / std::sqrt(static_cast<float>(shape_.head_dim));
  auto* scaled = static_cast<float*>(reserve(&projected_, static_cast<size_t>(num_tokens_) * q_width * sizeof(float)));
  const Cache cache = cache_of(layer);
  for (int t = 0; t < num_tokens_; ++t) {
    const size_t row = t;
    for (int i = 0; i < q_width; ++i) scaled[row * q_width + i] = q[row * q_width + i] * scale;
    store_row(cache, t, k + row * k_width, v + row * k_width);
  }
  attend_heads(cache, scaled, q_width, out);
}

// q: [T] rows of `q_stride` floats that begin with the scaled queries; out: [T][N * D].
void Model::attend_heads(const Cache& cache, const float* q, int q_stride, float* out) {
  const int num_heads = shape_.num_heads, group = num_heads / shape_.num_kv_heads;
  const int out_stride = num_heads * shape_.head_dim;
  // Lanes are full when several groups go together; a lone sequence is spread over the threads instead.
  const bool spread = num_decodes_ < 2 * threads_.count() && threads_.count() > 1;
  const int per_piece = spread ? group : kLanes / group * group;
  const int pieces = (num_heads + per_piece - 1) / per_piece;
  threads_.each(num_decodes_ * pieces, 1, [&](int begin, int end, int thread) {
    for (int piece = begin; piece < end; ++piece) {
      const int first_head = piece % pieces * per_piece;
      const int count = num_heads - first_head < per_piece ? num_heads - first_head : per_piece;
      kernels_->attend_one(cache, contexts_[piece / pieces], q, out, q_stride, out_stride, first_head, count,
                           &scratches_[thread]);
    }
  });
  if (has_prompt()) attend_prefills(cache, q, q_stride, out);
}

void Model::attend_prefills(const Cache& cache, const float* q, int q_stride, float* out) {
  const int num_heads = shape_.num_heads, num_kv_heads = shape_.num_kv_heads, dim = shape_.head_dim;
  for (size_t i = num_decodes_; i < contexts_.size(); ++i) {
    Context& context = contexts_[i];
    if (kernels_->transpose_values != nullptr) {
      // An odd number of cache lines: rows of a tile must not compete for the same place in the cache.
      context.transposed_stride = static_cast<int64_t>((context.length + 31) / 32 | 1) * 32;
      const size_t size = static_cast<size_t>(num_kv_heads) * dim * context.transposed_stride * 2;
      context.transposed = static_cast<uint16_t*>(reserve(&transposed_, size));
      threads_.each(num_kv_heads, 1, [&](int begin, int end, int) {
        for (int head = begin; head < end; ++head) kernels_->transpose_values(cache, context, head);
      });
    }
    const int pieces = (context.num_queries + kQueriesPerPiece - 1) / kQueriesPerPiece;
    threads_.each(num_heads * pieces, 1, [&](int first, int last, int thread) {
      for (int piece = first; piece < last; ++piece) {
        const int begin = piece % pieces * kQueriesPerPiece;
        const int end = begin + kQueriesPerPiece < context.num_queries ? begin + kQueriesPerPiece : context.num_queries;
        kernels_->attend_many(cache, context, q, out, q_stride, num_heads * dim, piece / pieces, begin, end,
                              &scratches_[thread]);
      }
    });
  }
}

}  // namespace muster
