#include "kernels_plain.h"

namespace muster {

const Kernels* kernels_portable() {
  static const Kernels table = plain_kernels("portable");
  return &table;
}

}  // namespace muster
