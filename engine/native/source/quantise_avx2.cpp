#include "quantise.h"
#include "quantise_table.h"

namespace muster {

const Quantisers* quantisers_avx2() {
  static const Quantisers table = {quantise_eight_bits, quantise_line<FourBits>, quantise_line<FiveBits>};
  return &table;
}

}  // namespace muster
