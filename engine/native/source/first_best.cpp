#include "first_best.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace muster {
namespace {

constexpr int kChunk = 1024;  // numbers whose largest is known before it is looked for

// An integer that is ordered as the number is. Integers, because a compiler may put those in any order.
inline __attribute__((always_inline)) int32_t order_of(float number) {
  const float unsigned_zero = number + 0.0f;
  int32_t bits;
  std::memcpy(&bits, &unsigned_zero, sizeof bits);
  constexpr int32_t kInfinity = 0x7f800000;
  const int32_t no_number = (kInfinity - (bits & INT32_MAX)) >> 31;  // all ones, or none
  const int32_t order = bits ^ ((bits >> 31) & INT32_MAX);
  return (order & ~no_number) | (no_number & INT32_MAX);
}

inline __attribute__((always_inline)) int find(const float* numbers, int count) {
  int32_t best = INT32_MIN;
  int found = 0;
  for (int begin = 0; begin < count; begin += kChunk) {
    const int size = std::min(count - begin, kChunk);
    const float* chunk = numbers + begin;
    int32_t largest = INT32_MIN;
    for (int i = 0; i < size; ++i) {
      largest = std::max(largest, order_of(chunk[i]));
    }
    if (largest > best) {
      best = largest;
      found = begin;
    }
  }
  while (order_of(numbers[found]) != best) ++found;
  return found;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) int find_avx2(const float* numbers, int count) { return find(numbers, count); }
#endif

}  // namespace

int first_best(const float* numbers, int count) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return find_avx2(numbers, count);
#endif
  return find(numbers, count);
}

}  // namespace muster
