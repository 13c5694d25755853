// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <utility>
#include <vector>

/// Replaces nprf/cuda/device/async_copy.cuh on the host; the include path finds it first. A copy is made when its
/// thread waits for it, so that bytes which are read too early are old ones.
namespace nprf::cuda {

constexpr bool has_async_copies = true;

namespace async_copy_on_host {

struct Copy {
  void* to;
  const void* from;  // null: zeros
};
/// Those of the threads of a block, of which one host thread runs all.
inline std::vector<Copy>& of_thread() {
  thread_local std::vector<std::vector<Copy>> all;
  const std::size_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  if (all.size() <= thread) all.resize(thread + 1);
  return all[thread];
}

}  // namespace async_copy_on_host

template <int offset>
void start_copy(void* to, const void* from, bool inside) {
  async_copy_on_host::of_thread().push_back({static_cast<char*>(to) + offset, inside ? from : nullptr});
}

inline void wait_for_copies() {
  for (const auto& [to, from] : std::exchange(async_copy_on_host::of_thread(), {}))
    if (from)
      std::memcpy(to, from, 16);
    else
      std::memset(to, 0, 16);
}

}  // namespace nprf::cuda
