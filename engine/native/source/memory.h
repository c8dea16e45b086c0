// Memory for weights: large pieces in huge pages, given back all at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster {

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned zeros; null when there is no memory.
  uint8_t* take(size_t bytes);

 private:
  struct Piece {
    uint8_t* data;
    size_t size;
  };
  std::vector<Piece> pieces_;
  size_t used_ = 0;  // of the last piece
};

}  // namespace muster
