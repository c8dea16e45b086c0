// A pool of compute threads for many short loops.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "spare.h"

namespace muster {

// Calls belong to one thread, which works too. Who computes what never changes what is computed.
class Threads {
 public:
  using Body = void (*)(void* context, int begin, int end, int thread);

  // `count` threads, the caller's among them; the last `num_spare` rest while others need their cores.
  explicit Threads(int count, int num_spare = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }

  // How many work now.
  int active() const { return active_.load(std::memory_order_relaxed); }

  // Around every step: decides whether the spare threads work in the next one.
  void begin_step();
  void end_step();

  // Calls body(begin, end, thread) over [0, size) in pieces of at most `grain`, and returns when all is done.
  template <class F>
  void each(int size, int grain, F&& body) {
    auto call = [](void* context, int begin, int end, int thread) {
      (*static_cast<std::remove_reference_t<F>*>(context))(begin, end, thread);
    };
    run(size, grain, call, &body);
  }

 private:
  struct Worker {
    Threads* pool;
    int index;
    pthread_t handle;
  };

  void run(int size, int grain, Body body, void* context);
  bool take_piece(int thread);
  void work(int index);
  void sleep(uint32_t seen);
  void rest(int index);
  static void* entry(void* worker);

  // What a loop is. Written while no piece is left to take, read after taking one.
  Body body_ = nullptr;
  void* context_ = nullptr;
  int size_ = 0;
  int grain_ = 1;
  std::vector<Worker> workers_;
  int num_reserved_ = 1;  // threads that always work
  Spare spare_;
  double step_began_s_ = 0, waited_s_ = 0;
  // High half: which loop; low half: pieces that nobody has taken. One word, so that a thread that overslept a
  // loop cannot take a piece of the next one by mistake.
  alignas(64) std::atomic<uint64_t> pieces_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<uint32_t> bell_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> active_{1};
  std::atomic<uint32_t> spare_bell_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace muster
