#pragma once
// Carries an exception out of worker threads.
#include <atomic>
#include <exception>
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Keeps one exception of units that run on several workers, where an exception must not leave a
/// worker. It keeps that of the unit with the lowest number: the one that a loop over the units
/// would have met first.
class FirstError {
 public:
  /// Calls f for this unit and keeps what it throws.
  template <class F>
  void guard(index_t unit, const F& f) {
#if defined(__cpp_exceptions)
    try {
      f();
    } catch (...) {
      while (busy_.test_and_set(std::memory_order_acquire)) {
        // Spins: the lock is held for a few stores, and errors are rare.
      }
      if (!error_ || unit < unit_) {
        error_ = std::current_exception();
        unit_ = unit;
      }
      busy_.clear(std::memory_order_release);
    }
#else
    static_cast<void>(unit);
    f();
#endif
  }
  /// Whether an exception was kept.
  bool caught() const {
#if defined(__cpp_exceptions)
    return error_ != nullptr;
#else
    return false;
#endif
  }
  /// Throws the exception that was kept, if there is one.
  void rethrow() const {
#if defined(__cpp_exceptions)
    if (error_) std::rethrow_exception(error_);
#endif
  }

 private:
#if defined(__cpp_exceptions)
  // Not a std::mutex: <mutex> includes <chrono>, which every user's compiler would read.
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::exception_ptr error_;
  index_t unit_ = 0;
#endif
};

}  // namespace detail
GDPO_END_NAMESPACE
