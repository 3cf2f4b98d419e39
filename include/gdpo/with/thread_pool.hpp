#pragma once
/// \file
/// Executor for callers without a thread pool or OpenMP of their own: threads that wait for work.
///
///     gdpo::ThreadPool pool(8);  // once
///     gdpo::advantages_into(gdpo::parallel(pool), batch, estimator, out, workspace);
///
/// Needs the standard library only; in CMake link Threads::Threads.
#include <atomic>
#include <condition_variable>
#include <gdpo/core/errors.hpp>
#include <mutex>
#include <thread>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// A pool of threads for `gdpo::parallel`. The thread that calls `for_each` is one of its workers.
/// Calls from several threads take turns. A call from inside f, of this pool or another, runs on
/// the thread that makes it.
class ThreadPool {
 public:
  /// A pool with that many workers, the calling thread included; 0: one for each processor thread
  /// of the machine. Errors: `invalid_input` for a negative number.
  explicit ThreadPool(int workers = 0) : ThreadPool(Empty{}) {
    if (workers < 0)
      contract::fail("gdpo::ThreadPool", "workers", contract::text(index_t{workers}),
                     "0 (all) or more");
    if (workers == 0) workers = static_cast<int>(std::thread::hardware_concurrency());
    for (int i = 1; i < workers; ++i) threads_.emplace_back([this] { serve(); });
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// The number of workers, the calling thread included.
  int concurrency() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls f(0) ... f(n - 1), each once, and returns when all have returned. It allocates nothing.
  /// An f that throws ends the program.
  template <class F>
  void for_each(index_t n, const F& f) {
    const auto call = [&f](index_t i) noexcept { f(i); };
    if (n <= 1 || threads_.empty() || inside()) {
      for (index_t i = 0; i < n; ++i) call(i);
      return;
    }
    Job job{
        [](const void* function, index_t i) { (*static_cast<const decltype(call)*>(function))(i); },
        &call, n};
    const std::lock_guard<std::mutex> turn(turn_);
    post(&job);
    wake_.notify_all();
    job.run();
    post(nullptr);  // a thread that wakes up from now on finds no job
    const auto done = [this] { return busy_.load(std::memory_order_acquire) == 0; };
    if (soon(done)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, done);
  }

 private:
  // The constructor delegates to this one. The object then counts as constructed, so that the
  // destructor stops the threads that already run if a later one cannot be started.
  struct Empty {};
  explicit ThreadPool(Empty) {}

  /// One call of for_each. `next` is the next index; every worker takes one after the other.
  struct Job {
    void (*call)(const void*, index_t);
    const void* f;
    index_t n;
    std::atomic<index_t> next{0};

    bool waits() const { return next.load(std::memory_order_relaxed) < n; }
    void run() {
      const bool outer = inside();
      inside() = true;
      for (index_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) call(f, i);
      inside() = outer;
    }
  };

  /// Whether the calling thread is inside f of any pool.
  static bool& inside() {
    thread_local bool flag = false;
    return flag;
  }

  /// Sets the job that waking threads find, or none.
  void post(Job* job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    job_ = job;
    if (job) jobs_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Waits for `happened` for some 50 us without going to sleep, which would take longer; whether
  /// it happened. Other threads may run meanwhile.
  template <class Condition>
  static bool soon(const Condition& happened) {
    for (int tries = 0; tries < 100; ++tries) {
      if (happened()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  /// What a thread of the pool does until the pool ends.
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || (job_ && job_->waits()); });
      if (stop_) return;
      Job& job = *job_;
      busy_.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job.run();
      lock.lock();
      if (busy_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
      // The next job often follows at once, so wait for it a little before going to sleep.
      const index_t count = jobs_.load(std::memory_order_relaxed);
      lock.unlock();
      soon([&] { return jobs_.load(std::memory_order_relaxed) != count; });
      lock.lock();
    }
  }

  std::mutex turn_;   // held by the call of for_each whose turn it is
  std::mutex mutex_;  // guards the members below; the atomics are also read without it
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;            // what waking threads work on; null: nothing
  std::atomic<index_t> jobs_{0};  // number of jobs so far
  std::atomic<int> busy_{0};      // threads that work on a job, without the calling thread
  bool stop_ = false;             // the pool ends
  std::vector<std::thread> threads_;
};

GDPO_END_NAMESPACE
