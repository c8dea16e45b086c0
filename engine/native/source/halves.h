// Panels of quantised weights unpacked: to bfloat16 pairs for products of many rows, and codes to bytes. For processors
// with AVX512-BF16.
#pragma once

#include "wide_codes.h"

namespace muster {
namespace {

// Two vectors of sixteen numbers as one of sixteen bfloat16 pairs.
MUSTER_INLINE __m512i pair_up(Floats first, Floats second) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512bh both = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first));
  return _mm512_permutexvar_epi16(order, (__m512i)both);
}

// A panel's weights as bfloat16 pairs, in the order of the bfloat16 format.
template <bool kFour>
void dequantise_panel(const Matrix& matrix, int panel, uint8_t* out) {
  const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
  const uint8_t* codes = base + matrix.codes_offset;
  const __m512 table = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int b = 0; b < matrix.num_blocks; ++b) {
    const Floats scale = load_float16(base + b * 32);
    Floats minimum{};
    if constexpr (kFour) minimum = load_float16(base + matrix.minima_offset + b * 32);
#pragma GCC unroll 4
    for (int j = 0; j < (kFour ? 4 : 8); ++j) {
      const __m512i packed = _mm512_loadu_si512(codes + (b * (kFour ? 4 : 8) + j) * 64);
      // Input `index` of a lane; the look-up ignores all but the low four bits.
#define MUSTER_LOW(index) \
  reinterpret_cast<Floats>(_mm512_permutexvar_ps(_mm512_srli_epi32(packed, 8 * (index)), table)) * scale + minimum
#define MUSTER_HIGH(index) \
  reinterpret_cast<Floats>(_mm512_permutexvar_ps(_mm512_srli_epi32(packed, 8 * (index) + 4), table)) * scale + minimum
#define MUSTER_CODE(index) reinterpret_cast<Ints>(_mm512_srai_epi32(_mm512_slli_epi32(packed, 24 - 8 * (index)), 24))
#define MUSTER_BYTE(index) __builtin_convertvector(MUSTER_CODE(index), Floats) * scale
      if constexpr (kFour) {
        uint8_t* rows = out + (b * 16 + j * 4) * 64;
        _mm512_store_si512(rows, pair_up(MUSTER_LOW(0), MUSTER_LOW(1)));
        _mm512_store_si512(rows + 64, pair_up(MUSTER_LOW(2), MUSTER_LOW(3)));
        _mm512_store_si512(rows + 128, pair_up(MUSTER_HIGH(0), MUSTER_HIGH(1)));
        _mm512_store_si512(rows + 192, pair_up(MUSTER_HIGH(2), MUSTER_HIGH(3)));
      } else {
        uint8_t* rows = out + (b * 16 + j * 2) * 64;
        _mm512_store_si512(rows, pair_up(MUSTER_BYTE(0), MUSTER_BYTE(1)));
        _mm512_store_si512(rows + 64, pair_up(MUSTER_BYTE(2), MUSTER_BYTE(3)));
      }
#undef MUSTER_LOW
#undef MUSTER_HIGH
#undef MUSTER_BYTE
#undef MUSTER_CODE
    }
  }
}

template <int kInput>
MUSTER_INLINE void unpack_five(const uint8_t* low, Bytes64 high, uint8_t* out) {
  *reinterpret_cast<Bytes64*>(out + kInput * 64) = five_bits<kInput>(low, high);
  if constexpr (kInput < 7) unpack_five<kInput + 1>(low, high, out);
}

template <int kInput>
MUSTER_INLINE void unpack_six(const uint8_t* low, Bytes64 high, uint8_t* out) {
  *reinterpret_cast<Bytes64*>(out + kInput * 64) = six_bits<kInput>(low, high) - kSixBitsZero;
  if constexpr (kInput % 4 < 3) unpack_six<kInput + 1>(low, high, out);
}

// A panel's codes as signed bytes, in the order of the eight-bit format.
void unpack_wide(const Matrix& matrix, int panel, uint8_t* out) {
  const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
  const bool five = matrix.codes == Codes::kFiveBits;
  for (int b = 0; b < matrix.num_blocks; ++b, out += 512) {
    const uint8_t* low = base + matrix.codes_offset + b * size_t{256};
    const uint8_t* high = base + matrix.high_offset + static_cast<size_t>(b) * (five ? 64 : 128);
    if (five) {
      unpack_five<0>(low, load_bytes(high), out);
    } else {
      unpack_six<0>(low, load_bytes(high), out);
      unpack_six<4>(low, load_bytes(high + 64), out);
    }
  }
}

// A block's signed bytes as bfloat16 pairs.
MUSTER_INLINE void widen_bytes(const uint8_t* bytes, Floats scale, Floats minimum, uint8_t* out) {
  const Ints words = *reinterpret_cast<const Ints*>(bytes);
  const Floats a = __builtin_convertvector(words << 24 >> 24, Floats) * scale + minimum;
  const Floats b = __builtin_convertvector(words << 16 >> 24, Floats) * scale + minimum;
  const Floats c = __builtin_convertvector(words << 8 >> 24, Floats) * scale + minimum;
  const Floats d = __builtin_convertvector(words >> 24, Floats) * scale + minimum;
  _mm512_store_si512(out, pair_up(a, b));
  _mm512_store_si512(out + 64, pair_up(c, d));
}

// A panel's weights as bfloat16 pairs, in the order of the bfloat16 format.
void dequantise_wide(const Matrix& matrix, int panel, uint8_t* out) {
  const uint8_t* base = matrix.data + panel * matrix.panel_bytes;
  const bool five = matrix.codes == Codes::kFiveBits;
  alignas(64) uint8_t bytes[512];
  for (int b = 0; b < matrix.num_blocks; ++b, out += 1024) {
    const uint8_t* low = base + matrix.codes_offset + b * size_t{256};
    const uint8_t* high = base + matrix.high_offset + static_cast<size_t>(b) * (five ? 64 : 128);
    if (five) {
      unpack_five<0>(low, load_bytes(high), bytes);
      const Floats scale = load_float16(base + b * 32);
      const Floats minimum = load_float16(base + matrix.minima_offset + b * 32);
      for (int j = 0; j < 8; ++j) widen_bytes(bytes + j * 64, scale, minimum, out + j * 128);
      continue;
    }
    unpack_six<0>(low, load_bytes(high), bytes);
    unpack_six<4>(low, load_bytes(high + 64), bytes);
    const uint8_t* factors = base + matrix.factors_offset + b * 2 * kPanel;
    const Floats scale = load_float16(base + b / 8 * 32);
    const Floats one = scale * load_factors(factors), other = scale * load_factors(factors + kPanel);
    for (int j = 0; j < 8; ++j) widen_bytes(bytes + j * 64, j < 4 ? one : other, Floats{}, out + j * 128);
  }
}

// The panel's weights as bfloat16 pairs: as they are stored, or unpacked into `room`.
MUSTER_INLINE const uint8_t* halves_of(const Matrix& matrix, int panel, uint8_t* room) {
  if (matrix.codes == Codes::kBfloat16) return matrix.data + panel * matrix.panel_bytes + matrix.codes_offset;
  if (matrix.codes == Codes::kFiveBits || matrix.codes == Codes::kSixBits)
    dequantise_wide(matrix, panel, room);
  else if (matrix.codes == Codes::kFourBits)
    dequantise_panel<true>(matrix, panel, room);
  else
    dequantise_panel<false>(matrix, panel, room);
  return room;
}

// Memory that is wanted soon, fetched bit by bit during products: one range, then another.
struct Ahead {
  const uint8_t* next;
  const uint8_t* end;
  const uint8_t* then;
  const uint8_t* then_end;
};

MUSTER_INLINE void fetch_some(Ahead& ahead) {
  if (ahead.next >= ahead.end) {
    if (ahead.then >= ahead.then_end) return;
    ahead.next = ahead.then;
    ahead.end = ahead.then_end;
    ahead.then = ahead.then_end;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) _mm_prefetch(reinterpret_cast<const char*>(ahead.next) + i * 64, _MM_HINT_T1);
  ahead.next += 256;
}

// What is read after panels [.., end) of a matrix, whose turn takes up to `most` of them.
MUSTER_INLINE Ahead ahead_of(const Matrix& matrix, int end, int stop, int most) {
  const int left = stop - end < most ? stop - end : most;
  const uint8_t* next = matrix.data + end * matrix.panel_bytes;
  const bool ends = end + left == matrix.num_panels && matrix.after != nullptr;
  return {next, next + left * matrix.panel_bytes, matrix.after, ends ? matrix.after + matrix.after_bytes : matrix.after};
}

// The same for two matrices whose panels take their turns together.
MUSTER_INLINE Ahead ahead_of_both(const Matrix& first, const Matrix& second, int end, int stop, int most) {
  Ahead ahead = ahead_of(first, end, stop, most);
  const Ahead behind = ahead_of(second, end, stop, most);
  const bool last = behind.next == behind.end;
  ahead.then = last ? behind.then : behind.next;
  ahead.then_end = last ? behind.then_end : behind.end;
  return ahead;
}

}  // namespace
}  // namespace muster
