// Products of few rows with codes of five and six bits.
#pragma once

#include "multiply.h"
#include "wide_codes.h"

namespace muster {
namespace {

// Adds to each of sixteen lanes the products of its four codes, 0 to 63, with the four inputs.
MUSTER_INLINE Ints add_dots(Ints total, Bytes64 codes, const int8_t* x) {
#if defined(__AVX512VNNI__)
  const __m512i sums = _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total), reinterpret_cast<__m512i>(codes),
                                           four_inputs(x));
  return reinterpret_cast<Ints>(sums);
#elif defined(__AVX2__)
  int32_t four;
  std::memcpy(&four, x, 4);
  const __m256i inputs = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
  union {
    Bytes64 all;
    __m256i half[2];
  } bytes{codes};
  IntHalves sums;
  sums.all = total;
  for (int i = 0; i < 2; ++i)  // two products of at most 63 * 127 stay within sixteen bits
    sums.half[i] = _mm256_add_epi32(sums.half[i],
                                    _mm256_madd_epi16(_mm256_maddubs_epi16(bytes.half[i], inputs), ones));
  return sums.all;
#else
  return add_products(total, codes, x);
#endif
}

#ifdef MUSTER_HAS_WORDS
MUSTER_INLINE Ints add_dots(Ints total, Bytes64 codes, const int16_t* x) {
  union {
    Bytes64 all;
    __m256i half[2];
  } bytes{codes};
  IntHalves sums;
  sums.all = total;
  for (int i = 0; i < 2; ++i) {
    const __m256i even = _mm256_and_si256(bytes.half[i], _mm256_set1_epi16(255));
    sums.half[i] = add_words(sums.half[i], even, _mm256_srli_epi16(bytes.half[i], 8), x);
  }
  return sums.all;
}
#endif

template <int M, int kInput, class Input>
MUSTER_INLINE void add_five_bits(const uint8_t* low, Bytes64 high, const Input* const (&x)[M], Ints (&sums)[M]) {
  const Bytes64 codes = five_bits<kInput>(low, high);
  for (int m = 0; m < M; ++m) sums[m] = add_dots(sums[m], codes, x[m] + kInput * 4);
  if constexpr (kInput < 7) add_five_bits<M, kInput + 1, Input>(low, high, x, sums);
}

// Four steps: the sixteen inputs that share a factor.
template <int M, int kInput, class Input>
MUSTER_INLINE void add_six_bits(const uint8_t* low, Bytes64 high, const Input* const (&x)[M], Ints (&sums)[M]) {
  const Bytes64 codes = six_bits<kInput>(low, high);
  for (int m = 0; m < M; ++m) sums[m] = add_dots(sums[m], codes, x[m] + kInput * 4);
  if constexpr (kInput % 4 < 3) add_six_bits<M, kInput + 1, Input>(low, high, x, sums);
}

template <int M, class Input>
void multiply_five_bits(const Matrix& matrix, const Activations& x, int row, float* out, size_t stride,
                        bool accumulate, int begin, int end) {
  for (int panel = begin; panel < end; ++panel) {
    const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
    Floats total[M];
    for (int m = 0; m < M; ++m) total[m] = Floats{};
    for (int b = 0; b < matrix.num_blocks; ++b) {
      if (row == 0) fetch_ahead<256 + 64 + 2 * 32>(base, b);  // codes, fifth bits, scales, minima
      const size_t index = block_index(x, row, b);
      const Input* inputs[M];
      Ints sums[M];
      for (int m = 0; m < M; ++m) {
        inputs[m] = inputs_of(x, inputs[m]) + (index + m) * kBlock;
        sums[m] = Ints{};
      }
      const Bytes64 high = load_bytes(base + matrix.high_offset + b * size_t{64});
      add_five_bits<M, 0, Input>(base + matrix.codes_offset + b * size_t{256}, high, inputs, sums);
      const Floats scale = load_float16(base + b * 32);
      const Floats minimum = load_float16(base + matrix.minima_offset + b * 32);
      for (int m = 0; m < M; ++m) {
        const Floats both = scale * x.scales[index + m];
        total[m] += __builtin_convertvector(sums[m], Floats) * both;
        total[m] += minimum * x.sums[index + m];
      }
    }
    for (int m = 0; m < M; ++m) put(matrix, panel, out + (row + m) * stride, accumulate, total[m]);
  }
}

// half_sums: of the codes of each block's two halves, [blocks][2].
template <int M, class Input>
void multiply_six_bits(const Matrix& matrix, const Activations& x, const int32_t* half_sums, int row, float* out,
                       size_t stride, bool accumulate, int begin, int end) {
  for (int panel = begin; panel < end; ++panel) {
    const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
    Floats total[M];
    for (int m = 0; m < M; ++m) total[m] = Floats{};
    for (int b = 0; b < matrix.num_blocks; ++b) {
      if (row == 0) fetch_ahead<256 + 128 + 32 + 4>(base, b);  // codes, high bits, factors, scales
      const size_t index = block_index(x, row, b);
      const Input* inputs[M];
      Ints first[M], second[M];
      for (int m = 0; m < M; ++m) {
        inputs[m] = inputs_of(x, inputs[m]) + (index + m) * kBlock;
        first[m] = Ints{} - kSixBitsZero * half_sums[(index + m) * 2];
        second[m] = Ints{} - kSixBitsZero * half_sums[(index + m) * 2 + 1];
      }
      const uint8_t* low = base + matrix.codes_offset + b * size_t{256};
      const uint8_t* high = base + matrix.high_offset + b * size_t{128};
      add_six_bits<M, 0, Input>(low, load_bytes(high), inputs, first);
      add_six_bits<M, 4, Input>(low, load_bytes(high + 64), inputs, second);
      const uint8_t* factors = base + matrix.factors_offset + b * 2 * kPanel;
      const Floats one = load_factors(factors), other = load_factors(factors + kPanel);
      const Floats scale = load_float16(base + b / 8 * 32);
      for (int m = 0; m < M; ++m) {
        // With inputs of eight bits whole numbers below 2^24: exact, in whatever order they are added.
        const Floats whole = __builtin_convertvector(first[m], Floats) * one +
                             __builtin_convertvector(second[m], Floats) * other;
        total[m] += whole * (scale * x.scales[index + m]);
      }
    }
    for (int m = 0; m < M; ++m) put(matrix, panel, out + (row + m) * stride, accumulate, total[m]);
  }
}

template <class Input>
MUSTER_INLINE const int32_t* sum_halves(const Activations& x, Scratch* scratch) {
  const size_t rows = (static_cast<size_t>(x.rows) + 15) / 16 * 16;
  auto* sums = static_cast<int32_t*>(reserve(scratch, rows * x.num_blocks * 2 * sizeof(int32_t)));
  for (int row = 0; row < x.rows; ++row)
    for (int b = 0; b < x.num_blocks; ++b) {
      const size_t index = block_index(x, row, b);
      for (int half = 0; half < 2; ++half) {
        int32_t total = 0;
        const Input* inputs = inputs_of(x, static_cast<const Input*>(nullptr)) + index * kBlock + half * kGroup;
        for (int k = 0; k < kGroup; ++k) total += inputs[k];
        sums[index * 2 + half] = total;
      }
    }
  return sums;
}

template <int M, class Input>
void multiply_wide_rows(const Matrix& matrix, const Activations& x, const int32_t* half_sums, int row, float* out,
                        size_t stride, bool accumulate, int begin, int end) {
  if (matrix.codes == Codes::kFiveBits)
    multiply_five_bits<M, Input>(matrix, x, row, out, stride, accumulate, begin, end);
  else
    multiply_six_bits<M, Input>(matrix, x, half_sums, row, out, stride, accumulate, begin, end);
}

template <class Input = int8_t>
void multiply_wide(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                   int end, Scratch* scratch) {
  const int32_t* sums = matrix.codes == Codes::kSixBits ? sum_halves<Input>(x, scratch) : nullptr;
  walk_panels(x.rows, begin, end, [&](auto num_rows, int row, int first, int last) {
    multiply_wide_rows<decltype(num_rows)::value, Input>(matrix, x, sums, row, out, stride, accumulate, first, last);
  });
}

}  // namespace
}  // namespace muster
