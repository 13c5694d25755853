// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// The keys of a head z that the last token attends to one by one, which are those that are not in the sums: first the
/// tokens of the ring, so that key i has age i, and then the attention sinks that are older than the near field. Keys
/// of the near field and sinks are exact: they have the weights of softmax, exp(q.k + b). The other keys have the
/// weights of features.
///
///     i < near                                    near field
///     near <= i < in_ring()                       features
///     in_ring() <= i < count()                    sinks
class HeadKeys {
 public:
  /// For the head z = (sequence, head). Refers to the states. `weights` (slots + sinks) is in shared memory; it is used
  /// if the states have no memory for weights.
  __device__ __forceinline__ HeadKeys(const DecodeStates& states, const DecodeBias& bias, int z, float* weights)
      : m_x(states),
        m_bias(bias),
        m_z(states.state[z / states.heads] * states.heads + z % states.heads),
        m_tokens(states.tokens[z]),
        m_left(m_tokens > 0 ? states.left[z] : 0),
        m_newest(m_tokens > 0 ? (m_tokens - 1) % states.slots : states.slots - 1),
        m_position(bias.positions > 1 ? z % states.heads : 0),
        m_weights(states.weights ? states.weights + place(states.slots + states.sinks, 0) : weights) {}

  /// The index z = (state, head) of the head in arrays of states.
  __device__ int of_state() const { return m_z; }
  __device__ int tokens() const { return m_tokens; }
  /// The slot of the ring that the next token gets.
  __device__ int next_slot() const { return m_newest + 1 < m_x.slots ? m_newest + 1 : 0; }
  /// How many tokens have left the ring.
  __device__ int left() const { return m_left; }
  /// Adds a token. If another token then has to leave the ring, returns its slot, and otherwise -1.
  __device__ int add_token() {
    m_newest = next_slot();
    ++m_tokens;
    return m_tokens - m_left > reach() ? m_left++ % m_x.slots : -1;
  }
  __device__ int reach() const { return m_bias.reach; }
  __device__ double slope() const { return m_bias.slopes[m_position]; }
  __device__ bool has_tail() const { return biases()[reach()] > minus_infinity; }
  /// Whether the sums have tokens.
  __device__ bool has_sums() const { return m_left > m_x.sinks && has_tail(); }
  /// The bias of the youngest token in the sums.
  __device__ double bias_of_sums() const { return on_tail(m_tokens - m_left); }

  __device__ int in_ring() const { return min(m_tokens - m_left, max(m_x.near, m_tokens - m_x.sinks)); }
  __device__ int in_near() const { return min(m_x.near, m_tokens); }
  __device__ int far_sinks() const { return min(m_x.sinks, max(m_tokens - m_x.near, 0)); }
  __device__ int count() const { return in_ring() + far_sinks(); }
  __device__ bool is_exact(int i) const { return i < m_x.near || i >= in_ring(); }
  /// The number of exact keys, and the number i of the e-th of them.
  __device__ int exact() const { return in_near() + far_sinks(); }
  __device__ int exact(int e) const { return e < in_near() ? e : in_ring() + e - in_near(); }

  __device__ double bias(int i) const {
    const int age = i < in_ring() ? i : m_tokens - 1 - (i - in_ring());
    return age < reach() ? biases()[age] : on_tail(age);
  }
  __device__ bool attends(int i) const { return m_bias.attends_to_all || bias(i) > minus_infinity; }

  /// The slot of the ring of a token, by its age.
  __device__ int slot(int age) const { return m_newest - age + (age > m_newest ? m_x.slots : 0); }
  /// The place of row s in an array [z, count, ..]; of slot s in one [z, slots, ..].
  __device__ std::ptrdiff_t place(int count, int s) const { return static_cast<std::ptrdiff_t>(m_z) * count + s; }
  __device__ std::ptrdiff_t place(int s) const { return place(m_x.slots, s); }

  /// The features (r) of a slot, which are `slots` numbers apart.
  __device__ float* features(int slot) const { return m_x.features + place(m_x.r, 0) * m_x.slots + slot; }
  /// The channels (d) of exact key i, and the value (d_v) of any key i.
  __device__ const float* key(int i) const {
    return i < m_x.near ? m_x.keys + place(slot(i)) * m_x.d : m_x.sink_keys + place(m_x.sinks, i - in_ring()) * m_x.d;
  }
  __device__ const float* value(int i) const {
    return i < in_ring() ? m_x.values + place(slot(i)) * m_x.d_v
                         : m_x.sink_values + place(m_x.sinks, i - in_ring()) * m_x.d_v;
  }
  __device__ float& weight(int i) const { return m_weights[i]; }

 private:
  // the bias on the line of the tail, also at an age below the reach: after a rollback the youngest token of the sums
  // may be younger than the reach
  __device__ double on_tail(int age) const { return biases()[reach()] + slope() * static_cast<double>(age - reach()); }
  // the biases (reach + 1) of the head by age
  __device__ const double* biases() const {
    return m_bias.table + static_cast<std::ptrdiff_t>(m_position) * (reach() + 1);
  }

  const DecodeStates& m_x;
  const DecodeBias& m_bias;
  int m_z, m_tokens, m_left;
  int m_newest;  // the slot of the last token
  int m_position;
  float* m_weights;
};

}  // namespace nprf::cuda
