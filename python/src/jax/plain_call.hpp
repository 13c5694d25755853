// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace nprf::python {

/// The sizes of contiguous arrays: q [batch, heads, n_q, d], k [batch, kv_heads, n_k, d], v [batch, kv_heads, n_k,
/// d_v], bias [bias_rows, parameters] of a position, one row for all heads or one for each; 0 parameters: no position.
/// Query i has position i + offset.
struct PlainShape {
  std::int64_t batch, heads, kv_heads, n_q, n_k, d, d_v, bias_rows, parameters, offset;
};

struct PlainInputs {
  const void *q, *k, *v, *bias;
  const bool* key_mask;  // [batch, n_k]; null: no padding
};

struct PlainGradients {
  void *q, *k, *v, *bias;
};

/// An attention of one scalar type whose biases come with each call. The module for JAX has only its address: it is in
/// the module for the CPU, which is compiled for a level of processors.
class PlainAttention {
 public:
  virtual ~PlainAttention() = default;
  virtual void forward(const PlainShape& shape, const PlainInputs& inputs, void* y) const = 0;
  virtual void backward(const PlainShape& shape, const PlainInputs& inputs, const void* dy,
                        const PlainGradients& gradients) const = 0;
};

}  // namespace nprf::python
