#pragma once
#include <atomic>
#include <exception>
#include <gdpo/core/view.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Exceptions of units that run on several workers, none of which may end its worker: of all, the one that a loop over the
/// units would have met first.
class FirstError {
 public:
  template <class F>
  void guard(index_t unit, const F& f) {
#if defined(__cpp_exceptions)
    try {
      f();
    } catch (...) {
      while (busy_.test_and_set(
          std::memory_order_acquire)) {  // a few stores long, and errors are rare
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
  void rethrow() const {
#if defined(__cpp_exceptions)
    if (error_) std::rethrow_exception(error_);
#endif
  }

 private:
#if defined(__cpp_exceptions)
  std::atomic_flag busy_ =
      ATOMIC_FLAG_INIT;  // <mutex> brings <chrono>, which every user would read
  std::exception_ptr error_;
  index_t unit_ = 0;
#endif
};

}  // namespace detail
GDPO_END_NAMESPACE
