// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/decoder/head_keys.cuh"
#include "nprf/cuda/decoder/head_sums.cuh"
#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/decoder/token_features.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"

namespace nprf::cuda {

/// Appends tokens to the states of all heads, and computes their rows. A block of threads for each head.
template <Storage S>
struct DecodeTask {
  FeatureTask<S> queries, keys;
  DeviceMatrixView<const S> v;  // [batch, heads / group, n, d_v], with the group of `keys`
  DeviceMatrixView<S> y;        // [batch, heads, n, d_v]; null data: only append
  const int* lengths;           // [batch]: a sequence gets its first tokens; null: all n
  DecodeStates states;
  DecodeBias bias;
  int max_tokens;            // of a sequence
  double log_normalisation;  // DeviceModel::log_normalisation()
  bool positive;             // whether all features are
  bool terms_may_cancel;     // whether rows count whose terms do
  DecodeCounts* counts;

  std::size_t shared() const {
    using Shape = OneTokenShape;
    return sizeof(float) *
           static_cast<std::size_t>(keys.tiles() * keys.d_padded + Shape::warps + states.r + Shape::warps * columns);
  }

  static constexpr int columns = 64;  // of N at a time
};

/// The block's head. Sums over features or keys are divided over warps, and over channels or features over lanes,
/// always in the same way, so that a state has the same bits however its tokens were divided over calls. Every thread
/// has the numbers of the state.
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
        m_keys(task.states, task.bias, m_z),
        m_sums(task.states, m_keys.of_state()) {
    __syncthreads();  // before the state is written
  }

  __device__ __forceinline__ void run() {
    const int n = m_task.keys.x.tokens, sequence = m_z / m_task.keys.x.heads,
              length = m_task.lengths ? min(max(m_task.lengths[sequence], 0), n) : n;
    for (int t = 0; t < length; ++t) {
      const bool fits = m_keys.tokens() < m_task.max_tokens;
      if (fits) append(t);
      if (m_task.y.data && fits) attend(t);
      if (m_task.y.data && !fits) fill_row(t, not_a_number);
      if (!fits && m_thread == 0) atomicAdd(&m_task.counts->rejected_tokens, 1);
    }
    for (int t = length; m_task.y.data && t < n; ++t) fill_row(t, 0);
    if (m_thread > 0) return;
    m_task.states.tokens[m_z] = m_keys.tokens();
    m_task.states.left[m_z] = m_keys.left();
    m_sums.store_numbers();
  }

 private:
  using Shape = OneTokenShape;

  __device__ static float sum_of(float a, float b) { return a + b; }
  __device__ int warp() const { return m_thread / 32; }
  __device__ int lane() const { return m_thread % 32; }
  __device__ int r() const { return m_task.states.r; }
  __device__ int d_v() const { return m_task.states.d_v; }
  __device__ int d() const { return m_task.states.d; }
  __device__ bool has_sums() const { return m_keys.has_sums(); }

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
  __device__ __forceinline__ void store_exact_key(std::ptrdiff_t place, const S* v, bool finite);
  __device__ __forceinline__ void attend(int t);
  __device__ __forceinline__ void set_scores() const;
  __device__ __forceinline__ float largest_exponent(double unit) const;
  __device__ __forceinline__ float set_weights(double unit, double reference) const;
  struct Denominator {
    float D, terms;  // terms: the sum of the magnitudes
  };
  __device__ __forceinline__ Denominator denominator(float weight_of_sums) const;
  __device__ __forceinline__ bool has_precision(const Denominator& sum) const;
  __device__ __forceinline__ void divide(int t, float weight_of_sums, float D) const;

  // the logarithm of the weight of a key, in the unit of features; an exact key's score is in the place of its weight
  __device__ __forceinline__ double exponent(int i, double unit) const {
    const double b = m_keys.bias(i);
    if (b == minus_infinity) return b;
    return m_keys.is_exact(i) ? static_cast<double>(m_keys.weight(i)) + b - unit
                              : static_cast<double>(m_task.states.log_scales[m_keys.place(m_keys.slot(i))]) + b;
  }
  __device__ double exponent_of_sums() const { return m_sums.log_scale() + m_keys.bias_of_sums(); }

  const DecodeTask<S>& m_task;
  int m_z, m_thread;
  TokenScratch m_scratch;
  float *m_phi, *m_partial;  // (r) (warps,columns)
  HeadKeys m_keys;
  HeadSums m_sums;
};

/// Puts a token into the ring. One that has to leave it goes to the sums, unless it is a sink.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::append(int t) {
  const DecodeStates& x = m_task.states;
  const float log_scale = compute_token_features(m_task.keys, m_z, t, m_scratch, m_phi);
  const float norm = m_task.positive ? 0.0f : norm_of_features();
  if (m_keys.tokens() == 0) m_sums.clear();
  const std::ptrdiff_t to = m_keys.place(m_keys.tokens() % x.slots);
  for (int k = m_thread; k < r(); k += Shape::threads) x.features[to * r() + k] = m_phi[k];
  const S* v = row_of(m_task.v, m_z / m_task.keys.x.group, t);
  for (int c = m_thread; c < d_v(); c += Shape::threads) x.values[to * d_v() + c] = to_float(v[c]);
  if (m_thread == 0) x.log_scales[to] = log_scale, x.feature_norms[to] = norm;
  store_exact_key(to, v, log_scale == log_scale);
  const int leaving = m_keys.add_token();
  __syncthreads();
  if (leaving >= 0 && has_sums()) m_sums.add(m_keys.place(leaving), m_keys.slope());
}

/// Stores the key of a place of the ring for the near field, and the key and the value of a sink. A non-finite key
/// becomes NaN, so that its score is NaN for each query.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::store_exact_key(std::ptrdiff_t place, const S* v, bool finite) {
  const DecodeStates& x = m_task.states;
  const int token = m_keys.tokens();
  const auto store_key = [&](float* to) {
    for (int k = m_thread; k < d(); k += Shape::threads) to[k] = finite ? m_scratch.x[k] : not_a_number;
  };
  if (x.near > 0) store_key(x.keys + place * d());
  if (token >= x.sinks) return;
  const std::ptrdiff_t to = m_keys.place(x.sinks, token);
  store_key(x.sink_keys + to * d());
  for (int c = m_thread; c < d_v(); c += Shape::threads) x.sink_values[to * d_v() + c] = to_float(v[c]);
}

/// y = N / D of a query of the last token, with weights relative to about the largest of them.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::attend(int t) {
  const float log_scale = compute_token_features(m_task.queries, m_z, t, m_scratch, m_phi);
  const double unit = static_cast<double>(log_scale) + m_task.log_normalisation;
  set_scores();
  const float reference = largest_exponent(unit);
  const bool has_weights = reference >= -largest_float;
  const float weight_of_sums = set_weights(unit, has_weights ? static_cast<double>(reference) : 0.0);
  Denominator sum = denominator(weight_of_sums);
  if (sum.D == 0 && !has_weights) {
    if (m_thread == 0) atomicAdd(&m_task.counts->empty_rows, 1);
    return fill_row(t, 0);
  }
  if (log_scale != log_scale) sum.D = not_a_number;
  divide(t, weight_of_sums, has_precision(sum) ? sum.D : not_a_number);
}

/// Sets the scores q.k of exact keys, in the places of their weights. A warp loads several keys at a time.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::set_scores() const {
  constexpr int at_once = 4;
  const int count = m_keys.exact();
  for (int first = warp(); first < count; first += at_once * Shape::warps) {
    const float* keys[at_once];
    float scores[at_once] = {};
#pragma unroll
    for (int i = 0; i < at_once; ++i) keys[i] = m_keys.key(m_keys.exact(min(first + i * Shape::warps, count - 1)));
    for (int k = lane(); k < d(); k += 32) {
      const float x = m_scratch.x[k];
#pragma unroll
      for (int i = 0; i < at_once; ++i) scores[i] = fmaf(x, keys[i][k], scores[i]);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const float score = over_warp(scores[i], sum_of);
      if (const int e = first + i * Shape::warps; e < count && lane() == 0) m_keys.weight(m_keys.exact(e)) = score;
    }
  }
  if (count > 0) __syncthreads();
}

/// The largest exponent of the row's weights; NaN is ignored.
template <Storage S>
__device__ __forceinline__ float DecodeHead<S>::largest_exponent(double unit) const {
  double largest = has_sums() ? exponent_of_sums() : minus_infinity;
  for (int i = m_thread; i < m_keys.count(); i += Shape::threads) largest = fmax(largest, exponent(i, unit));
  return over_groups<Shape>(m_scratch.scratch, static_cast<float>(largest),
                            [](float a, float b) { return fmaxf(a, b); });
}

/// Sets the weights exp(exponent - reference) of single keys, and returns that of the sums.
template <Storage S>
__device__ __forceinline__ float DecodeHead<S>::set_weights(double unit, double reference) const {
  for (int i = m_thread; i < m_keys.count(); i += Shape::threads)
    m_keys.weight(i) = exp_of(exponent(i, unit) - reference);
  __syncthreads();
  return has_sums() ? exp_of(exponent_of_sums() - reference) : 0.0f;
}

/// D = phi(q) (w Z + sum_ring c phi(k)) + sum_exact c; multiplies the weights c of the ring by phi(q) phi(k).
template <Storage S>
__device__ __forceinline__ typename DecodeHead<S>::Denominator DecodeHead<S>::denominator(float weight_of_sums) const {
  const DecodeStates& x = m_task.states;
  float D = 0, norms = 0, exact = 0;
  for (int i = warp(); i < m_keys.count(); i += Shape::warps) {
    if (!m_keys.attends(i)) continue;
    if (m_keys.is_exact(i)) {
      if (lane() == 0) exact += m_keys.weight(i);
      continue;
    }
    const std::ptrdiff_t at = m_keys.place(m_keys.slot(i));
    float score = 0;
    for (int k = lane(); k < r(); k += 32) score = fmaf(m_phi[k], x.features[at * r() + k], score);
    score = over_warp(score, sum_of);
    const float weight = m_keys.weight(i);
    __syncwarp();
    if (lane() > 0) continue;
    m_keys.weight(i) = weight * score;
    D += weight * score;
    norms = fmaf(weight, x.feature_norms[at], norms);
  }
  if (has_sums()) {
    for (int k = m_thread; k < r(); k += Shape::threads) D = fmaf(weight_of_sums * m_phi[k], m_sums.Z(k), D);
    if (m_thread == 0) norms = fmaf(weight_of_sums, m_sums.norms(), norms);
  }
  D = over_block(D + exact);
  if (m_task.positive) return {D, D};
  const float terms = over_block(norms) * norm_of_features();
  return {D, terms + over_block(exact)};
}

/// Whether the row has precision; counts it otherwise.
template <Storage S>
__device__ __forceinline__ bool DecodeHead<S>::has_precision(const Denominator& sum) const {
  const bool has_precision = denominator_keeps_precision(sum.D, m_task.positive),
             cancels = m_task.terms_may_cancel && terms_cancel(sum.D, sum.terms);
  if (m_thread == 0 && sum.D == sum.D) {
    if (!has_precision || cancels) atomicAdd(&m_task.counts->failing_rows, 1);
    if (sum.D <= 0) atomicAdd(&m_task.counts->indefinite_rows, 1);
  }
  return has_precision;
}

/// y = N / D with N = phi(q) (w S + sum_ring c phi(k)^T v) + sum_exact c v.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::divide(int t, float weight_of_sums, float D) const {
  constexpr int columns = DecodeTask<S>::columns, of_lane = columns / 32;
  for (int first = 0; first < d_v(); first += columns) {
    float N[of_lane] = {};
    const auto add = [&](float weight, const float* row) {
#pragma unroll
      for (int i = 0; i < of_lane; ++i)
        if (const int c = first + lane() + 32 * i; c < d_v()) N[i] = fmaf(weight, row[c], N[i]);
    };
    for (int k = warp(); has_sums() && k < r(); k += Shape::warps) add(weight_of_sums * m_phi[k], m_sums.S(k));
    for (int i = warp(); i < m_keys.count(); i += Shape::warps)
      if (m_keys.attends(i)) add(m_keys.weight(i), m_keys.value(i));
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

/// How many heads share a multiprocessor at least, which limits registers. For Volta clang would spill many of them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int decode_blocks = 2;
#else
constexpr int decode_blocks = 4;
#endif

template <Storage S>
__global__ void __launch_bounds__(OneTokenShape::threads, decode_blocks) decode_kernel(DecodeTask<S> task) {
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
