// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "nprf/cuda/model.hpp"
#include "plan.hpp"

namespace nprf::python {

/// What a decoder on a GPU is made for.
struct DecoderProblem {
  cuda::AttentionModel model;
  std::ptrdiff_t batch, heads, heads_k, d_v, max_tokens, rollback;
  void* stream;
};

/// cuda::DecodePlan of any storage type, without CUDA in its interface, as Plan. Pointers are to the memory of a GPU,
/// and a stream is a cudaStream_t.
class DeviceDecoder {
 public:
  virtual ~DeviceDecoder() = default;
  virtual std::size_t bytes() const = 0;
  virtual void append(const DeviceArray& k, const DeviceArray& v, const int* lengths, void* stream) = 0;
  virtual void step(const DeviceInputs& inputs, const DeviceArray& y, const int* lengths, void* stream) = 0;
  virtual void rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, void* stream) = 0;
  virtual void rollback(const int* tokens, void* stream) = 0;  // [batch]
  virtual void reorder(const int* from, void* stream) = 0;     // [batch]
  virtual void fork(std::ptrdiff_t from, std::ptrdiff_t to, void* stream) = 0;
  virtual void reset(std::ptrdiff_t sequence, void* stream) = 0;
  virtual void reset(void* stream) = 0;
  // these wait for the stream
  virtual std::vector<int> tokens(void* stream) const = 0;  // of each sequence
  virtual std::map<std::string, int> counts(void* stream) const = 0;
};

}  // namespace nprf::python
