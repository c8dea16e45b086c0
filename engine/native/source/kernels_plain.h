// The table of a processor without a tile unit.
#pragma once

#include "attention_prompt.h"
#include "multiply_wide.h"
#include "rows.h"

namespace muster {
namespace {

Format choose_format(Codes codes, int, bool) {
  return codes == Codes::kBfloat16 ? Format::kFloat : Format::kInt8;
}

void multiply(const Matrix& matrix, const Activations& x, float* out, size_t stride, bool accumulate, int begin,
              int end, Scratch* scratch) {
  if (matrix.codes == Codes::kFiveBits || matrix.codes == Codes::kSixBits)
    multiply_wide(matrix, x, out, stride, accumulate, begin, end, scratch);
  else
    multiply_by_rows(matrix, x, out, stride, accumulate, begin, end);
}

constexpr Kernels plain_kernels(const char* name) {
  return {name,    choose_format, multiply,  nullptr,          read_row,          normalise, gate,
          prepare, rotate,        round_row, attend_one_plain, attend_many_plain, nullptr};
}

}  // namespace
}  // namespace muster
