#pragma once
/// Threads that wait for work: the executor of parallel() that needs nothing but the standard library (link Threads::Threads).
///   gdpo::ThreadPool pool(8);
///   gdpo::advantages_into(gdpo::parallel(pool), batch, estimator, out, workspace);
#include <atomic>
#include <condition_variable>
#include <gdpo/core/errors.hpp>
#include <mutex>
#include <thread>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// `workers` threads, the caller of for_each being one of them; 0: as many as the machine has. Calls from several threads take
/// turns; a call from inside f (of this pool or another) runs on the thread it is made from.
class ThreadPool {
 public:
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

  int concurrency() const { return static_cast<int>(threads_.size()) + 1; }

  /// f(0) ... f(n - 1), each once; returns when all have returned. Allocates nothing. An f that throws ends the program.
  template <class F>
  void for_each(index_t n, const F& f) {
    const auto call = [&f](index_t i) noexcept { f(i); };
    if (n <= 1 || threads_.empty() || inside()) {
      for (index_t i = 0; i < n; ++i) call(i);
      return;
    }
    Job job{[](const void* of, index_t i) { (*static_cast<const decltype(call)*>(of))(i); }, &call,
            n};
    const std::lock_guard<std::mutex> turn(turn_);
    post(&job);
    wake_.notify_all();
    job.run();
    post(nullptr);  // who wakes up from now on finds nothing to do
    const auto done = [this] { return busy_.load(std::memory_order_acquire) == 0; };
    if (soon(done)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, done);
  }

 private:
  struct Empty {};
  explicit ThreadPool(Empty) {}  // from here on the destructor runs, should a thread not start

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

  /// This thread runs some f.
  static bool& inside() {
    thread_local bool flag = false;
    return flag;
  }

  void post(Job* job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    job_ = job;
    if (job) jobs_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Whether `happened` within some 50 us, for which going to sleep and waking up would be a waste. Others may run meanwhile.
  template <class Condition>
  static bool soon(const Condition& happened) {
    for (int tries = 0; tries < 100; ++tries) {
      if (happened()) return true;
      std::this_thread::yield();
    }
    return false;
  }

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
      const index_t seen = jobs_.load(std::memory_order_relaxed);
      lock.unlock();
      soon([&] { return jobs_.load(std::memory_order_relaxed) != seen; });
      lock.lock();
    }
  }

  std::mutex turn_;   // one call of for_each at a time
  std::mutex mutex_;  // of all that follows
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  std::atomic<index_t> jobs_{0};  // so far
  std::atomic<int> busy_{0};      // threads in job_, the caller's apart
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

GDPO_END_NAMESPACE
