#include "kernels_plain.h"

namespace muster {

const Kernels* kernels_avx2() {
  static const Kernels table = plain_kernels("avx2");
  return &table;
}

}  // namespace muster
