// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

/// What tests on interpreted kernels may ask beyond the CUDA runtime.
namespace nprf::ptx {

/// The instructions that warps execute in a kernel, and its accesses, summed over its launches. Each pair is what the
/// accesses took, and what the best layout would take: of shared memory passes over the banks, of global memory sectors
/// of 32 bytes.
struct KernelTraffic {
  struct Taken {
    std::uint64_t moved = 0, least = 0;
  };
  Taken shared_loads, shared_stores, global_loads, global_stores;
  std::uint64_t instructions = 0;
};

/// The traffic, while the function runs, of all kernels whose mangled name contains this.
KernelTraffic traffic_of(std::string_view kernel, const std::function<void()>& run);

}  // namespace nprf::ptx
