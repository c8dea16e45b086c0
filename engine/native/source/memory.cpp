#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>

#include "kernels.h"

namespace muster {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = size_t{64} << 20;

}  // namespace

Arena::~Arena() {
  for (const auto& piece : pieces_) munmap(piece.data, piece.size);
}

uint8_t* Arena::take(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (pieces_.empty() || used_ + bytes > pieces_.back().size) {
    // Untouched pages cost nothing, so a piece may be larger than what follows needs.
    const size_t size = (bytes > kPiece ? bytes + kHugePage - 1 : kPiece) / kHugePage * kHugePage;
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    madvise(data, size, MADV_HUGEPAGE);
    pieces_.push_back({static_cast<uint8_t*>(data), size});
    used_ = 0;
  }
  uint8_t* result = pieces_.back().data + used_;
  used_ += bytes;
  return result;
}

void* reserve(Scratch* scratch, size_t bytes) {
  if (bytes > scratch->size) {
    std::free(scratch->data);
    scratch->size = 0;
    const size_t page = bytes >= kHugePage / 2 ? kHugePage : 4096;
    const size_t size = (bytes + bytes / 2 + page - 1) / page * page;
    scratch->data = static_cast<uint8_t*>(std::aligned_alloc(page, size));
    if (scratch->data == nullptr) std::abort();  // activations of one step: nothing else would work either
    if (page == kHugePage) madvise(scratch->data, size, MADV_HUGEPAGE);
    scratch->size = size;
  }
  return scratch->data;
}

}  // namespace muster
