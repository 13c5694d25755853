// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "nprf/cuda/device/runtime.hpp"

namespace nprf::bench {

/// Milliseconds of one call, measured by events on the device around several calls. After two warm-up calls it is the
/// median of seven samples of at least a millisecond each, after a sample that is discarded. Calls shorter than a
/// millisecond are captured in a graph, so that the launch overhead of the host is not measured. A call of 100 ms or
/// more is measured once.
///
/// All calls use the same arrays, so that arrays which fit in the L2 cache are read from it.
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
    cudaGraphExec_t executable = nullptr;
    cuda::check(cudaStreamBeginCapture(m_stream, cudaStreamCaptureModeGlobal), "capturing");
    for (int k = 0; k < calls; ++k) call(m_stream);
    cuda::check(cudaStreamEndCapture(m_stream, &graph), "capturing");
    cuda::check(cudaGraphInstantiate(&executable, graph, 0), "instantiating a graph");
    const double ms = median([&] { cuda::check(cudaGraphLaunch(executable, m_stream), "launching a graph"); }) / calls;
    cudaGraphExecDestroy(executable);
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
