// Rows of floating-point weights into GGUF's blocks.
#pragma once

#include "pack.h"
#include "quantise_table.h"

namespace muster {

// Whether weights stored as `from` can be quantised to `to` in rows of `cols`.
bool can_quantise(Stored from, Stored to, int cols);

// Rows [first, last) of `data` into `out`, rows of Q8_0, Q5_1 or Q4_1 blocks. False where a weight is not finite.
bool quantise_rows(const Quantisers& quantisers, Stored from, const uint8_t* data, int cols, Stored to, uint8_t* out,
                   int first, int last);

}  // namespace muster
