// Quantisers by instruction set.
#pragma once

#include <cstdint>

namespace muster {

// x: sixteen blocks of 32 weights, [32][16]; results likewise, [16] and [32][16].
struct Quantisers {
  void (*eight_bits)(const float* x, float* scales, int8_t* codes);
  void (*four_bits)(const float* x, float* scales, float* minima, uint8_t* codes);
  void (*five_bits)(const float* x, float* scales, float* minima, uint8_t* codes);
};

const Quantisers* quantisers_portable();
const Quantisers* quantisers_avx2();

}  // namespace muster
