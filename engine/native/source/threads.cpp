#include "threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace muster {
namespace {

// Loops of a step follow each other within microseconds: a short spin catches the next one. Spinning longer takes
// the core from other processes, and measurably loses when they want it.
constexpr int kSpins = 2000;
constexpr int kYields = 20;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

double now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

Threads::Threads(int count, int num_spare) {
  workers_.resize(count > 1 ? count - 1 : 0);
  int started = 0;
  for (auto& worker : workers_) {
    worker = {this, started + 1, {}};
    if (pthread_create(&worker.handle, nullptr, entry, &worker) != 0) break;
    ++started;
  }
  workers_.resize(started);
  num_reserved_ = std::max(1, std::min(count - num_spare, started + 1));
  active_ = started + 1;
}

void Threads::begin_step() {
  if (num_reserved_ == count()) return;
  step_began_s_ = now_s();
  waited_s_ = 0;
}

void Threads::end_step() {
  if (num_reserved_ == count()) return;
  const double now = now_s();
  const int active = spare_.after_step(now - step_began_s_, waited_s_, now) ? count() : num_reserved_;
  if (active > active_.exchange(active)) {
    spare_bell_.fetch_add(1);
    syscall(SYS_futex, &spare_bell_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

Threads::~Threads() {
  stopping_ = true;
  for (auto* bell : {&bell_, &spare_bell_}) {
    bell->fetch_add(1);
    syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  for (auto& worker : workers_) pthread_join(worker.handle, nullptr);
}

void Threads::run(int size, int grain, Body body, void* context) {
  if (size <= 0) return;
  if (active() == 1 || size <= grain) {
    body(context, 0, size, 0);
    return;
  }
  body_ = body;
  context_ = context;
  size_ = size;
  grain_ = grain;
  const int num_pieces = (size + grain - 1) / grain;
  unfinished_.store(num_pieces, std::memory_order_relaxed);
  const uint64_t loop = (pieces_.load(std::memory_order_relaxed) >> 32) + 1;
  pieces_.store(loop << 32 | static_cast<uint32_t>(num_pieces));
  bell_.fetch_add(1);
  if (sleepers_.load() > 0) syscall(SYS_futex, &bell_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  while (take_piece(0)) {
  }
  for (int turns = 0; turns < kSpins; ++turns) {
    if (unfinished_.load(std::memory_order_acquire) == 0) return;
    pause_briefly();
  }
  // Longer than any piece takes: whoever has the last one has lost its core.
  const double began_s = now_s();
  while (unfinished_.load(std::memory_order_acquire) != 0) sched_yield();
  waited_s_ += now_s() - began_s;
}

bool Threads::take_piece(int thread) {
  uint64_t seen = pieces_.load(std::memory_order_acquire);
  do {
    if (static_cast<uint32_t>(seen) == 0) return false;
  } while (!pieces_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel));
  // The loop cannot end, and these fields cannot change, before this piece is reported finished.
  const int num_pieces = (size_ + grain_ - 1) / grain_;
  const int begin = (num_pieces - static_cast<int>(static_cast<uint32_t>(seen))) * grain_;
  const int end = begin + grain_ < size_ ? begin + grain_ : size_;
  body_(context_, begin, end, thread);
  unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void Threads::work(int index) {
  int turns = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (index >= active()) {
      rest(index);
      continue;
    }
    const uint32_t bell = bell_.load();
    if (take_piece(index)) {
      turns = 0;
    } else if (turns < kSpins) {
      ++turns;
      pause_briefly();
    } else if (turns < kSpins + kYields) {
      ++turns;
      sched_yield();
    } else {
      sleep(bell);
      turns = 0;
    }
  }
}

void Threads::sleep(uint32_t seen) {
  sleepers_.fetch_add(1);
  // A bell that rang since `seen` was read makes the kernel return at once.
  if (!stopping_.load()) syscall(SYS_futex, &bell_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1);
}

void Threads::rest(int index) {
  const uint32_t seen = spare_bell_.load();
  if (index < active() || stopping_.load()) return;
  syscall(SYS_futex, &spare_bell_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void* Threads::entry(void* worker) {
  auto* self = static_cast<Worker*>(worker);
  self->pool->work(self->index);
  return nullptr;
}

}  // namespace muster
