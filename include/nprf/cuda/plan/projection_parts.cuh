// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "nprf/cuda/device/arithmetic.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/feature_map/tensor_projection.cuh"
#include "nprf/cuda/model.hpp"

namespace nprf::cuda {

/// The projections of a model in the parts that tensor cores multiply (feature_map/tensor_projection.cuh), on the
/// device, for tokens of one type. There may be no parts: then tensor cores do not compute projections.
class ProjectionParts {
 public:
  ProjectionParts() = default;

  /// The parts for tokens of type T. There are none if the device has no instruction for T or the kernels were not
  /// compiled for such a device, if the features have no projections or a centring, if d is not a multiple of 16, or if
  /// features are in pairs and m is not a multiple of 8. Waits for the stream. Throws BackendError if CUDA reports an
  /// error. O(m d) for each map.
  template <MmaFactor T>
  static ProjectionParts of(const std::vector<FeatureModel>& maps, const Device& device, cudaStream_t stream) {
    constexpr int least = std::is_same_v<T, __half> ? 75 : 80;
    ProjectionParts parts;
    if (!are_whole_groups(maps.front()) || device.capability < least || compiled_for(subnormal_kernel<0>) < least)
      return parts;
    ProjectionFragments& fragments = std::is_same_v<T, __half> ? parts.m_half : parts.m_bfloat16;
    fragments.unit = unit_of_parts<T>(largest_entry(maps));
    fragments.stride = maps.size() == 1 ? 0 : ProjectionFragments::size(maps.front().m, maps.front().d);
    std::vector<uint4> all;
    for (const FeatureModel& one : maps) append_fragments<T>(all, one.projection.data(), one.m, one.d, fragments.unit);
    parts.m_memory = DeviceMemory(all.size() * sizeof(uint4));
    check(
        cudaMemcpyAsync(parts.m_memory.data(), all.data(), all.size() * sizeof(uint4), cudaMemcpyHostToDevice, stream),
        "copying projections");
    check(cudaStreamSynchronize(stream), "copying projections");
    fragments.values = static_cast<const uint4*>(parts.m_memory.data());
    return parts;
  }

  /// The parts for tokens of type S; null if there are none or they are for another type.
  template <Storage S>
  ProjectionFragments fragments() const {
    if constexpr (MmaFactor<S>)
      return std::is_same_v<S, __half> ? m_half : m_bfloat16;
    else
      return {};
  }

 private:
  static bool are_whole_groups(const FeatureModel& map) {
    const FeatureTraits traits = traits_of(map.kind);
    return traits.has_projections && map.centring.is_empty() && map.d % ProjectionFragments::step == 0 &&
           (!traits.has_pairs || map.m % ProjectionFragments::features_of_lane == 0);
  }
  static float largest_entry(const std::vector<FeatureModel>& maps) {
    float largest = 0;
    for (const FeatureModel& one : maps)
      for (const float entry : one.projection) largest = std::max(largest, std::abs(entry));
    return largest;
  }

  DeviceMemory m_memory;
  ProjectionFragments m_half, m_bfloat16;
};

}  // namespace nprf::cuda
