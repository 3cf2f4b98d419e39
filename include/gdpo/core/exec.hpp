#pragma once
// Execution tags, the first argument of every long form, and how work is handed out.
#include <algorithm>
#include <atomic>
#include <gdpo/core/view.hpp>
#include <type_traits>
#include <utility>

namespace gdpo {

/// One thread, one number at a time. The reference: every other target gives its bits.
struct Seq {};
inline constexpr Seq seq{};

/// One thread, in vector lanes.
struct Simd {};
inline constexpr Simd simd{};

/// Vector lanes on the threads of an executor. Made by parallel().
template <class Executor>
struct Parallel {
  Executor executor;
};

template <class E, class = void>
constexpr bool is_executor_v = false;
template <class E>
constexpr bool is_executor_v<
    E, std::void_t<decltype(std::declval<const Parallel<E>&>().executor.concurrency()),
                   decltype(std::declval<const Parallel<E>&>().executor.for_each(
                       index_t{}, std::declval<void (&)(index_t)>()))>> = true;

/// Threads are the caller's: an executor is OpenMp{} (with/openmp.hpp), a ThreadPool (with/thread_pool.hpp), or has, const where it is held by value,
///   template <class F> void for_each(index_t n, const F& f);    calls f(0) ... f(n - 1), each once, on any threads, in any order;
///                                                               returns when all have returned. f does not throw.
///   int concurrency() const;                                    how many of them may run at once
/// An lvalue is held by reference and must outlive the call. The bits do not depend on the number of threads: work is cut into
/// units that the shape alone decides, and their sums are added in the order of the units. Small batches stay on one thread.
///   gdpo::ThreadPool pool(8);
///   loss(gdpo::parallel(pool), batch, normaliser, gradient, workspace);
template <class Executor>
constexpr Parallel<Executor> parallel(Executor&& executor) {
  static_assert(is_executor_v<Executor>,
                "an executor needs, const where it is held by value: int concurrency() const; "
                "template <class F> void for_each(gdpo::index_t n, const F& f)");
  return {std::forward<Executor>(executor)};
}

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Tags that run on the calling thread alone: what several workers need is not compiled for them.
template <class Exec>
constexpr bool has_one_worker_v = std::is_same_v<Exec, Seq> || std::is_same_v<Exec, Simd>;

template <class Exec>
constexpr bool is_exec_v = has_one_worker_v<Exec>;
template <class E>
constexpr bool is_exec_v<Parallel<E>> = true;
/// For a static_assert at the door of a call of the host: true, or the one sentence that says what its tag is.
template <class Exec>
constexpr bool needs_exec() {
  static_assert(is_exec_v<Exec>,
                "the first argument is gdpo::seq, gdpo::simd or gdpo::parallel(executor)");
  return true;
}

/// An execution tag that launches kernels has `static constexpr bool launches_kernels = true` (cuda/device/kernel.hpp).
template <class Exec, class = void>
constexpr bool is_device_v = false;
template <class Exec>
constexpr bool is_device_v<Exec, std::enable_if_t<Exec::launches_kernels>> = true;

/// Numbers read below which a second thread costs more than it saves (the fork and join of a pool is 1 to 10 us).
constexpr index_t worth_a_thread = 8192;

/// How many workers will run: 1, but for `units` that are worth more. `numbers`: how many the work reads.
template <class Exec>
index_t workers_for(const Exec&, index_t, index_t) {
  return 1;
}
template <class E>
index_t workers_for(const Parallel<E>& exec, index_t units, index_t numbers) {
  const index_t most = (std::min)(
      {static_cast<index_t>(exec.executor.concurrency()), units, numbers / worth_a_thread});
  return (std::max<index_t>)(most, 1);
}

/// f(worker, unit) for every unit, handed out one by one: in order on one worker, else to whoever is free. A worker runs one
/// unit at a time, so memory that belongs to a worker needs no lock.
template <class Exec, class F>
void for_each_unit(const Exec& exec, index_t workers, index_t units, const F& f) {
  if constexpr (!has_one_worker_v<Exec>) {
    if (workers > 1) {
      std::atomic<index_t> next{0};
      exec.executor.for_each(workers, [&](index_t worker) {
        for (index_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < units;)
          f(worker, unit);
      });
      return;
    }
  }
  for (index_t unit = 0; unit < units; ++unit) f(0, unit);
}

}  // namespace detail
GDPO_END_NAMESPACE
