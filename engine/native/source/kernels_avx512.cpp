#include "kernels_plain.h"

namespace muster {

const Kernels* kernels_avx512() {
  static const Kernels table = plain_kernels("avx512");
  return &table;
}

}  // namespace muster
