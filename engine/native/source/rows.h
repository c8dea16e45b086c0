// What is done to one row at a time between the matrix products.
#pragma once

#include "wide_codes.h"

namespace muster {
namespace {

void normalise(const float* x, const float* weight, int size, float eps, float* out) {
  Floats squares{};
  int i = 0;
  for (; i + 16 <= size; i += 16) squares += load(x + i) * load(x + i);
  float total = sum(squares);
  for (int j = i; j < size; ++j) total += x[j] * x[j];
  const float factor = 1.0f / __builtin_sqrtf(total / size + eps);
  for (int j = 0; j + 16 <= size; j += 16) store(out + j, load(x + j) * factor * load(weight + j));
  for (; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

MUSTER_INLINE Floats silu(Floats x) {
  // 1 / (1 + e^-x), from the power of the negative magnitude: no overflow on either side.
  const Floats power = exp2_negative((x < 0.0f ? x : -x) * 1.44269504f);
  const Floats top = x * (x < 0.0f ? power : spread(1.0f));
#ifdef __AVX512F__
  // A division holds up the port that the tile unit shares; two steps from fourteen bits are as exact.
  const __m512 below = reinterpret_cast<__m512>(1.0f + power);
  const Floats guess = reinterpret_cast<Floats>(_mm512_rcp14_ps(below));
  const Floats divisor = reinterpret_cast<Floats>(below);
  const Floats first = guess * (2.0f - divisor * guess);
  return top * (first * (2.0f - divisor * first));
#else
  return top / (1.0f + power);
#endif
}

void gate(const float* gate, const float* up, int size, float* out) {
  int i = 0;
  for (; i + 16 <= size; i += 16) store(out + i, silu(load(gate + i)) * load(up + i));
  if (i < size) {
    float padded[32] = {};
    std::memcpy(padded, gate + i, (size - i) * sizeof(float));
    std::memcpy(padded + 16, up + i, (size - i) * sizeof(float));
    store(padded, silu(load(padded)) * load(padded + 16));
    std::memcpy(out + i, padded, (size - i) * sizeof(float));
  }
}

void rotate(float* head, const float* cosines, const float* sines, int head_dim) {
  const int half = head_dim / 2;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const Floats first = load(head + i), second = load(head + half + i);
    const Floats c = load(cosines + i), s = load(sines + i);
    store(head + i, first * c - second * s);
    store(head + half + i, second * c + first * s);
  }
  for (; i < half; ++i) {
    const float first = head[i], second = head[half + i];
    head[i] = first * cosines[i] - second * sines[i];
    head[half + i] = second * cosines[i] + first * sines[i];
  }
}

void round_row(const float* values, int size, uint16_t* out) {
  int i = 0;
  for (; i + 16 <= size; i += 16) store_halves(out + i, load(values + i));
  for (; i < size; ++i) out[i] = to_bfloat16(values[i]);
}

// Eight-bit codes of 32 numbers: each is the nearest multiple of a 127th of the largest magnitude.
MUSTER_INLINE void quantise_block(const float* values, const Activations& x, size_t block) {
  Floats low = load(values), high = load(values + 16);
  const Floats magnitude = larger(larger(low, -low), larger(high, -high));
  const float limit = largest(magnitude);
  const float scale = limit / 127.0f;
  const float inverse = limit > 0.0f ? 127.0f / limit : 0.0f;
  const float magic = 12582912.0f;  // adding it leaves the rounded integer in the low bits
  const Ints offset = Ints{} + 0x4b400000;
  const Ints a = reinterpret_cast<Ints>(low * inverse + magic) - offset;
  const Ints b = reinterpret_cast<Ints>(high * inverse + magic) - offset;
  typedef int8_t Bytes __attribute__((vector_size(16)));
  const Bytes first = __builtin_convertvector(a, Bytes), second = __builtin_convertvector(b, Bytes);
  std::memcpy(x.codes + block * kBlock, &first, 16);
  std::memcpy(x.codes + block * kBlock + 16, &second, 16);
  const int32_t total = sum(a + b);
  x.scales[block] = scale;
  x.code_sums[block] = total;
  x.sums[block] = scale * static_cast<float>(total);
}

#ifdef MUSTER_HAS_WORDS
// Codes of fifteen bits. Their scale is a power of two, so that whole numbers stay whole.
MUSTER_INLINE void quantise_words(const float* values, const Activations& x, size_t block) {
  const Floats low = load(values), high = load(values + 16);
  const float limit = largest(larger(larger(low, -low), larger(high, -high)));
  uint32_t bits;
  std::memcpy(&bits, &limit, 4);
  const uint32_t exponent = (bits >> 23 & 255) < 40 ? 40 : bits >> 23 & 255;  // what is as small as that becomes zero
  const uint32_t scale_bits = (exponent - 13) << 23, inverse_bits = (254 + 13 - exponent) << 23;
  float scale, inverse;
  std::memcpy(&scale, &scale_bits, 4);
  std::memcpy(&inverse, &inverse_bits, 4);
  const float magic = 12582912.0f;  // adding it leaves the rounded integer in the low bits
  const Ints offset = Ints{} + 0x4b400000;
  const Ints a = reinterpret_cast<Ints>(low * inverse + magic) - offset;
  const Ints b = reinterpret_cast<Ints>(high * inverse + magic) - offset;
  typedef int16_t Words16 __attribute__((vector_size(32)));
  Words16 parts[2] = {__builtin_convertvector(a, Words16), __builtin_convertvector(b, Words16)};
  __m256i* out = reinterpret_cast<__m256i*>(x.words + block * kBlock);
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7,
                                         8, 9, 12, 13, 10, 11, 14, 15);
  for (int i = 0; i < 2; ++i)
    _mm256_storeu_si256(out + i, _mm256_shuffle_epi8(reinterpret_cast<__m256i>(parts[i]), order));
  x.scales[block] = scale;
  x.sums[block] = scale * static_cast<float>(sum(a + b));
}
#endif

void prepare(const float* values, int row, const Activations& x) {
  const int num_blocks = x.num_blocks, whole = x.cols / kBlock;
  float tail[kBlock] = {};
  if (whole < num_blocks) std::memcpy(tail, values + whole * kBlock, (x.cols - whole * kBlock) * sizeof(float));
  for (int b = 0; b < num_blocks; ++b) {
    const float* block = b < whole ? values + b * kBlock : tail;
    const size_t index = block_index(x, row, b);
    if (x.formats & static_cast<int>(Format::kInt8)) quantise_block(block, x, index);
#ifdef MUSTER_HAS_WORDS
    if (x.formats & static_cast<int>(Format::kInt16)) quantise_words(block, x, index);
#endif
    if (x.formats & static_cast<int>(Format::kBfloat16)) {
      store_halves(x.halves + index * kBlock, load(block));
      store_halves(x.halves + index * kBlock + 16, load(block + 16));
    }
    if (x.formats & static_cast<int>(Format::kFloat)) {
      std::memcpy(x.values + (static_cast<size_t>(row) * num_blocks + b) * kBlock, block, kBlock * sizeof(float));
    }
  }
}

// One output's weights, gathered from its panel.
void read_row(const Matrix& matrix, int row, float* out) {
  if (matrix.codes == Codes::kFiveBits || matrix.codes == Codes::kSixBits) return read_wide_row(matrix, row, out);
  const uint8_t* panel = matrix.data + (row / kPanel) * matrix.panel_bytes;
  const uint8_t* codes = panel + matrix.codes_offset;
  const int lane = row % kPanel;
  if (matrix.codes == Codes::kBfloat16) {
    const auto* pairs = reinterpret_cast<const uint16_t*>(codes);
    for (int k = 0; k < matrix.cols; ++k) out[k] = from_bfloat16(pairs[((k / 2) * kPanel + lane) * 2 + k % 2]);
    return;
  }
  const bool four = matrix.codes == Codes::kFourBits;
  for (int b = 0; b < matrix.num_blocks; ++b) {
    const Floats scales = load_float16(panel + b * 32);
    const float scale = scales[lane];
    const float minimum = four ? load_float16(panel + matrix.minima_offset + b * 32)[lane] : 0.0f;
    for (int k = 0; k < kBlock; ++k) {
      int code;
      if (four) {
        const uint8_t byte = codes[b * 256 + (k / 8) * 64 + lane * 4 + k % 4];
        code = k % 8 < 4 ? byte & 15 : byte >> 4;
      } else {
        code = reinterpret_cast<const int8_t*>(codes)[b * 512 + (k / 4) * 64 + lane * 4 + k % 4];
      }
      out[b * kBlock + k] = scale * static_cast<float>(code) + minimum;
    }
  }
}

}  // namespace
}  // namespace muster
