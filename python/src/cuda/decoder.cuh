// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "device_view.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/plan/decode_plan.cuh"

namespace nprf::python {

template <cuda::Storage S>
class DeviceDecoderOf : public DeviceDecoder {
 public:
  explicit DeviceDecoderOf(DecoderProblem problem)
      : m_plan(std::move(problem.model),
               {.batch = problem.batch,
                .heads = problem.heads,
                .d_v = problem.d_v,
                .max_tokens = problem.max_tokens,
                .heads_k = problem.heads_k,
                .rollback = problem.rollback},
               cuda_stream(problem.stream)) {}

  std::size_t bytes() const override { return m_plan.bytes(); }

  void append(const DeviceArray& k, const DeviceArray& v, const int* lengths, void* stream) override {
    m_plan.append(device_view<const S>(k), device_view<const S>(v), {lengths}, cuda_stream(stream));
  }
  void step(const DeviceInputs& x, const DeviceArray& y, const int* lengths, void* stream) override {
    m_plan.step(device_view<const S>(x.q), device_view<const S>(x.k), device_view<const S>(x.v), device_view<S>(y),
                {lengths}, cuda_stream(stream));
  }

  void rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, void* stream) override {
    m_plan.rollback(sequence, tokens, cuda_stream(stream));
  }
  void rollback(const int* tokens, void* stream) override { m_plan.rollback(tokens, cuda_stream(stream)); }
  void reorder(const int* from, void* stream) override { m_plan.reorder(from, cuda_stream(stream)); }
  void fork(std::ptrdiff_t from, std::ptrdiff_t to, void* stream) override {
    m_plan.fork(from, to, cuda_stream(stream));
  }
  void reset(std::ptrdiff_t sequence, void* stream) override { m_plan.reset(sequence, cuda_stream(stream)); }
  void reset(void* stream) override { m_plan.reset(cuda_stream(stream)); }

  std::vector<int> tokens(void* stream) const override {
    const auto batch = static_cast<std::size_t>(m_plan.shape().batch),
               heads = static_cast<std::size_t>(m_plan.shape().heads);
    std::vector<int> of_heads(batch * heads), all;
    cuda::check(cudaMemcpyAsync(of_heads.data(), m_plan.tokens(), of_heads.size() * sizeof(int), cudaMemcpyDeviceToHost,
                                cuda_stream(stream)),
                "copying to the host");
    cuda::check(cudaStreamSynchronize(cuda_stream(stream)), "copying to the host");
    for (std::size_t b = 0; b < batch; ++b) all.push_back(of_heads[b * heads]);
    return all;
  }
  std::map<std::string, int> counts(void* stream) const override {
    const cuda::DecodeCounts counts = m_plan.host_counts(cuda_stream(stream));
    return {{"empty_rows", counts.empty_rows},
            {"indefinite_rows", counts.indefinite_rows},
            {"failing_rows", counts.failing_rows},
            {"rejected_tokens", counts.rejected_tokens},
            {"rejected_rollbacks", counts.rejected_rollbacks},
            {"rejected_reorders", counts.rejected_reorders}};
  }

 private:
  static cudaStream_t cuda_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

  cuda::DecodePlan<S> m_plan;
};

}  // namespace nprf::python
