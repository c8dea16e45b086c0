// What the step asks of the processor: plain data and one table of functions per instruction set.
//
// Letters: M rows of activations (tokens), N outputs and K inputs of a matrix, D head dimension.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster {

constexpr int kPanel = 16;   // outputs of a matrix that lie together: the lanes of a 512-bit register
constexpr int kBlock = 32;   // inputs that share a scale
constexpr int kLanes = 16;   // query heads (decoding) or query tokens (prefill) that attend together
constexpr int kRowPad = 32;  // activations are allocated in multiples of this many rows

enum class Codes : int32_t { kFourBits = 0, kEightBits = 1, kBfloat16 = 2, kFiveBits = 3, kSixBits = 4 };

// A matrix of N outputs and K inputs, repacked in panels of 16 outputs. A panel holds, in this order,
//   float16 scales [K/32][16], padded to 64 bytes
//   float16 minima [K/32][16], padded to 64 bytes          (four bits only)
//   codes: four bits   [K/32][4][16][4 bytes]: byte i of lane n holds inputs 8j+i (low half) and 8j+4+i (high half)
//          eight bits  [K/32][8][16][4]      : signed; input 4j+i of lane n
//          bfloat16    [K/2][16][2]          : no scales; the operand order of dot products of pairs
//   five and six bits: see wide_codes.h
// Weight = scale * code + minimum.
struct Matrix {
  Codes codes;
  int32_t rows;        // N
  int32_t cols;        // K
  int32_t num_panels;  // ceil(N / 16)
  int32_t num_blocks;  // ceil(K / 32)
  int32_t reserved;
  size_t minima_offset;  // within a panel
  size_t codes_offset;
  size_t factors_offset;  // six bits only
  size_t high_offset;     // five and six bits only
  size_t panel_bytes;
  const uint8_t* data;
  const float* bias;        // [N] or null
  const uint8_t* after;     // what a step reads next; null: unknown
  size_t after_bytes;
};

// How the rows of a product's left side have to be prepared.
enum class Format : int32_t { kFloat = 1, kInt8 = 2, kBfloat16 = 4, kInt16 = 8 };

// The left side of a product: M rows of K inputs in the formats that its right sides need. Blocks of 32 inputs lie in
// tile order, [M/16][K/32][16 rows], so that sixteen rows of a block follow each other: see `block_index`.
struct Activations {
  int32_t rows;
  int32_t cols;        // K
  int32_t num_blocks;  // ceil(K / 32)
  int32_t formats;     // bits of Format that are filled
  float* values;       // [M][32 * num_blocks], zero behind K
  int8_t* codes;       // [blocks][32], zero behind K
  int16_t* words;      // [blocks][32] codes of sixteen bits, zero behind K; of each four, the second and third change places
  float* scales;       // [blocks] of codes or words
  float* sums;         // [blocks] scale * sum of codes or words
  int32_t* code_sums;  // [blocks]
  uint16_t* halves;    // [blocks][32] bfloat16, zero behind K
};

static inline size_t block_index(const Activations& x, size_t row, size_t block) {
  return (row / 16 * x.num_blocks + block) * 16 + row % 16;
}

// Memory of one thread; grows, never shrinks.
struct Scratch {
  uint8_t* data = nullptr;
  size_t size = 0;
};
void* reserve(Scratch* scratch, size_t bytes);  // 64-byte aligned; contents are lost when it grows

// The paged cache of one layer: [num_blocks][block_size][num_kv_heads][D] bfloat16, twice.
struct Cache {
  uint16_t* keys;
  uint16_t* values;
  int32_t block_size;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t num_heads;
};

// One sequence's share of a step.
struct Context {
  const int32_t* blocks;  // block table
  int32_t num_queries;    // new tokens
  int32_t length;         // tokens after this step
  int32_t first_row;      // of its new tokens in the step
  int32_t window;         // tokens that one may see, itself included
  uint16_t* transposed;   // prefill: [num_kv_heads][D][transposed_stride], values by dimension
  int64_t transposed_stride;
};

// What rows are multiplied for: decoding sequences alone, a step with a prompt's chunk, or the queries, keys and values
// of such a step, where rounding does most harm.
enum class Use : int32_t { kDecoding, kPrompt, kPromptKeys };

struct Kernels {
  const char* name;
  Format (*format)(Codes codes, int rows, Use use);
  // out[m][n] (+)= sum over k of x[m][k] * w[n][k], for panels [begin, end). `stride`: floats between rows of out.
  void (*multiply)(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                   int end, Scratch* scratch);
  // to = silu(x * gate) * (x * up), in bfloat16, for panels [begin, end) of two matrices without bias whose N is a
  // multiple of 32, where `format` asks for bfloat16; null where that does not pay.
  void (*multiply_gated)(const Matrix& gate, const Matrix& up, const Activations& x, const Activations& to, int begin,
                         int end, Scratch* scratch);
  void (*read_row)(const Matrix& matrix, int row, float* out);  // one output's weights: an embedding
  void (*normalise)(const float* x, const float* weight, int size, float eps, float* out);
  void (*gate)(const float* gate, const float* up, int size, float* out);  // silu(gate) * up
  void (*prepare)(const float* values, int row, const Activations& x);     // fills `x.formats` of one row
  void (*rotate)(float* head, const float* cosines, const float* sines, int head_dim);
  void (*round)(const float* values, int size, uint16_t* out);  // to bfloat16
  // q: [T][heads * D] float32 with `q_stride` floats between rows; out alike. Heads [first_head, +num_heads) of a
  // decoding sequence: whole groups that share keys.
  void (*attend_one)(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                     size_t out_stride, int first_head, int num_heads, Scratch* scratch);
  // Query tokens [begin, end) of a sequence, one head.
  void (*attend_many)(const Cache& cache, const Context& context, const float* q, float* out, size_t q_stride,
                      size_t out_stride, int head, int begin, int end, Scratch* scratch);
  // Fills `context.transposed` of one key/value head for `attend_many`; null where that is not needed.
  void (*transpose_values)(const Cache& cache, const Context& context, int kv_head);
};

// Null when the processor, or the compiler that built the library, lacks the instructions.
const Kernels* kernels_portable();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_avx512bf16();
const Kernels* kernels_amx();

}  // namespace muster
