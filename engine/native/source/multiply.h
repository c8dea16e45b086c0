// Products of few rows: whole panels stream by once, each unpacked piece serves several rows.
#pragma once

#include "vector.h"
#ifndef __AVX2__
#include "dot_portable.h"
#endif

namespace muster {
namespace {

#ifdef __AVX512F__
constexpr int kRowsAtOnce = 8;  // sums of a block and of the row for each, and what is unpacked: 32 registers
#else
constexpr int kRowsAtOnce = 4;
#endif

// How far ahead of its use a panel is fetched. A processor's own prefetcher sees three short streams in each panel and
// loses all of them at its end; but panels lie one after another, and so, mostly, do the matrices of a step.
constexpr size_t kFetchAhead = 8192;

// What lies that far behind the share of block `b` of a panel, `Bytes` for each block.
template <int Bytes>
MUSTER_INLINE void fetch_ahead(const uint8_t* panel, size_t b) {
  const uint8_t* ahead = panel + b * Bytes + kFetchAhead;
#pragma GCC unroll 9
  for (int line = 0; line * 64 < Bytes; ++line) __builtin_prefetch(ahead + line * 64);
}

MUSTER_INLINE void put(const Matrix& matrix, int panel, float* out, bool accumulate, Floats result) {
  const int first = panel * kPanel;
  if (matrix.rows - first >= kPanel) {
    if (matrix.bias != nullptr) result += load(matrix.bias + first);
    if (accumulate) result += load(out + first);
    store(out + first, result);
    return;
  }
  for (int lane = 0; lane < matrix.rows - first; ++lane) {
    const float bias = matrix.bias != nullptr ? matrix.bias[first + lane] : 0.0f;
    out[first + lane] = result[lane] + bias + (accumulate ? out[first + lane] : 0.0f);
  }
}

// Sums of products of a block's codes with four inputs at a time; lanes are outputs.
#ifdef __AVX512VNNI__
MUSTER_INLINE __m512i four_inputs(const int8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  return _mm512_set1_epi32(bytes);
}

template <int M>
MUSTER_INLINE void dot_four_bits(const uint8_t* codes, const int8_t* const (&x)[M], Ints (&sums)[M]) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i total[M];
  for (int m = 0; m < M; ++m) total[m] = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i packed = _mm512_loadu_si512(codes + j * 64);
    const __m512i low = _mm512_and_si512(packed, mask);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask);
    for (int m = 0; m < M; ++m) {
      total[m] = _mm512_dpbusd_epi32(total[m], low, four_inputs(x[m] + j * 8));
      total[m] = _mm512_dpbusd_epi32(total[m], high, four_inputs(x[m] + j * 8 + 4));
    }
  }
  for (int m = 0; m < M; ++m) sums[m] = reinterpret_cast<Ints>(total[m]);
}

template <int M>
MUSTER_INLINE void dot_eight_bits(const uint8_t* codes, const int8_t* const (&x)[M], const int32_t (&code_sums)[M],
                                  Ints (&sums)[M]) {
  // The instruction wants one side unsigned: codes + 128 stand in, and 128 times the inputs' sum is taken off.
  const __m512i flip = _mm512_set1_epi8(-128);
  __m512i total[M];
  for (int m = 0; m < M; ++m) total[m] = _mm512_set1_epi32(-128 * code_sums[m]);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const __m512i shifted = _mm512_xor_si512(_mm512_loadu_si512(codes + j * 64), flip);
    for (int m = 0; m < M; ++m) total[m] = _mm512_dpbusd_epi32(total[m], shifted, four_inputs(x[m] + j * 4));
  }
  for (int m = 0; m < M; ++m) sums[m] = reinterpret_cast<Ints>(total[m]);
}
#elif defined(__AVX2__)
MUSTER_INLINE __m256i dot_bytes(__m256i codes, const int8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  // Magnitudes times inputs with the codes' signs: no sum of two such products leaves sixteen bits.
  const __m256i signed_inputs = _mm256_sign_epi8(_mm256_set1_epi32(bytes), codes);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), signed_inputs);
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

union IntHalves {
  Ints all;
  __m256i half[2];
};

template <int M>
MUSTER_INLINE void dot_four_bits(const uint8_t* codes, const int8_t* const (&x)[M], Ints (&sums)[M]) {
  const __m256i mask = _mm256_set1_epi8(15);
  IntHalves total[M];
  for (int m = 0; m < M; ++m) total[m].all = Ints{};
  for (int j = 0; j < 8; ++j) {
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + j * 32));
    const __m256i low = _mm256_and_si256(packed, mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
    for (int m = 0; m < M; ++m) {
      __m256i& half = total[m].half[j % 2];
      half = _mm256_add_epi32(half, dot_bytes(low, x[m] + j / 2 * 8));
      half = _mm256_add_epi32(half, dot_bytes(high, x[m] + j / 2 * 8 + 4));
    }
  }
  for (int m = 0; m < M; ++m) sums[m] = total[m].all;
}

template <int M>
MUSTER_INLINE void dot_eight_bits(const uint8_t* codes, const int8_t* const (&x)[M], const int32_t (&)[M],
                                  Ints (&sums)[M]) {
  IntHalves total[M];
  for (int m = 0; m < M; ++m) total[m].all = Ints{};
  for (int j = 0; j < 16; ++j) {
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + j * 32));
    for (int m = 0; m < M; ++m) {
      __m256i& half = total[m].half[j % 2];
      half = _mm256_add_epi32(half, dot_bytes(packed, x[m] + j / 2 * 4));
    }
  }
  for (int m = 0; m < M; ++m) sums[m] = total[m].all;
}
#endif

#ifdef MUSTER_HAS_WORDS
MUSTER_INLINE __m256i two_inputs(const int16_t* x) {
  int32_t both;
  std::memcpy(&both, x, 4);
  return _mm256_set1_epi32(both);
}

// Adds the products of four codes of each of eight lanes, two in each of `even` and `odd`, with four inputs.
MUSTER_INLINE __m256i add_words(__m256i total, __m256i even, __m256i odd, const int16_t* x) {
  total = _mm256_add_epi32(total, _mm256_madd_epi16(even, two_inputs(x)));
  return _mm256_add_epi32(total, _mm256_madd_epi16(odd, two_inputs(x + 2)));
}

template <int M>
MUSTER_INLINE void dot_four_bits(const uint8_t* codes, const int16_t* const (&x)[M], Ints (&sums)[M]) {
  const __m256i mask = _mm256_set1_epi16(15);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256i total[M];
    for (int m = 0; m < M; ++m) total[m] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + j * 64 + half * 32));
      const __m256i even = _mm256_and_si256(packed, mask);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(packed, 8), mask);
      const __m256i even_high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
      const __m256i odd_high = _mm256_srli_epi16(packed, 12);
      for (int m = 0; m < M; ++m) {
        total[m] = add_words(total[m], even, odd, x[m] + j * 8);
        total[m] = add_words(total[m], even_high, odd_high, x[m] + j * 8 + 4);
      }
    }
    for (int m = 0; m < M; ++m) std::memcpy(reinterpret_cast<char*>(&sums[m]) + half * 32, &total[m], 32);
  }
}

template <int M>
MUSTER_INLINE void dot_eight_bits(const uint8_t* codes, const int16_t* const (&x)[M], const int32_t (&)[M],
                                  Ints (&sums)[M]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256i total[M];
    for (int m = 0; m < M; ++m) total[m] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + j * 64 + half * 32));
      const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(packed, 8), 8), odd = _mm256_srai_epi16(packed, 8);
      for (int m = 0; m < M; ++m) total[m] = add_words(total[m], even, odd, x[m] + j * 4);
    }
    for (int m = 0; m < M; ++m) std::memcpy(reinterpret_cast<char*>(&sums[m]) + half * 32, &total[m], 32);
  }
}
#endif

MUSTER_INLINE const int8_t* inputs_of(const Activations& x, const int8_t*) { return x.codes; }
MUSTER_INLINE const int16_t* inputs_of(const Activations& x, const int16_t*) { return x.words; }

// `row`: the first of M rows. The order of additions is that of the tile kernel, so both give the same bits. Input: the
// inputs' codes.
template <int M, bool kFour, class Input>
void multiply_codes(const Matrix& matrix, const Activations& x, int row, float* out, size_t stride, bool accumulate,
                    int begin, int end) {
  const size_t num_blocks = matrix.num_blocks;
  for (int panel = begin; panel < end; ++panel) {
    const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
    const uint8_t* codes = base + matrix.codes_offset;
    Floats total[M];
    for (int m = 0; m < M; ++m) total[m] = Floats{};
    for (size_t b = 0; b < num_blocks; ++b) {
      if (row == 0) fetch_ahead<(kFour ? 256 + 2 * 32 : 512 + 32)>(base, b);  // codes, scales, minima
      const Input* inputs[M];
      int32_t code_sums[M];
      const size_t index = block_index(x, row, b);  // M divides 16 or ends the rows: the others follow
      for (int m = 0; m < M; ++m) {
        inputs[m] = inputs_of(x, inputs[m]) + (index + m) * kBlock;
        code_sums[m] = x.code_sums[index + m];
      }
      Ints sums[M];
      if constexpr (kFour)
        dot_four_bits<M>(codes + b * 256, inputs, sums);
      else
        dot_eight_bits<M>(codes + b * 512, inputs, code_sums, sums);
      const Floats scale = load_float16(base + b * 32);
      for (int m = 0; m < M; ++m) {
        const Floats both = scale * x.scales[index + m];
        total[m] += __builtin_convertvector(sums[m], Floats) * both;
      }
      if constexpr (kFour) {
        const Floats minimum = load_float16(base + matrix.minima_offset + b * 32);
        for (int m = 0; m < M; ++m) total[m] += minimum * x.sums[index + m];
      }
    }
    for (int m = 0; m < M; ++m) put(matrix, panel, out + (row + m) * stride, accumulate, total[m]);
  }
}

template <int M>
void multiply_halves(const Matrix& matrix, const Activations& x, int row, float* out, size_t stride, bool accumulate,
                     int begin, int end) {
  const int num_pairs = matrix.num_blocks * kBlock / 2;
  for (int panel = begin; panel < end; ++panel) {
    const uint8_t* pairs = matrix.data + panel * matrix.panel_bytes + matrix.codes_offset;
    Floats even[M], odd[M];
    for (int m = 0; m < M; ++m) even[m] = odd[m] = Floats{};
    for (int p = 0; p < num_pairs; ++p) {
      if (row == 0) fetch_ahead<64>(pairs, p);
      const Words both = *reinterpret_cast<const LooseWords*>(pairs + p * 64);
      const Floats first = as_floats(both << 16), second = as_floats(both & 0xffff0000u);
      for (int m = 0; m < M; ++m) {
        const float* inputs = x.values + static_cast<size_t>(row + m) * num_pairs * 2 + p * 2;
        even[m] += first * inputs[0];
        odd[m] += second * inputs[1];
      }
    }
    for (int m = 0; m < M; ++m) put(matrix, panel, out + (row + m) * stride, accumulate, even[m] + odd[m]);
  }
}

template <int M, class Input>
void multiply_rows(const Matrix& matrix, const Activations& x, int row, float* out, size_t stride, bool accumulate,
                   int begin, int end) {
  if (matrix.codes == Codes::kFourBits)
    multiply_codes<M, true, Input>(matrix, x, row, out, stride, accumulate, begin, end);
  else if (matrix.codes == Codes::kEightBits)
    multiply_codes<M, false, Input>(matrix, x, row, out, stride, accumulate, begin, end);
  else
    multiply_halves<M>(matrix, x, row, out, stride, accumulate, begin, end);
}

template <int M>
struct NumRows {
  static constexpr int value = M;
};

template <int M, class F>
MUSTER_INLINE void with_num_rows(int num_rows, F&& call) {
  if (num_rows == M)
    call(NumRows<M>{});
  else if constexpr (M > 1)
    with_num_rows<M - 1>(num_rows, call);
}

// Any number of rows: calls multiply(NumRows<M>, first row, first panel, last panel). A panel is read for all rows
// before the next one, while it is in the cache.
template <class F>
MUSTER_INLINE void walk_panels(int num_rows, int begin, int end, F&& multiply) {
  for (int panel = begin; panel < end; ++panel) {
    const int last = num_rows <= kRowsAtOnce ? end : panel + 1;
    int row = 0;
    for (; row + kRowsAtOnce <= num_rows; row += kRowsAtOnce) multiply(NumRows<kRowsAtOnce>{}, row, panel, last);
    with_num_rows<kRowsAtOnce - 1>(num_rows - row, [&](auto rest) { multiply(rest, row, panel, last); });
    panel = last - 1;
  }
}

template <class Input = int8_t>
void multiply_by_rows(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate,
                      int begin, int end) {
  walk_panels(x.rows, begin, end, [&](auto num_rows, int row, int first, int last) {
    multiply_rows<decltype(num_rows)::value, Input>(matrix, x, row, out, stride, accumulate, first, last);
  });
}

}  // namespace
}  // namespace muster
