#pragma once
// A simulated grid in which some blocks are run by threads: each thread runs the whole kernel, as
// on a device, and they meet only at the barriers of the block. A simulated block runs the code
// outside of `each` only once, so it cannot show
// - that this code reads shared memory which the next `each` writes. That is a race; where a thread
//   is late, the bits are others.
// - that a thread keeps in a variable of its own what the other threads need: other bits.
// - that not all threads come to a barrier: the test stops, and says so.
//
// The threads are coroutines (<ucontext.h>) that continue in a random order. To ThreadSanitizer
// they are threads that only their barriers order, whatever the random order was, so it reports a
// race that is possible, not only one that happened. Threads of the system would need a mutex to
// meet, which orders more than a barrier does. Blocks of one launch are not ordered either.
#include <ucontext.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <numeric>

#include "support/simulated_grid.hpp"

#if defined(__SANITIZE_THREAD__)
#define GDPO_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GDPO_TEST_TSAN 1
#endif
#endif
#if defined(GDPO_TEST_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

/// What any thread did before leave() happens before what is done after enter(). Only
/// ThreadSanitizer needs to be told.
class Order {
 public:
#if defined(GDPO_TEST_TSAN)
  void leave() { __tsan_release(&place_); }
  void enter() { __tsan_acquire(&place_); }

 private:
  char place_ = 0;
#else
  void leave() {}
  void enter() {}
#endif
};

class Thread;

/// A barrier of the threads of a block or of a warp. It uses two orders in turn, because a thread
/// may be at the next barrier before another has left this one.
struct Barrier {
  explicit Barrier(int of) : threads(static_cast<std::size_t>(of)) {}
  std::size_t threads;
  std::vector<Thread*> waiting;
  Order order[2];
};

/// A coroutine that runs one job after the other, and pauses at every barrier. Coroutines are kept
/// for all launches.
class Thread {
 public:
  Thread() : stack_(new unsigned char[stack_bytes]) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get(), own_.uc_stack.ss_size = stack_bytes;
    own_.uc_link = nullptr;
    makecontext(&own_, &Thread::main, 0);
#if defined(GDPO_TEST_TSAN)
    sanitizer_ = __tsan_create_fiber(0), of_caller_ = __tsan_get_current_fiber();
#endif
  }
  Thread(const Thread&) = delete;

  struct Job {
    virtual ~Job() = default;
    virtual void run(int thread) = 0;
  };
  /// Prepares coroutine `number` to be thread `thread` of a job; makes it where it does not exist
  /// yet.
  static Thread& take(std::size_t number, Job& job, int thread) {
    static std::deque<Thread> all;
    while (number >= all.size()) all.emplace_back();
    Thread& t = all[number];
    t.job_ = &job, t.thread_ = thread;
    return t;
  }
  /// Runs the job up to its next barrier, and returns that; null where the job is done.
  Barrier* resume() {
    current().store(this, std::memory_order_relaxed);  // relaxed: it must not order anything
#if defined(GDPO_TEST_TSAN)
    __tsan_switch_to_fiber(sanitizer_, __tsan_switch_to_fiber_no_sync);
#endif
    swapcontext(&caller_, &own_);
    return waits_at_.load(std::memory_order_relaxed);
  }
  /// Called by the coroutine itself: waits until all threads of the barrier have come. What they
  /// did before it then happens before what this thread does next.
  static void wait(Barrier& barrier, unsigned turn) {
    Order& order = barrier.order[turn % 2];
    order.leave();
    current().load(std::memory_order_relaxed)->pause(&barrier);
    order.enter();
  }
  /// Orders the caller before the jobs of a launch.
  static Order& launch() {
    static Order order;
    return order;
  }
  /// Orders the jobs of a launch before the caller.
  static Order& end() {
    static Order order;
    return order;
  }

 private:
  static constexpr std::size_t stack_bytes = 1 << 20;
  static std::atomic<Thread*>& current() {
    static std::atomic<Thread*> thread{nullptr};
    return thread;
  }
  static void main() {
    Thread* const own = current().load(std::memory_order_relaxed);
    for (;;) {
      launch().enter();
      own->job_->run(own->thread_);
      end().leave();
      own->pause(nullptr);
    }
  }
  void pause(Barrier* at) {
    waits_at_.store(at, std::memory_order_relaxed);
#if defined(GDPO_TEST_TSAN)
    __tsan_switch_to_fiber(of_caller_, __tsan_switch_to_fiber_no_sync);
#endif
    swapcontext(&own_, &caller_);
  }

  std::unique_ptr<unsigned char[]> stack_;
  ucontext_t own_, caller_;
  std::atomic<Barrier*> waits_at_{nullptr};
  Job* job_ = nullptr;
  int thread_ = 0;
#if defined(GDPO_TEST_TSAN)
  void *sanitizer_, *of_caller_;
#endif
};

/// Threads that add their numbers together: where each has its numbers, and the sum.
struct ThreadTeam {
  explicit ThreadTeam(int threads)
      : barrier(threads), of_thread(static_cast<std::size_t>(threads)) {}
  Barrier barrier;
  std::vector<const void*> of_thread;
  std::vector<unsigned char> sum;
};

/// What the threads of a block share.
struct ThreadedMemory {
  struct alignas(16) Aligned {
    unsigned char bytes[16];
  };
  ThreadedMemory(gdpo::index_t of_index, gdpo::index_t of_count, int of_threads,
                 std::size_t shared_bytes)
      : index(of_index),
        count(of_count),
        threads(of_threads),
        shared(shared_bytes / sizeof(Aligned) + 1),
        all(threads) {
    // Fill shared memory with NaN, so that reading it before writing shows.
    std::memset(static_cast<void*>(shared.data()), 0xff, shared.size() * sizeof(Aligned));
    for (int w = 0; w < threads / gdpo::cuda::warp; ++w) warps.emplace_back(gdpo::cuda::warp);
  }
  gdpo::index_t index, count;
  int threads;
  std::vector<Aligned> shared;
  ThreadTeam all;
  std::deque<ThreadTeam> warps;
};

/// A block, or a team (warp) of it, as one of its threads sees it.
class ThreadedBlock {
 public:
  ThreadedBlock(ThreadedMemory& block, int thread)
      : block_(block),
        team_(&block.all),
        thread_(thread),
        first_(thread),
        threads_(block.threads) {}
  gdpo::index_t index() const { return block_.index; }
  gdpo::index_t count() const { return block_.count; }
  int threads() const { return threads_; }

  template <class F>
  void each(const F& f) {
    for (int thread = first_; thread < threads(); thread += step()) f(thread);
    wait();
  }
  template <class T, class F>
  T reduce(const F& f) {
    static_assert(std::is_trivially_copyable_v<T>, "what is reduced is shuffled as 32-bit words");
    std::vector<T> mine;  // the numbers of this thread, and of those that it acts for
    for (int thread = first_; thread < threads(); thread += step()) mine.push_back(f(thread));
    team_->of_thread[static_cast<std::size_t>(first_)] = mine.data();
    wait();
    if (first_ == 0) {
      const T total = sum_of_threads<T>();
      team_->sum.resize(sizeof(T));
      std::memcpy(team_->sum.data(), static_cast<const void*>(&total), sizeof(T));
    }
    wait();
    T total;
    std::memcpy(static_cast<void*>(&total), team_->sum.data(), sizeof(T));
    return total;
  }
  template <class F>
  void teams(int threads, const F& f) {
    ThreadedBlock team(block_, thread_);
    team.turn_ = turn_;
    const int own = thread_ / gdpo::cuda::warp;
    if (threads > 0) {
      team.team_ = &block_.warps[static_cast<std::size_t>(own)];
      team.first_ = thread_ % gdpo::cuda::warp, team.threads_ = threads;
    }
    f(team, threads > 0 ? own : 0, threads > 0 ? static_cast<int>(block_.warps.size()) : 1);
    if (threads == 0) turn_ = team.turn_;
    wait();
  }
  template <class T>
  T* shared() {
    return reinterpret_cast<T*>(block_.shared.data());
  }

 private:
  void wait() { Thread::wait(team_->barrier, turn_++); }
  /// In a team, this thread acts for thread first_ and every step()-th thread after it.
  int step() const { return static_cast<int>(team_->of_thread.size()); }

  template <class T>
  T sum_of_threads() const {
    constexpr int warp = gdpo::cuda::warp;
    const auto of = [&](int thread) {
      return static_cast<const T*>(
          team_->of_thread[static_cast<std::size_t>(thread % step())])[thread / step()];
    };
    T total{};
    for (int first = 0; first < threads(); first += warp) {
      T lanes[warp];
      for (int i = 0; i < warp; ++i) lanes[i] = of(first + i);
      for (int by = warp / 2; by > 0; by /= 2) {
        for (int i = 0; i < by; ++i) lanes[i].add(lanes[i + by]);
      }
      if (first == 0) {
        total = lanes[0];
      } else {
        total.add(lanes[0]);
      }
    }
    return total;
  }

  ThreadedMemory& block_;
  ThreadTeam* team_;
  int thread_, first_, threads_;
  unsigned turn_ = 0;
};

/// A block with its threads, and the loop that runs them.
template <class Kernel>
class ThreadedBlocks : Thread::Job {
 public:
  ThreadedBlocks(gdpo::index_t index, gdpo::index_t count, int threads, std::size_t shared_bytes,
                 const Kernel& kernel)
      : memory_(index, count, threads, shared_bytes), kernel_(kernel) {}
  /// Takes coroutines from number `first` on; returns the number from which the next block takes
  /// its own.
  std::size_t take(std::size_t first) {
    for (int i = 0; i < memory_.threads; ++i) ready_.push_back(&Thread::take(first++, *this, i));
    return first;
  }
  /// Runs all threads to their end, in random order from barrier to barrier.
  void run(std::mt19937& random) {
    int done = 0;
    while (!ready_.empty()) {
      std::swap(ready_[random() % ready_.size()], ready_.back());
      Thread* const thread = ready_.back();
      ready_.pop_back();
      Barrier* const at = thread->resume();
      if (!at) {
        ++done;
        continue;
      }
      at->waiting.push_back(thread);
      if (at->waiting.size() < at->threads) continue;
      ready_.insert(ready_.end(), at->waiting.begin(), at->waiting.end());
      at->waiting.clear();
    }
    if (done == memory_.threads) return;
    std::fprintf(stderr,
                 "%d of %d threads of a block wait at a barrier to which others do not come\n",
                 memory_.threads - done, memory_.threads);
    std::abort();
  }

 private:
  void run(int thread) override {
    ThreadedBlock own(memory_, thread);
    kernel_(own);
  }
  ThreadedMemory memory_;
  const Kernel& kernel_;
  std::vector<Thread*> ready_;
};

/// The execution tag. `threaded` blocks of a launch are run by threads: the last block, and others
/// at random. The other blocks are simulated.
struct ThreadedGrid {
  static constexpr bool launches_kernels = true;
  SimulatedGrid simulated;
  int threaded = 2;

  const gdpo::cuda::Tuning& tuning() const { return simulated.tuning(); }
  template <class Kernel>
  void launch(gdpo::index_t blocks, int threads, std::size_t shared_bytes,
              const Kernel& kernel) const {
    if (threaded == 0) return simulated.launch(blocks, threads, shared_bytes, kernel);
    static_assert(std::is_trivially_copyable_v<Kernel>, "a kernel is copied to the device");
    if (threads % gdpo::cuda::warp != 0 || threads < 1 || threads > gdpo::cuda::most_threads)
      std::abort();
    ++simulated.launches;
    if (blocks == 0) return;
    std::mt19937 random(simulated.seed);
    std::vector<gdpo::index_t> order(static_cast<std::size_t>(blocks));
    std::iota(order.rbegin(), order.rend(), gdpo::index_t{0});
    std::shuffle(order.begin() + 1, order.end(), random);
    const auto by_threads = order.begin() + (std::min)(blocks, gdpo::index_t{threaded});
    std::deque<ThreadedBlocks<Kernel>> running;
    for (auto b = order.begin(); b != by_threads; ++b)
      running.emplace_back(*b, blocks, threads, shared_bytes, kernel);
    std::size_t used = 0;
    for (auto& block : running) used = block.take(used);
    Thread::launch().leave();
    for (auto& block : running) block.run(random);
    for (auto b = by_threads; b != order.end(); ++b) {
      SimulatedBlock block(*b, blocks, threads, shared_bytes, random);
      kernel(block);
    }
    Thread::end().enter();
  }
};
