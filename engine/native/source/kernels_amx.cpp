#include "attention_amx.h"
#include "multiply_wide_amx.h"

namespace muster {

const Kernels* kernels_amx() {
  static const Kernels table = {
      "amx", choose_format, multiply,  tile_gated, read_row,    normalise,        gate,
      prepare, rotate,      round_row, attend_one, attend_many, transpose_values,
  };
  return &table;
}

}  // namespace muster
