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
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/strided_operand.cuh"

namespace nprf::cuda {

/// Appends tokens to the states of all heads, and computes their rows. A block of threads for each head.
template <Storage S>
struct DecodeTask {
  FeatureTask<S> queries, keys;
  DeviceMatrixView<const S> v;  // [batch, heads / group, n, d_v], with the group of `keys`
  DeviceMatrixView<S> y;        // [batch, heads, n, d_v]; null data: only append
  const int* lengths;           // [batch]: how many of the n tokens a sequence gets, the first ones; null: all
  DecodeStates states;
  DecodeBias bias;
  int max_tokens;            // that a sequence may have
  double log_normalisation;  // DeviceModel::log_normalisation()
  bool positive;             // whether no feature is negative
  bool terms_may_cancel;     // whether rows whose terms cancel are counted
  DecodeCounts* counts;

  std::size_t shared() const {
    using Shape = OneTokenShape;
    return sizeof(float) * (static_cast<std::size_t>(2 * keys.tiles() * keys.d_padded + states.d_v + Shape::warps +
                                                     states.r + Shape::warps * columns) +
                            states.shared_weights());
  }

  static constexpr int columns = 64;  // of N that are computed at a time
};

/// The head that a block computes. Sums over features or keys are divided over warps, and sums over channels or
/// features over lanes, always in the same way, so that a state has the same bits however its tokens were divided over
/// calls. Every thread has a copy of the state's scalars.
template <Storage S>
class DecodeHead {
 public:
  __device__ __forceinline__ explicit DecodeHead(const DecodeTask<S>& task)
      : m_task(task),
        m_z(static_cast<int>(blockIdx.y)),
        m_thread(static_cast<int>(threadIdx.x)),
        m_key(shared_memory<float>()),
        m_query(m_key + task.keys.tiles() * task.keys.d_padded),
        m_value(m_query + task.keys.tiles() * task.keys.d_padded),
        m_scratch(m_value + task.states.d_v),
        m_phi(m_scratch + Shape::warps),
        m_partial(m_phi + task.states.r),
        m_keys(task.states, task.bias, m_z, m_partial + Shape::warps * columns),
        m_sums(task.states, m_keys.of_state()) {
    __syncthreads();  // before the state is written
  }

  __device__ __forceinline__ void run() {
    const int n = m_task.keys.x.tokens, sequence = m_z / m_task.keys.x.heads,
              length = m_task.lengths ? min(max(m_task.lengths[sequence], 0), n) : n;
    for (int t = 0; t < length; ++t) {
      const bool fits = m_keys.tokens() < m_task.max_tokens;
      if (fits) load(t);
      if (fits) append();
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
  static constexpr int columns = DecodeTask<S>::columns, of_lane = columns / 32;

  __device__ int warp() const { return m_thread / 32; }
  __device__ int lane() const { return m_thread % 32; }
  __device__ int r() const { return m_task.states.r; }
  __device__ int d_v() const { return m_task.states.d_v; }
  __device__ int d() const { return m_task.states.d; }
  __device__ bool has_sums() const { return m_keys.has_sums(); }

  __device__ __forceinline__ float sum_over_block(float x) const { return over_groups<Shape>(m_scratch, x, Sum()); }
  // |phi|
  __device__ __forceinline__ float norm_of_features() const {
    float square = 0;
    for (int k = m_thread; k < r(); k += Shape::threads) square = fmaf(m_phi[k], m_phi[k], square);
    return sqrtf(sum_over_block(square));
  }
  __device__ __forceinline__ void fill_row(int t, float x) const {
    for (int c = m_thread; c < d_v(); c += Shape::threads) store(row_of(m_task.y, m_z, t) + c, x);
  }

  // loads token t into shared memory. The reductions over the block in compute_token_features() and largest_exponent()
  // are its barriers: before them a thread reads only what it loaded itself, and after them no thread reads the
  // previous token
  __device__ __forceinline__ void load(int t) const {
    for (int k = m_thread; k < m_task.keys.d_padded; k += Shape::threads) {
      const float key = channel_of(m_task.keys, m_z, t, k),
                  query = m_task.y.data ? channel_of(m_task.queries, m_z, t, k) : 0.0f;
      m_key[k] = key, m_query[k] = query;
    }
    const S* v = row_of(m_task.v, m_z / m_task.keys.x.group, t);
    for (int c = m_thread; c < d_v(); c += Shape::threads) m_value[c] = to_float(v[c]);
  }
  __device__ __forceinline__ void append();
  __device__ __forceinline__ void store_exact_key(std::ptrdiff_t place, bool finite);
  __device__ __forceinline__ void attend(int t);
  __device__ __forceinline__ void set_scores() const;
  __device__ __forceinline__ float largest_exponent(double unit) const;
  __device__ __forceinline__ float set_weights(double unit, double reference) const;
  struct Denominator {
    float D, terms;  // terms: the sum of the magnitudes of what is added up in D
  };
  __device__ __forceinline__ Denominator denominator(float weight_of_sums) const;
  __device__ __forceinline__ bool has_precision(const Denominator& sum) const;
  __device__ __forceinline__ void divide(int t, float weight_of_sums, float D) const;
  struct WeightedRow {
    float weight;
    const float* row;
    bool counts;
  };
  template <class Row>
  __device__ __forceinline__ void add_rows(int count, int first_column, float (&N)[of_lane], Row&& row) const;

  // the logarithm of the weight of key i, divided by exp(unit) as the weights of features are; reads the score of an
  // exact key from the place of its weight
  __device__ __forceinline__ double exponent(int i, double unit) const {
    const double b = m_keys.bias(i);
    if (b == minus_infinity) return b;
    return m_keys.is_exact(i) ? static_cast<double>(m_keys.weight(i)) + b - unit
                              : static_cast<double>(m_task.states.log_scales[m_keys.place(m_keys.slot(i))]) + b;
  }
  __device__ double exponent_of_sums() const { return m_sums.log_scale() + m_keys.bias_of_sums(); }

  const DecodeTask<S>& m_task;
  int m_z, m_thread;
  // in shared memory: the key and the query (tiles,d_padded) each, the value (d_v), what reductions need (warps), the
  // features (r), and the sums of warps (warps,columns)
  float *m_key, *m_query, *m_value, *m_scratch, *m_phi, *m_partial;
  HeadKeys m_keys;
  HeadSums m_sums;
};

/// Puts the loaded token into the ring. If another token has to leave the ring, it is added to the sums, unless it is a
/// sink or the position has no tail.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::append() {
  const DecodeStates& x = m_task.states;
  const float log_scale = compute_token_features(m_task.keys, m_z, {m_key, m_scratch}, m_phi);
  const float norm = m_task.positive ? 0.0f : norm_of_features();
  if (m_keys.tokens() == 0) m_sums.clear();
  const int slot = m_keys.next_slot();
  const std::ptrdiff_t to = m_keys.place(slot);
  float* features = m_keys.features(slot);
  for (int k = m_thread; k < r(); k += Shape::threads) features[static_cast<std::ptrdiff_t>(k) * x.slots] = m_phi[k];
  for (int c = m_thread; c < d_v(); c += Shape::threads) x.values[to * d_v() + c] = m_value[c];
  if (m_thread == 0) x.log_scales[to] = log_scale, x.feature_norms[to] = norm;
  store_exact_key(to, log_scale == log_scale);
  const int leaving = m_keys.add_token();
  __syncthreads();
  if (leaving >= 0 && has_sums()) m_sums.add(m_keys.place(leaving), m_keys.features(leaving), m_keys.slope());
}

/// Stores the loaded key at a place of the ring, if there is a near field, and the loaded key and value among the
/// sinks, if the token is a sink. A non-finite key becomes NaN, so that its score is NaN for each query.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::store_exact_key(std::ptrdiff_t place, bool finite) {
  const DecodeStates& x = m_task.states;
  const int token = m_keys.tokens();
  const auto store_key = [&](float* to) {
    for (int k = m_thread; k < d(); k += Shape::threads) to[k] = finite ? m_key[k] : not_a_number;
  };
  if (x.near > 0) store_key(x.keys + place * d());
  if (token >= x.sinks) return;
  const std::ptrdiff_t to = m_keys.place(x.sinks, token);
  store_key(x.sink_keys + to * d());
  for (int c = m_thread; c < d_v(); c += Shape::threads) x.sink_values[to * d_v() + c] = m_value[c];
}

/// Computes the row y = N / D of the last token's query, which is token t of the call. Weights are relative to about
/// the largest one.
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::attend(int t) {
  const float log_scale = compute_token_features(m_task.queries, m_z, {m_query, m_scratch}, m_phi);
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
      const float x = m_query[k];
#pragma unroll
      for (int i = 0; i < at_once; ++i) scores[i] = fmaf(x, keys[i][k], scores[i]);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const float score = over_warp(scores[i], Sum());
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
  return over_groups<Shape>(m_scratch, static_cast<float>(largest), Largest());
}

/// Sets the weights exp(exponent - reference) of the keys of m_keys, and returns the weight of the sums. Up to the next
/// sum over the block, in denominator(), each thread reads only weights that it set.
template <Storage S>
__device__ __forceinline__ float DecodeHead<S>::set_weights(double unit, double reference) const {
  for (int i = m_thread; i < m_keys.count(); i += Shape::threads)
    m_keys.weight(i) = exp_of(exponent(i, unit) - reference);
  return has_sums() ? exp_of(exponent_of_sums() - reference) : 0.0f;
}

/// Computes D = phi(q).(w Z + sum_ring c phi(k)) + sum_exact c, with the weight w of the sums and the weights c of
/// keys. Multiplies the weight c of each key that is not exact by phi(q).phi(k).
template <Storage S>
__device__ __forceinline__ typename DecodeHead<S>::Denominator DecodeHead<S>::denominator(float weight_of_sums) const {
  const DecodeStates& x = m_task.states;
  float D = 0, norms = 0, exact = 0;
  for (int i = m_thread; i < m_keys.count(); i += Shape::threads) {
    const float weight = m_keys.weight(i);
    if (weight == 0) continue;
    if (m_keys.is_exact(i)) {
      exact += weight;
      continue;
    }
    const int slot = m_keys.slot(i);
    const float* features = m_keys.features(slot);
    float score = 0;
#pragma unroll 16
    for (int k = 0; k < r(); ++k) score = fmaf(m_phi[k], features[static_cast<std::ptrdiff_t>(k) * x.slots], score);
    m_keys.weight(i) = weight * score;
    D += weight * score;
    norms = fmaf(weight, x.feature_norms[m_keys.place(slot)], norms);
  }
  if (has_sums()) {
    for (int k = m_thread; k < r(); k += Shape::threads) D = fmaf(weight_of_sums * m_phi[k], m_sums.Z(k), D);
    if (m_thread == 0) norms = fmaf(weight_of_sums, m_sums.norms(), norms);
  }
  D = sum_over_block(D + exact);
  if (m_task.positive) return {D, D};
  const float terms = sum_over_block(norms) * norm_of_features();
  return {D, terms + sum_over_block(exact)};
}

/// Whether the row's denominator keeps its precision. Counts the row if it does not, if its terms cancel, or if D is
/// not positive.
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

/// N += sum_i weight_i row_i over this warp's keys or features i < count, where row(i) returns weight_i and row_i. N
/// has this lane's columns from first_column on. Several rows are loaded at a time, without branches that would wait
/// for them.
template <Storage S>
template <class Row>
__device__ __forceinline__ void DecodeHead<S>::add_rows(int count, int first_column, float (&N)[of_lane],
                                                        Row&& row) const {
  constexpr int at_once = 8;
  for (int first = warp(); first < count; first += at_once * Shape::warps) {
    float x[at_once][of_lane], weights[at_once];
    bool counts[at_once];
#pragma unroll
    for (int a = 0; a < at_once; ++a) {
      const int i = first + a * Shape::warps;
      const WeightedRow of_i = row(min(i, count - 1));
      weights[a] = of_i.weight;
      counts[a] = of_i.counts && i < count;
#pragma unroll
      for (int e = 0; e < of_lane; ++e) x[a][e] = of_i.row[min(first_column + lane() + 32 * e, d_v() - 1)];
    }
#pragma unroll
    for (int a = 0; a < at_once; ++a)
#pragma unroll
      for (int e = 0; e < of_lane; ++e) N[e] = counts[a] ? fmaf(weights[a], x[a][e], N[e]) : N[e];
  }
}

/// Stores y = N / D for token t, with N = phi(q) (w S + sum_ring c phi(k)^T v) + sum_exact c v and w and c as in
/// denominator().
template <Storage S>
__device__ __forceinline__ void DecodeHead<S>::divide(int t, float weight_of_sums, float D) const {
  for (int first = 0; first < d_v(); first += columns) {
    float N[of_lane] = {};
    if (has_sums())
      add_rows(r(), first, N, [&](int k) { return WeightedRow{weight_of_sums * m_phi[k], m_sums.S(k), true}; });
    add_rows(m_keys.count(), first, N, [&](int i) {
      return WeightedRow{m_keys.weight(i), m_keys.value(i), m_keys.attends(i)};
    });
    __syncthreads();  // the columns before have been read
#pragma unroll
    for (int e = 0; e < of_lane; ++e) m_partial[warp() * columns + lane() + 32 * e] = N[e];
    __syncthreads();
    const int c = first + m_thread;
    if (m_thread >= columns || c >= d_v()) continue;
    float sum = m_partial[m_thread];
    for (int w = 1; w < Shape::warps; ++w) sum += m_partial[w * columns + m_thread];
    store(row_of(m_task.y, m_z, t) + c, sum / D);
  }
}

/// How many blocks share a multiprocessor at least, which limits registers. With two, clang would spill many registers
/// for Volta.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int decode_blocks = 1;
#else
constexpr int decode_blocks = 2;
#endif

template <Storage S>
__global__ void __launch_bounds__(OneTokenShape::threads, decode_blocks) decode_kernel(DecodeTask<S> task) {
  start_kernel();
  DecodeHead<S>(task).run();
}

/// Queues a task. `z` is the number of heads of all sequences.
template <Storage S>
void queue_decode(const DecodeTask<S>& task, int z, cudaStream_t stream) {
  if (z == 0 || task.keys.x.tokens == 0) return;
  launch("decoding", decode_kernel<S>, dim3{1, static_cast<unsigned>(z), 1}, dim3{OneTokenShape::threads, 1, 1},
         task.shared(), stream, task);
}

}  // namespace nprf::cuda
