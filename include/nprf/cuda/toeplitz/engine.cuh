// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <string_view>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

/// The concept of an engine: a class that computes Y = ((A B^T) o C) [V 1] for one shape and one set of weights, and
/// states its properties. To add one, write a class that models ToeplitzEngine, add it to EngineList (engines.cuh), and
/// its name to Engine.
namespace nprf::cuda {

/// How a plan computes its products. direct: tiles of the quadratic matrix. banded: T5, clipped tables, ALiBi or no
/// position, in linear time. smooth: biases that are smooth functions of long lags, in linear time; weights change by
/// up to a quarter of PlanOptions::tolerance, relative to each. fused: any position but a grid in O(n log n), by FFTs
/// in shared memory up to 16384 tokens, and by FFTs in two passes through memory up to 2^20 tokens. cufft: any position
/// in O(n log n), by cuFFT, in about ten passes through memory. A grid needs direct or cufft.
///
/// direct, banded and the tiles of smooth use tensor cores if the storage type has 16 bits and the position is no grid.
/// With half storage, factors are multiplied in half, by any device, if the features fit the range of half
/// (DeviceModel::features_fit_half). Otherwise, and with bfloat16 storage, they are multiplied in bfloat16, if the
/// device can do that (compute capability 8.0 and newer). The precision is then that of the type in which they are
/// multiplied (toeplitz/direct/mma_tile.cuh). All other arithmetic is in float.
///
/// The rounding errors of an FFT are relative to the largest rows of Y. If the bias rises with the distance, if it has
/// narrow peaks, or if attention is causal, small rows may fail the error bound. Those rows are found and recomputed by
/// tiles (attention/checked_product.cuh). The automatic engine does not choose an FFT if too many rows would fail.
enum class Engine { automatic, direct, banded, fused, cufft, smooth };

constexpr std::string_view name(Engine engine) {
  switch (engine) {
    case Engine::automatic: return "automatic";
    case Engine::direct: return "direct";
    case Engine::banded: return "banded";
    case Engine::fused: return "fused";
    case Engine::cufft: return "cufft";
    case Engine::smooth: return "smooth";
  }
  return "unknown";
}

/// The sizes of Y = ((A B^T) o C) [V 1] for every z = (sequence, head): A (n_q,r), B (n_k,r), V (n_k,p).
struct ProductShape {
  int z, heads, n_q, n_k, r, p;        // z: the number of sequences times heads
  int group_of_A = 1, group_of_B = 1;  // how many consecutive heads share A, and share B

  /// The scalars of a row of A or B. On tensor cores rows are stored by token, and padded to a multiple of 16 features.
  int features(FeatureType type) const { return on_tensor_cores(type) ? std::max(1, (r + 15) / 16) * 16 : r; }
};

/// What the constructor of an engine takes. The values of the weights may change between calls.
struct EngineInputs {
  const Device& device;
  const ProductShape& shape;
  const ToeplitzWeights& weights;
  FeatureType type;        // of A and B
  std::size_t slab_bytes;  // limits the buffers of FFTs
};

/// What the time of a product depends on.
struct CostInputs {
  const Device& device;
  const ProductShape& shape;
  const ToeplitzWeights& weights;
  bool is_causal, on_tensor_cores;

  /// The number of signals that FFTs transform: pairs of columns of [V 1] * features * z.
  double signals() const { return static_cast<double>(shape.z) * shape.r * ((static_cast<double>(shape.p) + 1) / 2); }
};

/// The time of a call is modelled as start + work / rate. `start` and `rate` are fitted to measurements on an H200
/// (bench/README.md) of forward passes, for 1024 to 131072 tokens.
struct CallCost {
  double start;        // s: the least time of the kernels, one after the other
  double rate;         // work per second, in floating-point operations, or for FFTs in global memory in bytes
  double work;         // infinite if the engine does not support the shape
  int fft_length = 0;  // the rounding errors depend on it; 0: no FFT

  constexpr double time() const { return start + work / rate; }
};

/// The additional function of an engine that computes tables from the weights.
template <class E>
concept ReadsWeights = requires(const E& engine, cudaStream_t stream) { engine.queue_weights(stream); };

/// The additional functions of an engine that uses FFTs: it transforms the weights.
template <class E>
concept TransformsWeights = ReadsWeights<E> && requires(const E& engine) {
  { engine.length() } -> std::same_as<int>;
  { engine.stride(int{}) } -> std::same_as<int>;
};

/// The additional members of an engine in which keys outside of the band contribute through states of chunks of keys
/// (ChunkTask).
template <class E, class Task>
concept HasStates = requires(const E& engine, const Task& task, const typename E::Arrays& arrays, cudaStream_t stream) {
  { arrays.before } -> std::convertible_to<const float*>;
  { arrays.after } -> std::convertible_to<const float*>;
  engine.queue_states(task, arrays, stream);
};

/// An engine for operands in a TileTask.
///
///     name                               the name by which users choose it
///     is_tiled                           whether it computes tiles, also on tensor cores: the rounding errors of a row
///                                        are then relative to that row. Other engines use FFTs, whose rounding errors
///                                        are relative to the largest rows
///     supports_grid                      whether it supports the weights of a grid
///     has_states                         whether keys outside of the band contribute through states (HasStates)
///     cost(inputs)                       the cost of a call, without recomputing rows that fail the error bound
///     Arrays, take(scratch)              the scratch memory of one call
///     parts()                            the number of parts that the sums consist of (Sums)
///     queue(task, sums, arrays, stream)  queues the computation of these parts
///     length(), stride(n)                with FFTs: their length, and the scalars of a row of one feature of n tokens
///     queue_weights(stream)              with FFTs, or other tables of the weights (ReadsWeights): computes them; must
///                                        be called after the weights have changed, and may wait for the stream
template <class E, class Task>
concept ToeplitzEngine = std::constructible_from<E, const EngineInputs&> && std::movable<E> &&
                         requires(const E& engine, const CostInputs& inputs, Scratch& scratch, const Task& task,
                                  const Sums& sums, const typename E::Arrays& arrays, cudaStream_t stream) {
                           { E::name } -> std::same_as<const Engine&>;
                           { E::is_tiled } -> std::convertible_to<bool>;
                           { E::supports_grid } -> std::convertible_to<bool>;
                           { E::has_states } -> std::convertible_to<bool>;
                           { E::cost(inputs) } -> std::same_as<CallCost>;
                           { engine.take(scratch) } -> std::same_as<typename E::Arrays>;
                           { engine.parts() } -> std::same_as<int>;
                           engine.queue(task, sums, arrays, stream);
                         } &&
                         E::is_tiled != TransformsWeights<E> && E::has_states == HasStates<E, Task>;

}  // namespace nprf::cuda
