// Which of many numbers is the largest.
#pragma once

namespace muster {

// The lowest index of the largest of `count` numbers, at least one. The first that is not a number counts as the
// largest, and zeros of both signs are equal: torch's rule.
int first_best(const float* numbers, int count);

}  // namespace muster
