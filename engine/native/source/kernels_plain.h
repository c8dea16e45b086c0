// The table of a processor without a tile unit.
#pragma once

#include "attention_prompt.h"
#include "multiply_wide.h"
#include "rows.h"

namespace muster {
namespace {

// From this many rows on, a prompt's inputs have sixteen bits where that costs little more than eight.
constexpr int kWordsFrom = 32;

Format choose_format(Codes codes, int rows, Use use) {
  if (codes == Codes::kBfloat16) return Format::kFloat;
#ifdef MUSTER_HAS_WORDS
  if (use != Use::kDecoding && rows >= kWordsFrom) return Format::kInt16;
#endif
  return Format::kInt8;
}

template <class Input>
void multiply_inputs(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
                     int end, Scratch* scratch) {
  if (matrix.codes == Codes::kFiveBits || matrix.codes == Codes::kSixBits)
    multiply_wide<Input>(matrix, x, out, stride, accumulate, begin, end, scratch);
  else
    multiply_by_rows<Input>(matrix, x, out, stride, accumulate, begin, end);
}

void multiply(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
              int end, Scratch* scratch) {
#ifdef MUSTER_HAS_WORDS
  if (x.formats & static_cast<int>(Format::kInt16))
    return multiply_inputs<int16_t>(matrix, x, out, stride, accumulate, begin, end, scratch);
#endif
  multiply_inputs<int8_t>(matrix, x, out, stride, accumulate, begin, end, scratch);
}

constexpr Kernels plain_kernels(const char* name) {
  return {name,    choose_format, multiply,  nullptr,          read_row,          normalise, gate,
          prepare, rotate,        round_row, attend_one_plain, attend_many_plain, nullptr};
}

}  // namespace
}  // namespace muster
