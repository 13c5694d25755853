// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "nprf/cuda/device/runtime.hpp"

namespace nprf::bench {

/// Milliseconds of one call, by events on the device around several: after two that warm up, the median of seven
/// samples of a millisecond or more. Calls shorter than a millisecond are captured in a graph, so that the host, which
/// queues them, is not what is measured; the first of all samples is discarded. One that takes 100 ms is measured once.
///
/// Calls follow one another on the same arrays: what fits is in L2.
class Clock {
 public:
  Clock() {
    cuda::check(cudaStreamCreate(&m_stream), "a stream");
    cuda::check(cudaEventCreate(&m_start), "an event");
    cuda::check(cudaEventCreate(&m_stop), "an event");
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() {
    cudaEventDestroy(m_start);
    cudaEventDestroy(m_stop);
    cudaStreamDestroy(m_stream);
  }

  template <class Call>
  double milliseconds(Call&& call) const {
    call(m_stream);
    const double first = once([&] { call(m_stream); });
    if (first >= 100) return first;
    const int calls = static_cast<int>(std::clamp(std::ceil(1 / first), 1.0, 200.0));
    if (first >= 1) return median([&] { call(m_stream); });

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda::check(cudaStreamBeginCapture(m_stream, cudaStreamCaptureModeGlobal), "capturing");
    for (int k = 0; k < calls; ++k) call(m_stream);
    cuda::check(cudaStreamEndCapture(m_stream, &graph), "capturing");
    cuda::check(cudaGraphInstantiate(&ready, graph, 0), "making a graph");
    const double ms = median([&] { cuda::check(cudaGraphLaunch(ready, m_stream), "launching a graph"); }) / calls;
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    return ms;
  }

 private:
  template <class Work>
  double once(Work&& work) const {
    float ms = 0;
    cuda::check(cudaEventRecord(m_start, m_stream), "timing");
    work();
    cuda::check(cudaEventRecord(m_stop, m_stream), "timing");
    cuda::check(cudaEventSynchronize(m_stop), "timing");
    cuda::check(cudaEventElapsedTime(&ms, m_start, m_stop), "timing");
    return std::max(static_cast<double>(ms), 1e-4);
  }

  template <class Work>
  double median(Work&& work) const {
    once(work);
    std::vector<double> samples(7);
    for (double& sample : samples) sample = once(work);
    std::nth_element(samples.begin(), samples.begin() + 3, samples.end());
    return samples[3];
  }

  cudaStream_t m_stream = nullptr;
  cudaEvent_t m_start = nullptr, m_stop = nullptr;
};

}  // namespace nprf::bench
