// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>

#include "nprf/core/compensated_sum.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/decoder/token_features.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/decoder/running_log_scale.hpp"

namespace nprf::cuda {

/// Appends tokens to the states of all heads, and computes their rows. A block of threads for each head.
template <Storage S>
struct DecodeTask {
  FeatureTask<S> queries, keys;
  DeviceMatrixView<const S> v;  // [batch, heads, n, d_v]
  DeviceMatrixView<S> y;        // likewise; null data: only append
  const int* lengths;           // [batch]: a sequence gets its first tokens; null: all n
  DecodeStates states;
  DecodeBias bias;
  int max_tokens;  // of a sequence
  bool positive;   // whether all features are
  bool is_series;
  DecodeCounts* counts;

  std::size_t shared() const {
    using Shape = OneTokenShape;
    return sizeof(float) *
           static_cast<std::size_t>(keys.tiles() * keys.d_padded + Shape::warps + states.r + Shape::warps * columns);
  }

  static constexpr int columns = 64;  // of N at a time
};

/// exp(x) with the relative precision of float; exp(float(x)) alone would have the rounding error of x.
__device__ __forceinline__ float exp_of(double x) {
  const float rounded = static_cast<float>(x), whole = expf(rounded);
  return whole == 0 ? 0.0f : fmaf(whole, static_cast<float>(x - static_cast<double>(rounded)), whole);
}

/// The block's head. Sums over features or keys are divided over warps, and over channels or features over lanes,
/// always in the same way, so that a state has the same bits however its tokens were divided over calls. Every thread
/// has the numbers of the state, and a thread alone reads and writes an entry of S and Z.
template <Storage S>
class DecodeHead {
 public:
  __device__ __forceinline__ explicit DecodeHead(const DecodeTask<S>& task)
      : m_task(task),
        m_z(static_cast<int>(blockIdx.y)),
        m_thread(static_cast<int>(threadIdx.x)),
        m_scratch{shared_memory<float>(), shared_memory<float>() + task.keys.tiles() * task.keys.d_padded},
        m_phi(m_scratch.scratch + Shape::warps),
        m_partial(m_phi + task.states.r),
        m_tokens(task.states.tokens[m_z]),
        m_log_scale(task.states.log_scale[m_z]),
        m_norms(task.states.norms[m_z]) {
    const int position = task.bias.positions > 1 ? m_z % task.keys.x.heads : 0;
    m_biases = task.bias.table + static_cast<std::ptrdiff_t>(position) * (task.bias.reach + 1);
    m_slope = task.bias.slopes[position];
    __syncthreads();  // before the state is written
  }

  __device__ __forceinline__ void run() {
    const int n = m_task.keys.x.tokens, sequence = m_z / m_task.keys.x.heads,
              length = m_task.lengths ? min(max(m_task.lengths[sequence], 0), n) : n;
    for (int t = 0; t < length; ++t) {
      const bool fits = m_tokens < m_task.max_tokens;
      if (fits) append(t);
      if (m_task.y.data && fits) attend(t);
      if (m_task.y.data && !fits) fill_row(t, not_a_number);
      if (!fits && m_thread == 0) atomicAdd(&m_task.counts->rejected_tokens, 1);
    }
    for (int t = length; m_task.y.data && t < n; ++t) fill_row(t, 0);
    if (m_thread > 0) return;
    m_task.states.tokens[m_z] = m_tokens;
    m_task.states.log_scale[m_z] = m_log_scale;
    m_task.states.norms[m_z] = m_norms;
  }

 private:
  using Shape = OneTokenShape;

  __device__ static float sum_of(float a, float b) { return a + b; }
  __device__ int warp() const { return m_thread / 32; }
  __device__ int lane() const { return m_thread % 32; }
  __device__ int r() const { return m_task.states.r; }
  __device__ int d_v() const { return m_task.states.d_v; }
  __device__ int reach() const { return m_task.bias.reach; }
  __device__ bool has_tail() const { return m_biases[reach()] > minus_infinity; }
  __device__ bool has_sums() const { return m_tokens > reach() && has_tail(); }
  // the ages below it are in the ring
  __device__ int in_ring() const { return min(m_tokens, reach()); }
  __device__ bool attends(int age) const { return m_biases[age] > minus_infinity; }
  __device__ int slot(int age) const { return (m_tokens - 1 - age) % m_task.states.slots; }
  // the place of slot s, or of row s of the sums, in an array [z, count, ..]
  __device__ std::ptrdiff_t place(int count, int s) const { return static_cast<std::ptrdiff_t>(m_z) * count + s; }
  __device__ std::ptrdiff_t place(int s) const { return place(m_task.states.slots, s); }

  __device__ __forceinline__ float over_block(float x) const {
    return over_groups<Shape>(m_scratch.scratch, x, sum_of);
  }
  // |phi|
  __device__ __forceinline__ float norm_of_features() const {
    float square = 0;
    for (int k = m_thread; k < r(); k += Shape::threads) square = fmaf(m_phi[k], m_phi[k], square);
    return sqrtf(over_block(square));
  }
  __device__ __forceinline__ void fill_row(int t, float x) const {
    for (int c = m_thread; c < d_v(); c += Shape::threads) store(row_of(m_task.y, m_z, t) + c, x);
  }

  __device__ __forceinline__ void append(int t);
  __device__ __forceinline__ void clear_sums();
  __device__ __forceinline__ void commit(int s);
  __device__ __forceinline__ void attend(int t);
  __device__ __forceinline__ float largest_exponent() const;
  __device__ __forceinline__ float set_weights(double reference) const;
  struct Denominator {
    float D, terms;  // terms: the sum of the magnitudes
  };
  __device__ __forceinline__ Denominator denominator(float weight_of_sums) const;
  __device__ __forceinline__ bool has_precision(const Denominator& sum) const;
  __device__ __forceinline__ void divide(int t, float weight_of_sums, float D) const;

  // the logarithm of the weight of a key in the ring
  __device__ __forceinline__ double exponent(int age) const {
    const double b = m_biases[age];
    return b > minus_infinity ? b + static_cast<double>(m_task.states.log_scales[place(slot(age))]) : b;
  }
  __device__ double exponent_of_sums() const { return m_log_scale.sum() + m_biases[reach()]; }

  const DecodeTask<S>& m_task;
  int m_z, m_thread;
  TokenScratch m_scratch;
  float *m_phi, *m_partial;  // (r) (warps,columns)
  int m_tokens;
  RunningLogScale m_log_scale;
  float m_norms;
  const double* m_biases;
  double m_slope;
};

/// Puts a token into the ring; the one whose age is the reach goes to the sums.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::append(int t) {
  const DecodeStates& x = m_task.states;
  const float log_scale = compute_token_features(m_task.keys, m_z, t, m_scratch, m_phi);
  const float norm = m_task.positive ? 0.0f : norm_of_features();
  if (m_tokens == 0) clear_sums();
  const std::ptrdiff_t to = place(m_tokens % x.slots);
  for (int k = m_thread; k < r(); k += Shape::threads) x.features[to * r() + k] = m_phi[k];
  const S* v = row_of(m_task.v, m_z, t);
  for (int c = m_thread; c < d_v(); c += Shape::threads) x.values[to * d_v() + c] = to_float(v[c]);
  if (m_thread == 0) x.log_scales[to] = log_scale, x.feature_norms[to] = norm;
  ++m_tokens;
  __syncthreads();
  if (has_sums()) commit(slot(reach()));
}

template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::clear_sums() {
  const DecodeStates& x = m_task.states;
  m_log_scale = {};
  m_norms = 0;
  if (!has_tail() || m_task.max_tokens <= reach()) return;  // no memory for sums
  for (int k = m_thread; k < r(); k += Shape::threads) x.Z[place(r(), k)] = x.Z_errors[place(r(), k)] = 0;
  for (int k = warp(); k < r(); k += Shape::warps)
    for (int c = lane(); c < d_v(); c += 32) x.S[place(r(), k) * d_v() + c] = x.S_errors[place(r(), k) * d_v() + c] = 0;
}

/// Adds the token in slot s to the sums, as RunningSums::add does. A non-finite token makes them NaN.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::commit(int s) {
  const DecodeStates& x = m_task.states;
  m_log_scale.shift(m_slope, 0);
  const double log_scale = static_cast<double>(x.log_scales[place(s)]);
  float factor = 1;
  if (!(log_scale <= m_log_scale.sum())) {
    const double exponent = m_log_scale.raise(log_scale);
    factor = exponent < 4000 ? ldexpf(1.0f, -static_cast<int>(exponent)) : 0.0f;
  }
  const float weight = exp_of(m_log_scale.relative(log_scale));
  m_norms = fmaf(weight, x.feature_norms[place(s)], factor * m_norms);
  const float *features = x.features + place(s) * r(), *value = x.values + place(s) * d_v();
  const auto add = [factor](float& sum, float& error, float b, float v) {
    float new_error;
    sum = fast_two_sum(factor * sum, fmaf(b, v, factor * error), new_error);
    error = new_error;
  };
  for (int k = m_thread; k < r(); k += Shape::threads)
    add(x.Z[place(r(), k)], x.Z_errors[place(r(), k)], weight, features[k]);
  for (int k = warp(); k < r(); k += Shape::warps) {
    const float b = weight * features[k];
    float *sums = x.S + place(r(), k) * d_v(), *errors = x.S_errors + place(r(), k) * d_v();
    for (int c = lane(); c < d_v(); c += 32) add(sums[c], errors[c], b, value[c]);
  }
}

/// y = N / D of a query of the last token, with weights relative to about the largest of them.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::attend(int t) {
  const float log_scale = compute_token_features(m_task.queries, m_z, t, m_scratch, m_phi),
              reference = largest_exponent();
  const bool has_weights = reference >= -largest_float;
  const float weight_of_sums = set_weights(has_weights ? static_cast<double>(reference) : 0.0);
  Denominator sum = denominator(weight_of_sums);
  if (sum.D == 0 && !has_weights) {
    if (m_thread == 0) atomicAdd(&m_task.counts->empty_rows, 1);
    return fill_row(t, 0);
  }
  if (log_scale != log_scale) sum.D = not_a_number;
  divide(t, weight_of_sums, has_precision(sum) ? sum.D : not_a_number);
}

/// The largest exponent of the row's weights; NaN is ignored.
template <Storage S>
__device__ __forceinline__ float DecodeHead<S>::largest_exponent() const {
  double largest = has_sums() ? exponent_of_sums() : minus_infinity;
  for (int age = m_thread; age < in_ring(); age += Shape::threads) largest = fmax(largest, exponent(age));
  return over_groups<Shape>(m_scratch.scratch, static_cast<float>(largest),
                            [](float a, float b) { return fmaxf(a, b); });
}

/// Sets the weights exp(exponent - reference) of the keys in the ring, by age, and returns that of the sums.
template <Storage S>
__device__ __forceinline__ float DecodeHead<S>::set_weights(double reference) const {
  for (int age = m_thread; age < in_ring(); age += Shape::threads)
    m_task.states.weights[place(age)] = exp_of(exponent(age) - reference);
  __syncthreads();
  return has_sums() ? exp_of(exponent_of_sums() - reference) : 0.0f;
}

/// D = phi(q) (w Z + sum_ring c phi(k)); multiplies the weights c of the ring by phi(q) phi(k).
template <Storage S>
__device__ __forceinline__ typename DecodeHead<S>::Denominator DecodeHead<S>::denominator(float weight_of_sums) const {
  const DecodeStates& x = m_task.states;
  float D = 0, norms = 0;
  for (int age = warp(); age < in_ring(); age += Shape::warps) {
    if (!attends(age)) continue;
    const std::ptrdiff_t at = place(slot(age));
    float score = 0;
    for (int k = lane(); k < r(); k += 32) score = fmaf(m_phi[k], x.features[at * r() + k], score);
    score = over_warp(score, sum_of);
    const float weight = x.weights[place(age)];
    __syncwarp();
    if (lane() > 0) continue;
    x.weights[place(age)] = weight * score;
    D += weight * score;
    norms = fmaf(weight, x.feature_norms[at], norms);
  }
  if (has_sums()) {
    for (int k = m_thread; k < r(); k += Shape::threads) D = fmaf(weight_of_sums * m_phi[k], x.Z[place(r(), k)], D);
    if (m_thread == 0) norms = fmaf(weight_of_sums, m_norms, norms);
  }
  D = over_block(D);
  return {D, m_task.positive ? D : over_block(norms) * norm_of_features()};
}

/// Whether the row has precision; counts it otherwise.
template <Storage S>
__device__ __forceinline__ bool DecodeHead<S>::has_precision(const Denominator& sum) const {
  const bool has_precision = denominator_keeps_precision(sum.D, m_task.positive),
             cancels = m_task.is_series && terms_cancel(sum.D, sum.terms);
  if (m_thread == 0 && sum.D == sum.D) {
    if (!has_precision || cancels) atomicAdd(&m_task.counts->failing_rows, 1);
    if (sum.D <= 0) atomicAdd(&m_task.counts->indefinite_rows, 1);
  }
  return has_precision;
}

/// y = N / D with N = phi(q) (w S + sum_ring c phi(k)^T v).
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::divide(int t, float weight_of_sums, float D) const {
  constexpr int columns = DecodeTask<S>::columns, of_lane = columns / 32;
  const DecodeStates& x = m_task.states;
  for (int first = 0; first < d_v(); first += columns) {
    float N[of_lane] = {};
    const auto add = [&](float weight, const float* row) {
#pragma unroll
      for (int i = 0; i < of_lane; ++i)
        if (const int c = first + lane() + 32 * i; c < d_v()) N[i] = fmaf(weight, row[c], N[i]);
    };
    for (int k = warp(); has_sums() && k < r(); k += Shape::warps)
      add(weight_of_sums * m_phi[k], x.S + place(r(), k) * d_v());
    for (int age = warp(); age < in_ring(); age += Shape::warps)
      if (attends(age)) add(x.weights[place(age)], x.values + place(slot(age)) * d_v());
    __syncthreads();  // the columns before have been read
#pragma unroll
    for (int i = 0; i < of_lane; ++i) m_partial[warp() * columns + lane() + 32 * i] = N[i];
    __syncthreads();
    const int c = first + m_thread;
    if (m_thread >= columns || c >= d_v()) continue;
    float sum = m_partial[m_thread];
    for (int w = 1; w < Shape::warps; ++w) sum += m_partial[w * columns + m_thread];
    store(row_of(m_task.y, m_z, t) + c, sum / D);
  }
}

template <Storage S>
__global__ void __launch_bounds__(OneTokenShape::threads) decode_kernel(DecodeTask<S> task) {
  DecodeHead<S>(task).run();
}

/// Queues a task for z = (sequence, head) states.
template <Storage S>
void queue_decode(const DecodeTask<S>& task, int z, cudaStream_t stream) {
  if (z == 0 || task.keys.x.tokens == 0) return;
  launch("decoding", decode_kernel<S>, dim3{1, static_cast<unsigned>(z), 1}, dim3{OneTokenShape::threads, 1, 1},
         task.shared(), stream, task);
}

}  // namespace nprf::cuda
