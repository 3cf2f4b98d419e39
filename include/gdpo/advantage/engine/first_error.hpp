#pragma once
#include <exception>
#include <gdpo/core/view.hpp>
#include <mutex>

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
      const std::lock_guard<std::mutex> lock(mutex_);
      if (error_ && unit_ < unit) return;
      error_ = std::current_exception();
      unit_ = unit;
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
  std::mutex mutex_;
  std::exception_ptr error_;
  index_t unit_ = 0;
#endif
};

}  // namespace detail
GDPO_END_NAMESPACE
