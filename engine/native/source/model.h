// A transformer of the Llama family, step by step.
//
// Letters: T tokens of the step, H hidden, N query heads, K key/value heads, D head dimension, I intermediate,
// V vocabulary.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace muster {

struct Shape {
  int32_t vocab_size;
  int32_t hidden_size;
  int32_t intermediate_size;
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t window;  // tokens that one sees, itself included; 0: all
  float norm_eps;
  int32_t reserved;
};

// Matrices that share their input; their outputs follow each other.
struct Linear {
  std::vector<Matrix> parts;
  int outputs() const;
};

struct Layer {
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  Linear qkv, output, gate_up, down;
};

// Who is computed in a step: sequences with one new token first. Pointers live until the next plan.
struct Plan {
  int32_t num_sequences;
  int32_t num_tokens;
  const int32_t* query_lens;    // [B]
  const int32_t* context_lens;  // [B] the new tokens included
  const int64_t* slots;         // [T] block * block_size + offset
  const int32_t* block_tables;  // [B][table_width]
  int32_t table_width;
  int32_t reserved;
};

// A step of sequences with one new token each. Pointers live until it is over.
struct Decode {
  int32_t num_sequences;
  int32_t table_width;
  const int64_t* token_ids;     // [B]
  const int64_t* positions;     // [B]
  const int32_t* block_tables;  // [B][table_width]
  float* logits;                // out: [B][V]
  int64_t* best;                // out: [B] the lowest index of each row's largest logit; may be null
  double forward_s;             // out: how long each part took
  double logits_s;
  double best_s;
};

class Model {
 public:
  Model(const Shape& shape, const Kernels* kernels, int num_threads, int num_spare);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Set once, before the first step.
  Arena arena;
  Linear embedding, head;
  const float* final_norm = nullptr;
  std::vector<float> frequencies;  // [D / 2]
  std::vector<Layer> layers;
  uint16_t* keys = nullptr;    // [layers][num_blocks][block_size][K][D]
  uint16_t* values = nullptr;  // alike
  int64_t layer_stride = 0;    // numbers between layers
  int block_size = 0;

  Threads& threads() { return threads_; }
  const Kernels& kernels() const { return *kernels_; }
  const Shape& shape() const { return shape_; }

  void plan(const Plan& plan);
  // out: [T][H], the last layer's output before the final norm.
  void forward(const int64_t* token_ids, const int64_t* positions, float* out);
  // hidden: [R][H]; out: [R][V].
  void logits(const float* hidden, int rows, float* out);
  // All of a step that needs no other plan.
  void decode(Decode* step);
  // logits: [R][V]; best: [R].
  void choose_best(const float* logits, int rows, int64_t* best);
  // Stores keys and values of the planned tokens and attends. q: [T][N * D]; k, v: [T][K * D]; rotated.
  void attend(int layer, const float* q, const float* k, const float* v, float* out);
  // One matrix product, x: [rows][inputs], out: [rows][outputs].
  void apply(const Linear& linear, const float* x, int rows, float* out);

 private:
  enum Stage { kInput, kAttended, kGated, kNumStages };

  void plan(const Decode& step);
  Activations& prepare_for(Stage stage, const Linear& linear, int rows, Use use);
  void multiply(const Linear& linear, const Activations& x, float* out, int stride, bool accumulate);
  void run_layer(int index, float* x);
  void run_gates(const Layer& layer, const Activations& input, const Activations& inner, int grain);
  void run_gates_at_once(const Layer& layer, const Activations& input, const Activations& inner);
  bool gates_fit(const Layer& layer, int tokens) const;
  void link_matrices();
  void finish_heads(const Layer& layer, const Cache& cache, int first, int last);
  void store_row(const Cache& cache, int row, const float* k, const float* v);
  void attend_heads(const Cache& cache, const float* q, int q_stride, float* out);
  void attend_prefills(const Cache& cache, const float* q, int q_stride, float* out);
  void find_angles(const int64_t* positions);
  Cache cache_of(int layer) const;
  Use use() const { return has_prompt() ? Use::kPrompt : Use::kDecoding; }
  bool has_prompt() const { return num_decodes_ < static_cast<int>(contexts_.size()); }
  int panel_grain(const Matrix& matrix) const;
  int row_grain(int rows) const;

  Shape shape_;
  const Kernels* kernels_;
  Threads threads_;
  std::vector<Scratch> scratches_;
  std::vector<Context> contexts_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> tables_;
  bool linked_ = false;
  int num_decodes_ = 0;
  int num_tokens_ = 0;
  Activations activations_[kNumStages] = {};
  Scratch activation_memory_[kNumStages];
  Scratch stream_, projected_, attended_, gated_, angles_, transposed_, hidden_;
};

}  // namespace muster
