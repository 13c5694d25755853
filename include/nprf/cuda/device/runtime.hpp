// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "nprf/core/error.hpp"

namespace nprf::cuda {

/// Throws BackendError with the operation and the runtime's error message unless the call succeeded.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears a non-sticky error, so that it is reported only once
  throw BackendError(
      nprf::detail::sentence("CUDA: ", what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

/// Properties of the current device.
struct Device {
  int number = 0;
  int capability = 0;  // ten times the version: 70 for Volta, 90 for Hopper
  int multiprocessors = 0;
  std::size_t shared_bytes = 0;   // maximum per block
  bool has_memory_pools = false;  // which cudaMallocAsync needs

  /// Throws BackendError if there is no device, or if it is older than Volta.
  static Device current() {
    Device device;
    int count = 0, major = 0, minor = 0, shared = 0, pools = 0;
    check(cudaGetDeviceCount(&count), "looking for a device");
    check(cudaGetDevice(&device.number), "querying the current device");
    const auto query = [&](int& value, cudaDeviceAttr attribute) {
      check(cudaDeviceGetAttribute(&value, attribute, device.number), "querying device attributes");
    };
    query(major, cudaDevAttrComputeCapabilityMajor);
    query(minor, cudaDevAttrComputeCapabilityMinor);
    query(device.multiprocessors, cudaDevAttrMultiProcessorCount);
    query(shared, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    query(pools, cudaDevAttrMemoryPoolsSupported);
    device.capability = 10 * major + minor;
    device.shared_bytes = static_cast<std::size_t>(shared);
    device.has_memory_pools = pools != 0;
    if (device.capability < 70)
      throw BackendError(nprf::detail::sentence(
          "CUDA: expected a device of compute capability 7.0 (Volta) or newer, got ", major, ".", minor));
    return device;
  }

  /// Throws InvalidArgument unless this is the current device.
  void check_current() const {
    int current = 0;
    check(cudaGetDevice(&current), "querying the current device");
    require(current == number, "device: expected ", number, ", the current device at construction, got ", current);
  }
};

/// Memory on the current device, freed by the destructor.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws BackendError if the allocation fails.
  explicit DeviceMemory(std::size_t bytes) {
    if (bytes == 0) return;
    const cudaError_t status = cudaMalloc(&m_data, bytes);
    if (status != cudaSuccess) check(status, nprf::detail::sentence("allocating ", bytes, " bytes").c_str());
  }
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory() {
    if (m_data) cudaFree(m_data);
  }

  void* data() const { return m_data; }

 private:
  void swap(DeviceMemory& other) noexcept { std::swap(m_data, other.m_data); }

  void* m_data = nullptr;
};

/// Memory from the device's pool (cudaMallocAsync). The destructor queues its release in the stream, after the work
/// that has been queued by then. If the stream is captured in a graph, the allocation and the release are part of the
/// graph.
class StreamMemory {
 public:
  /// Throws BackendError if the allocation fails.
  StreamMemory(std::size_t bytes, cudaStream_t stream) : m_stream(stream) {
    const cudaError_t status = cudaMallocAsync(&m_data, bytes, stream);
    if (status != cudaSuccess) check(status, nprf::detail::sentence("allocating ", bytes, " bytes").c_str());
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  ~StreamMemory() { cudaFreeAsync(m_data, m_stream); }

  void* data() const { return m_data; }

 private:
  void* m_data = nullptr;
  cudaStream_t m_stream;
};

/// Waits for all work of the stream, and returns a copy of an object in device memory. Throws BackendError if CUDA
/// reports an error.
template <class T>
T copied_to_host(const T* from, cudaStream_t stream) {
  static_assert(std::is_trivially_copyable_v<T>);
  T to{};
  check(cudaMemcpyAsync(&to, from, sizeof(T), cudaMemcpyDeviceToHost, stream), "copying to the host");
  check(cudaStreamSynchronize(stream), "copying to the host");
  return to;
}

/// While an object of this class exists, nothing that its thread queues by launch(), queue_fill() and CufftPlan is run,
/// and no memory of theirs is accessed: launch() only loads the kernel, and kernels of cuFFT are not loaded. Otherwise
/// CUDA loads a kernel when it is first used (lazy loading), which may fail while the stream is captured in a graph,
/// and delays the first call.
class KernelLoading {
 public:
  KernelLoading() : m_was_active(active()) { active() = true; }
  KernelLoading(const KernelLoading&) = delete;
  KernelLoading& operator=(const KernelLoading&) = delete;
  ~KernelLoading() { active() = m_was_active; }

  /// Whether this thread has an object of this class.
  static bool is_active() { return active(); }

 private:
  static bool& active() {
    static thread_local bool value = false;
    return value;
  }

  bool m_was_active;
};

/// Queues a memset: sets `bytes` bytes from `to` on to `byte`. Throws BackendError with the operation if CUDA reports
/// an error.
inline void queue_fill(const char* what, void* to, int byte, std::size_t bytes, cudaStream_t stream) {
  if (!KernelLoading::is_active()) check(cudaMemsetAsync(to, byte, bytes, stream), what);
}

}  // namespace nprf::cuda
