// Whether threads beyond the reserved cores help or stand in the way. Pure: times in seconds come from outside.
#pragma once

namespace muster {

// A spare thread computes on a core that belongs to others, a gateway above all. While that core is idle, it is a
// gain. When it is busy, the kernel takes the core away in the middle of a piece, and everybody waits for that piece.
// What is waited that way is the sign: beyond a share of the step, the spare threads rest, for longer each time that
// trying again fails.
class Spare {
 public:
  // After every step: how long it took, and how much of it the caller waited for pieces of others, spinning time
  // left out. Returns whether the next step uses the spare threads.
  bool after_step(double step_s, double waited_s, double now_s) {
    if (resting_) {
      if (now_s >= until_s_) {
        resting_ = false;
        num_steps_ = 0;
      }
      return !resting_;
    }
    const double share = step_s > 0 ? waited_s / step_s : 0;
    share_ = num_steps_ == 0 ? share : share_ + (share - share_) * kWeight;
    ++num_steps_;
    if (num_steps_ >= kStepsToJudge && share_ > kMostShare) {
      resting_ = true;
      until_s_ = now_s + rest_s_;
      rest_s_ = rest_s_ * 2 < kLongestRest ? rest_s_ * 2 : kLongestRest;
    } else if (num_steps_ >= kStepsToTrust) {
      rest_s_ = kFirstRest;
    }
    return !resting_;
  }

 private:
  static constexpr int kStepsToJudge = 6, kStepsToTrust = 200;
  static constexpr double kWeight = 0.2, kMostShare = 0.2;
  static constexpr double kFirstRest = 0.2, kLongestRest = 3.2;

  bool resting_ = false;
  int num_steps_ = 0;
  double share_ = 0, rest_s_ = kFirstRest, until_s_ = 0;
};

}  // namespace muster
