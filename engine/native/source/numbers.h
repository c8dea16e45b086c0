// Conversions between number formats, one at a time: for loading, not for the step.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace muster {

static inline void put_half(uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, 2); }

static inline uint16_t get_half(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return bits;
}

static inline float half_to_float(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  float value;
  if (exponent == 0)
    value = std::ldexp(static_cast<float>(fraction), -24);
  else if (exponent == 31)
    value = fraction != 0 ? NAN : INFINITY;
  else
    value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return half & 0x8000 ? -value : value;
}

// To nearest, ties to even.
static inline uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (!(magnitude < 65520.0f)) return static_cast<uint16_t>(sign | (std::isnan(value) ? 0x7e00 : 0x7c00));
  if (magnitude < 6.103515625e-05f) return static_cast<uint16_t>(sign | std::lrint(std::ldexp(magnitude, 24)));
  bits &= 0x7fffffff;
  bits += 0xfff + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | ((bits >> 13) - (112 << 10)));
}

static inline float bfloat16_to_float(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint16_t float_to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace muster
