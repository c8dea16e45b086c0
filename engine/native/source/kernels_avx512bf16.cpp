#include "attention_prompt.h"
#include "multiply_pairs.h"

namespace muster {

const Kernels* kernels_avx512bf16() {
  static const Kernels table = {
      "avx512bf16", choose_format, multiply,  gate_pairs,       read_row,          normalise, gate,
      prepare,      rotate,        round_row, attend_one_plain, attend_many_plain, nullptr,
  };
  return &table;
}

}  // namespace muster
