#pragma once
// Execution tags, which are the first argument of every long form of a call, and the way work is
// handed out to threads.
#include <algorithm>
#include <atomic>
#include <gdpo/core/view.hpp>
#include <type_traits>
#include <utility>

namespace gdpo {

/// Runs on one thread, one number at a time.
///
/// It is the reference: `simd` and `parallel()` give the same bits. Only the sign and payload of a
/// NaN may differ; where one gives a NaN, so do the others.
struct Seq {};
/// The tag of Seq.
inline constexpr Seq seq{};

/// Runs on one thread, in vector lanes.
struct Simd {};
/// The tag of Simd.
inline constexpr Simd simd{};

/// Runs in vector lanes on the threads of an executor; parallel() makes it.
template <class Executor>
struct Parallel {
  Executor executor;  ///< The executor, or a reference to it if parallel() was given an lvalue.
};

/// Whether `Parallel<E>` can be used: E has the members that parallel() needs.
template <class E, class = void>
constexpr bool is_executor_v = false;
template <class E>
constexpr bool is_executor_v<
    E, std::void_t<decltype(std::declval<const Parallel<E>&>().executor.concurrency()),
                   decltype(std::declval<const Parallel<E>&>().executor.for_each(
                       index_t{}, std::declval<void (&)(index_t)>()))>> = true;

/// The execution tag that runs a call on the threads of `executor`.
///
/// A call starts no threads of its own. An executor is `OpenMp{}` (with/openmp.hpp), a ThreadPool
/// (with/thread_pool.hpp), or any class with these two members:
///
///     template <class F>
///     void for_each(index_t n, const F& f);  // calls f(0), ..., f(n - 1)
///     int concurrency() const;               // how many of these calls may run at once
///
/// `for_each` makes each call once, on any thread and in any order, and returns when all calls have
/// returned. The f that the library passes does not throw. An lvalue executor is held by reference
/// and must outlive the call. An rvalue is held by value, and then both members must be const.
///
/// The bits of a result do not depend on the number of threads: the shape of the batch alone
/// decides how the work is cut into units, and the sums of the units are added in their order. A
/// batch that is too small to gain from a second thread runs on the calling thread.
///
///     gdpo::ThreadPool pool(8);
///     loss(gdpo::parallel(pool), batch, normalizer, gradient, workspace);
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

/// Whether a tag runs on the calling thread alone. The code for several workers is not compiled for
/// such a tag.
template <class Exec>
constexpr bool has_one_worker_v = std::is_same_v<Exec, Seq> || std::is_same_v<Exec, Simd>;

/// Whether Exec is a tag of the host.
template <class Exec>
constexpr bool is_exec_v = has_one_worker_v<Exec>;
template <class E>
constexpr bool is_exec_v<Parallel<E>> = true;
/// Always true: a tag that is not one of the host stops the compiler with one readable message.
/// Public functions put it into a static_assert, so that a wrong tag causes no errors deep inside
/// the library.
template <class Exec>
constexpr bool needs_exec() {
  static_assert(is_exec_v<Exec>,
                "the first argument is gdpo::seq, gdpo::simd or gdpo::parallel(executor)");
  return true;
}

/// Whether a tag launches kernels: it then has `static constexpr bool launches_kernels = true`
/// (cuda/device/kernel.hpp).
template <class Exec, class = void>
constexpr bool is_device_v = false;
template <class Exec>
constexpr bool is_device_v<Exec, std::enable_if_t<Exec::launches_kernels>> = true;

/// A further thread is used for every so many numbers that the work reads. With fewer it costs more
/// than it saves, because handing work to a pool and waiting for it takes 1 to 10 us.
constexpr index_t worth_a_thread = 8192;

/// How many workers run work of `units` units that reads `numbers` numbers. That is 1 or more, but
/// not more than the executor's concurrency, the units, or one for each `worth_a_thread` numbers.
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

/// Calls f(worker, unit) once for every unit. One worker takes the units in their order; of several
/// workers, each takes the next unit as soon as it is free. A worker runs one unit at a time, so
/// memory that belongs to a worker needs no lock.
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
