#pragma once
// TorchThreads: the threads of LibTorch as an executor.
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <gdpo/core/exec.hpp>

GDPO_BEGIN_NAMESPACE

/// The threads on which LibTorch runs its operators on the CPU, as an executor:
///
///     gdpo::torch_loss(gdpo::parallel(gdpo::TorchThreads{}), loss, batch, counts);
///
/// No thread is added to those that LibTorch has, and at::set_num_threads holds for both. Inside an
/// operator or another call of for_each, one thread runs all the work.
struct TorchThreads {
  /// How many calls of f may run at once: at::get_num_threads().
  int concurrency() const { return at::get_num_threads(); }

  /// Calls f(0) ... f(n - 1), each once, and returns when all have returned. It allocates n bytes.
  template <class F>
  void for_each(index_t n, const F& f) const {
    if (n <= 1) {
      for (index_t i = 0; i < n; ++i) f(i);
      return;
    }
    // at::parallel_for is a template. Where LibTorch was built with OpenMP, the code of the caller
    // decides what it does: without -fopenmp it has one thread, and with clang++ those of a second
    // OpenMP. A TensorIterator calls it inside of LibTorch. It walks over one byte for each index,
    // whose address gives the index; no byte is read.
    const at::Tensor bytes = at::empty({static_cast<std::int64_t>(n)}, at::kByte);
    at::TensorBase output = bytes;
    at::TensorIterator walk = at::TensorIterator::nullary_op(output);
    const char* const begin = static_cast<const char*>(bytes.data_ptr());
    const auto calls = [&](char** address, const std::int64_t* strides, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        f(static_cast<index_t>(*address + i * *strides - begin));
    };
    walk.for_each(calls, 1);
  }
};

GDPO_END_NAMESPACE
