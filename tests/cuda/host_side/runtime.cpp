#include "runtime.hpp"

#include <cstdlib>
#include <cstring>

namespace runtime {

State state;

}  // namespace runtime

using runtime::state;

namespace {

/// Returns code and, if it is an error, keeps it for cudaGetLastError.
cudaError_t gives(cudaError_t code) {
  if (code != cudaSuccess) state.last = code;
  return code;
}
/// The limit of a kernel on the current device. At first, static and dynamic memory share 48 KiB.
int& limit(const void* kernel) {
  return state.limits.try_emplace({state.device, kernel}, 48 * 1024 - runtime::own_shared)
      .first->second;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = state.device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? runtime::most_shared
           : attribute == cudaDevAttrComputeCapabilityMajor     ? 9
                                                                : 132;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* is, const void* kernel) {
  *is = {};
  is->sharedSizeBytes = runtime::own_shared;
  is->maxDynamicSharedSizeBytes = limit(kernel);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
      value + runtime::own_shared > runtime::most_shared) {
    return gives(cudaErrorInvalidValue);
  }
  limit(kernel) = value;
  const auto other = std::exchange(state.after_asking, nullptr);
  if (other) other();
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, std::size_t shared_bytes,
                             cudaStream_t) {
  if (shared_bytes > static_cast<std::size_t>(limit(kernel))) return gives(cudaErrorInvalidValue);
  ++state.launches;
  return gives(std::exchange(state.launch_code, cudaSuccess));
}
cudaError_t cudaGetLastError() { return std::exchange(state.last, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorInvalidValue ? "cudaErrorInvalidValue" : "?";
}
const char* cudaGetErrorString(cudaError_t) { return "as told"; }

cudaError_t cudaMalloc(void** to, std::size_t bytes) {
  *to = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice) {
    state.under_way.push_back({to, from, bytes});
  } else {
    std::memcpy(to, from, bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  for (const runtime::State::Copy& copy : state.under_way)
    std::memcpy(copy.to, copy.from, copy.bytes);
  state.under_way.clear();
  return cudaSuccess;
}

}  // extern "C"
