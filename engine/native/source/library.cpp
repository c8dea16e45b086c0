// The C interface: plain numbers and pointers, no exceptions across it. Functions return 0, or -1 on failure.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "first_best.h"
#include "model.h"
#include "pack.h"
#include "quantise_rows.h"

#define MUSTER_API extern "C" __attribute__((visibility("default")))

namespace {

using muster::Kernels;
using muster::Linear;
using muster::Matrix;
using muster::Model;

#ifdef __x86_64__
#ifdef MUSTER_WITH_AMX
// Linux hands out the tile registers on request, once per process.
bool tiles_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#if defined(MUSTER_WITH_AVX512) || defined(MUSTER_WITH_AVX512BF16) || defined(MUSTER_WITH_AMX)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(MUSTER_WITH_AVX512BF16) || defined(MUSTER_WITH_AMX)
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

#ifdef MUSTER_WITH_AMX
bool has_amx() {
  if (!has_avx512bf16()) return false;
  uint32_t a = 7, b, c = 0, d;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr uint32_t kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  return (d & kBf16) && (d & kTile) && (d & kInt8) && tiles_permitted();
}
#endif
#endif

enum Slot { kEmbedding, kHead, kQkv, kOutput, kGateUp, kDown };
enum Norm { kFinalNorm, kAttentionNorm, kMlpNorm, kQNorm, kKNorm };

Linear* linear_of(Model* model, int slot, int layer) {
  switch (slot) {
    case kEmbedding: return &model->embedding;
    case kHead: return &model->head;
    case kQkv: return &model->layers[layer].qkv;
    case kOutput: return &model->layers[layer].output;
    case kGateUp: return &model->layers[layer].gate_up;
    case kDown: return &model->layers[layer].down;
    default: return nullptr;
  }
}

const float** norm_of(Model* model, int norm, int layer) {
  switch (norm) {
    case kFinalNorm: return &model->final_norm;
    case kAttentionNorm: return &model->layers[layer].attention_norm;
    case kMlpNorm: return &model->layers[layer].mlp_norm;
    case kQNorm: return &model->layers[layer].q_norm;
    case kKNorm: return &model->layers[layer].k_norm;
    default: return nullptr;
  }
}

const float* copy(Model* model, const float* numbers, int count) {
  uint8_t* memory = model->arena.take(count * sizeof(float));
  if (memory != nullptr) std::memcpy(memory, numbers, count * sizeof(float));
  return reinterpret_cast<const float*>(memory);
}

const Kernels* kernels_named(const char* name) {
#ifdef MUSTER_WITH_AMX
  if (std::strcmp(name, "amx") == 0 && has_amx()) return muster::kernels_amx();
#endif
#ifdef MUSTER_WITH_AVX512BF16
  if (std::strcmp(name, "avx512bf16") == 0 && has_avx512bf16()) return muster::kernels_avx512bf16();
#endif
#ifdef MUSTER_WITH_AVX512
  if (std::strcmp(name, "avx512") == 0 && has_avx512()) return muster::kernels_avx512();
#endif
#ifdef __x86_64__
  if (std::strcmp(name, "avx2") == 0 && has_avx2()) return muster::kernels_avx2();
#endif
  if (std::strcmp(name, "portable") == 0) return muster::kernels_portable();
  return nullptr;
}

const muster::Quantisers* best_quantisers() {
#ifdef __x86_64__
  if (has_avx2()) return muster::quantisers_avx2();
#endif
  return muster::quantisers_portable();
}

}  // namespace

// Whether this processor, and this build, run the kernels of that name: one of INSTRUCTION_SETS of library.py.
MUSTER_API int muster_has_kernels(const char* name) { return kernels_named(name) != nullptr; }

MUSTER_API Model* muster_model_new(const muster::Shape* shape, const char* kernels, int num_threads, int num_spare,
                                   const float* frequencies) {
  const Kernels* table = kernels_named(kernels);
  if (table == nullptr) return nullptr;
  auto* model = new (std::nothrow) Model(*shape, table, num_threads, num_spare);
  if (model != nullptr) model->frequencies.assign(frequencies, frequencies + shape->head_dim / 2);
  return model;
}

// The decision about spare threads, for tests: `out` gets for each step whether the next one uses them.
MUSTER_API void muster_spare_decisions(const double* step_s, const double* waited_s, const double* now_s, int steps,
                                       uint8_t* out) {
  muster::Spare spare;
  for (int i = 0; i < steps; ++i) out[i] = spare.after_step(step_s[i], waited_s[i], now_s[i]);
}

MUSTER_API void muster_model_free(Model* model) { delete model; }

MUSTER_API int muster_model_set_norm(Model* model, int norm, int layer, const float* weight, int size) {
  const float** place = norm_of(model, norm, layer);
  if (place == nullptr || (*place = copy(model, weight, size)) == nullptr) return -1;
  return 0;
}

// Appends a matrix to a linear map. data: rows as stored in a checkpoint; order and bias may be null.
MUSTER_API int muster_model_add_matrix(Model* model, int slot, int layer, int type, const uint8_t* data, int rows,
                                       int cols, const int32_t* order, const float* bias) {
  Linear* linear = linear_of(model, slot, layer);
  const auto stored = static_cast<muster::Stored>(type);
  Matrix matrix;
  if (linear == nullptr || !muster::can_pack(stored, cols)) return -1;
  if (!muster::allocate(&matrix, stored, rows, cols, &model->arena)) return -1;
  if (bias != nullptr && (matrix.bias = copy(model, bias, rows)) == nullptr) return -1;
  model->threads().each(rows, 512, [&](int begin, int end, int) {
    muster::pack(matrix, stored, data, order, begin, end);
  });
  linear->parts.push_back(matrix);
  return 0;
}

// Floating-point weights, rows as stored, into blocks of GGUF's Q8_0, Q5_1 or Q4_1. Returns -2 where one is not finite.
MUSTER_API int muster_quantise(int from, const uint8_t* data, int rows, int cols, int to, uint8_t* out,
                               int num_threads) {
  const auto source = static_cast<muster::Stored>(from), target = static_cast<muster::Stored>(to);
  if (!muster::can_quantise(source, target, cols)) return -1;
  const muster::Quantisers& quantisers = *best_quantisers();
  std::atomic<bool> finite{true};
  muster::Threads threads(num_threads);
  threads.each(rows, 64, [&](int begin, int end, int) {
    if (!muster::quantise_rows(quantisers, source, data, cols, target, out, begin, end)) finite = false;
  });
  return finite ? 0 : -2;
}

// The output matrix is the embedding: one copy in memory.
MUSTER_API void muster_model_tie_head(Model* model) { model->head = model->embedding; }

MUSTER_API void muster_model_set_cache(Model* model, uint16_t* keys, uint16_t* values, int64_t layer_stride,
                                       int block_size) {
  model->keys = keys;
  model->values = values;
  model->layer_stride = layer_stride;
  model->block_size = block_size;
}

MUSTER_API void muster_plan(Model* model, const muster::Plan* plan) { model->plan(*plan); }

MUSTER_API void muster_forward(Model* model, const int64_t* token_ids, const int64_t* positions, float* out) {
  model->forward(token_ids, positions, out);
}

MUSTER_API void muster_logits(Model* model, const float* hidden, int rows, float* out) {
  model->logits(hidden, rows, out);
}

// Plan, forward pass, logits and choice of a step of sequences with one new token each.
MUSTER_API void muster_decode(Model* model, muster::Decode* step) { model->decode(step); }

// The lowest index of the largest of `count` numbers, for tests.
MUSTER_API int muster_first_best(const float* numbers, int count) { return muster::first_best(numbers, count); }

MUSTER_API void muster_attend(Model* model, int layer, const float* q, const float* k, const float* v, float* out) {
  model->attend(layer, q, k, v, out);
}

MUSTER_API void muster_linear(Model* model, int slot, int layer, const float* x, int rows, float* out) {
  model->apply(*linear_of(model, slot, layer), x, rows, out);
}
