#pragma once
// How communicators wait for other ranks: with a deadline, because nothing may wait for ever.
#include <algorithm>
#include <chrono>
#include <gdpo/core/errors.hpp>
#include <gdpo/math/scalar.hpp>
#include <thread>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The clock of deadlines. It never goes back.
using WaitClock = std::chrono::steady_clock;
/// A time as a number of seconds.
using Seconds = std::chrono::duration<double>;

/// A deadline given in seconds. Throws invalid_input in the name of `function` unless it is above 0
/// and at most 1e9.
inline Seconds checked_deadline(const char* function, double seconds) {
  if (math::not_finite(seconds) || seconds <= 0 || seconds > 1e9)
    contract::fail(function, "deadline", contract::text(seconds),
                   "a number of seconds above 0 and at most 1e9");
  return Seconds(seconds);
}

/// Rests before the next look at what is waited for. After the first millisecond a rest is an
/// eighth of the time waited so far, at most 1 ms, so the wait gets longer by no more than that.
inline void rest(Seconds waited) {
  constexpr Seconds nap(1e-3);
  if (waited > nap)
    std::this_thread::sleep_for((std::min)(waited / 8, nap));
  else
    std::this_thread::yield();
}

/// The time since `begin` in words: "0.123 s".
inline std::string time_since(WaitClock::time_point begin) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", Seconds(WaitClock::now() - begin).count());
  return text;
}

}  // namespace detail
GDPO_END_NAMESPACE
