// Checkpoint blocks into panels.
#pragma once

#include "kernels.h"
#include "memory.h"

namespace muster {

// Numbers of GGUF's tensor types.
enum class Stored : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
};

bool can_pack(Stored type, int cols);

// Sizes and places, with room for `rows` outputs; false when there is no memory.
bool allocate(Matrix* matrix, Stored type, int rows, int cols, Arena* arena);

// Fills outputs [first, last) from rows that lie one after another. Output r is row order[r], or r without an order.
void pack(const Matrix& matrix, Stored type, const uint8_t* data, const int32_t* order, int first, int last);

}  // namespace muster
