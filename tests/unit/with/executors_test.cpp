// labels: sanitizers, long
// The executors that the library brings call every index once, for any size and from any caller.
#include <algorithm>
#include <array>
#include <atomic>
#include <gdpo/with/thread_pool.hpp>
#include <set>
#include <thread>
#include <vector>
#ifdef _OPENMP
#include <gdpo/with/openmp.hpp>
#endif

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/message.hpp"

namespace executors_test {

namespace {

using gdpo::index_t;

/// Returns "" if for_each(n) calls every index once.
template <class Executor>
std::string wrong_calls(Executor& executor, index_t n) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
  executor.for_each(n, [&](index_t i) { ++calls[static_cast<std::size_t>(i)]; });
  for (index_t i = 0; i < n; ++i) {
    const int times = calls[static_cast<std::size_t>(i)];
    if (times != 1)
      return "index " + std::to_string(i) + " of " + std::to_string(n) + ": " +
             std::to_string(times);
  }
  return "";
}

template <class Executor>
void check_executor(Executor& executor, int workers) {
  INFO(workers << " workers");
  CHECK(executor.concurrency() == workers);
  for (index_t n = 0; n <= 70; ++n) CHECK(wrong_calls(executor, n) == "");
  for (const index_t n : {1000, 4099, 100000}) CHECK(wrong_calls(executor, n) == "");

  // Many calls in a row: none is lost between two of them.
  std::atomic<long> sum{0};
  constexpr long times = few_rounds ? 500 : 10000;
  for (long call = 0; call < times; ++call)
    executor.for_each(workers, [&](index_t i) { sum += i + 1; });
  CHECK(sum == times * workers * (workers + 1) / 2);

  // The function sees what the caller wrote before the call, and the caller sees what the function
  // wrote.
  std::vector<long> values(64, 0);
  constexpr long last = few_rounds ? 200 : 2000;
  for (long call = 1; call <= last; ++call) {
    executor.for_each(64, [&](index_t i) { values[static_cast<std::size_t>(i)] += call; });
  }
  CHECK(values == std::vector<long>(64, last * (last + 1) / 2));

  // Calls from inside a call.
  std::array<std::atomic<int>, 12> inner{};
  executor.for_each(3, [&](index_t i) {
    executor.for_each(4, [&](index_t j) { ++inner[static_cast<std::size_t>(4 * i + j)]; });
  });
  for (const auto& calls : inner) CHECK(calls == 1);

  // Calls from several threads at once.
  std::vector<std::string> wrong(4);
  std::vector<std::thread> callers;
  for (std::size_t c = 0; c < wrong.size(); ++c) {
    callers.emplace_back([&, c] {
      for (int call = 0; call < 200 && wrong[c].empty(); ++call)
        wrong[c] = wrong_calls(executor, 1 + call % 17);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& message : wrong) CHECK(message == "");
}

}  // namespace

TEST_CASE("a ThreadPool calls every index once", "[executors]") {
  for (int workers = 1; workers <= 7; ++workers) {
    gdpo::ThreadPool pool(workers);
    check_executor(pool, workers);
  }
}

TEST_CASE("a ThreadPool without a number has one worker a processor", "[executors]") {
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  CHECK(gdpo::ThreadPool().concurrency() == (processors > 0 ? processors : 1));
  CHECK(gdpo::ThreadPool(0).concurrency() == gdpo::ThreadPool().concurrency());
  CHECK(message_of([] { gdpo::ThreadPool(-1); }) ==
        "gdpo::ThreadPool: workers: given -1; needed: 0 (all) or more");
}

TEST_CASE("the workers of a ThreadPool run at once", "[executors]") {
  gdpo::ThreadPool pool(4);
  for (int call = 0; call < 200; ++call) {
    std::atomic<int> arrived{0};
    std::array<std::thread::id, 4> ids;
    pool.for_each(4, [&](index_t i) {  // no call returns before all four have begun
      ids[static_cast<std::size_t>(i)] = std::this_thread::get_id();
      for (++arrived; arrived < 4;) std::this_thread::yield();
    });
    REQUIRE(std::set<std::thread::id>(ids.begin(), ids.end()).size() == 4);
    // The caller is one of the workers.
    REQUIRE(std::count(ids.begin(), ids.end(), std::this_thread::get_id()) == 1);
  }
}

TEST_CASE("pools that call each other do not wait for each other", "[executors]") {
  gdpo::ThreadPool a(3), b(3);
  std::atomic<int> calls{0};
  for (int call = 0; call < 200; ++call) {
    a.for_each(3, [&](index_t) {
      b.for_each(3, [&](index_t) { a.for_each(2, [&](index_t) { ++calls; }); });
    });
  }
  CHECK(calls == 200 * 3 * 3 * 2);
}

TEST_CASE("a ThreadPool comes and goes, used or not", "[executors]") {
  for (int life = 0; life < 300; ++life) {
    gdpo::ThreadPool pool(1 + life % 5);
    if (life % 3 == 0) continue;
    std::atomic<int> calls{0};
    pool.for_each(5, [&](index_t) { ++calls; });
    REQUIRE(calls == 5);
  }
}

TEST_CASE("a call of a ThreadPool allocates nothing", "[executors]") {
  gdpo::ThreadPool pool(3);
  std::atomic<long> sum{0};
  const long before = counted::allocations;
  for (int call = 0; call < 100; ++call) pool.for_each(50, [&](index_t i) { sum += i; });
  CHECK(counted::allocations == before);
  CHECK(sum == 100 * 49 * 25);
}

TEST_CASE("a plain function is work as well", "[executors]") {
  static std::atomic<int> calls{0};
  struct Work {
    static void add(index_t) { ++calls; }
  };
  gdpo::ThreadPool pool(2);
  pool.for_each(9, Work::add);
  CHECK(calls == 9);
}

#ifdef _OPENMP
TEST_CASE("OpenMp calls every index once", "[executors]") {
  for (int workers = 1; workers <= 5; ++workers) {
    const gdpo::OpenMp openmp{workers};
    check_executor(openmp, workers);
  }
}

TEST_CASE("OpenMp follows OpenMP's settings and leaves them", "[executors]") {
  const int threads = omp_get_max_threads();
  CHECK(gdpo::OpenMp{}.concurrency() == threads);
  std::atomic<int> most{0};
  gdpo::OpenMp{3}.for_each(3, [&](index_t) { most = omp_get_num_threads(); });
  CHECK(most == 3);
  CHECK(omp_get_max_threads() == threads);
  CHECK(message_of([] { gdpo::OpenMp{-2}.for_each(1, [](index_t) {}); }) ==
        "gdpo::OpenMp: threads: given -2; needed: 0 (all) or more");
}
#endif

}  // namespace executors_test
