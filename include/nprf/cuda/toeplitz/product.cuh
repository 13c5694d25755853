// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "nprf/core/error.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"
#include "nprf/cuda/toeplitz/engines.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Computes Y = ((A B^T) o C) [V 1] for one shape by one engine. It refers to the weights, whose values may change
/// between calls. The features A and B are stored as float by channel, [z / group, r, stride], or for tensor cores in
/// 16 bits by token, [z / group, n, stride]; `group` is group_of_A or group_of_B.
template <Storage S>
class Product {
 public:
  /// Throws InvalidArgument if the engine does not support the shape, BackendError if CUDA reports an error. `type` is
  /// in_float; if the engine is tiled and the position is no grid, it may also be the device's feature_type_of_tiles().
  /// `slab_bytes` limits the buffers of FFTs.
  Product(const Device& device, Engine engine, const ProductShape& shape, const ToeplitzWeights& weights,
          std::size_t slab_bytes, FeatureType type = FeatureType::in_float)
      : m_feature_type(type),
        m_shape(checked(shape)),
        m_weights(weights),
        m_engine(make_engine<S>(engine, {device, shape, weights, type, slab_bytes})) {}

  const ProductShape& shape() const { return m_shape; }
  const ToeplitzWeights& weights() const { return m_weights; }
  Engine engine() const {
    return visit([]<class E>(const E&) { return E::name; });
  }

  /// on_tensor_cores(): whether features have 16 bits and are stored by token, for tensor cores.
  /// has_features_of_storage_type(): whether they have 16 bits and the storage type S.
  bool on_tensor_cores() const { return cuda::on_tensor_cores(m_feature_type); }
  bool has_features_of_storage_type() const { return has_storage_type<S>(m_feature_type); }

  /// Calls f.operator()<Feature>() for the type of the features.
  template <class F>
  void with_feature_type(F&& f) const {
    if constexpr (std::same_as<S, __half>)
      if (m_feature_type == FeatureType::in_half) return f.template operator()<__half>();
    if constexpr (!std::same_as<S, float>)
      if (m_feature_type == FeatureType::in_bfloat16) return f.template operator()<__nv_bfloat16>();
    f.template operator()<float>();
  }

  /// The length of the FFT; 0 if the engine uses none.
  int length() const {
    return visit([]<class E>(const E& engine) {
      if constexpr (E::is_tiled)
        return 0;
      else
        return engine.length();
    });
  }

  /// The scalars of a row of the features of n tokens. A row by channel has one feature of all n tokens, and padding if
  /// an FFT needs it. A row by token has all features of one token, padded to a multiple of 16.
  int stride(int n) const {
    if (on_tensor_cores()) return features();
    return visit([n]<class E>(const E& engine) {
      if constexpr (E::is_tiled)
        return n;
      else
        return engine.stride(n);
    });
  }
  /// Scratch memory for A, and for B.
  std::byte* take_A(Scratch& scratch) const { return take_features(scratch, m_shape.n_q, m_shape.group_of_A); }
  std::byte* take_B(Scratch& scratch) const { return take_features(scratch, m_shape.n_k, m_shape.group_of_B); }

  /// Views of A [z / group_of_A, r, stride(n_q)] and B [z / group_of_B, r, stride(n_k)], whose rows must be zero from
  /// token n_q, or n_k, on. For tensor cores they are views of A [z / group_of_A, n_q, stride(n_q)] and
  /// B [z / group_of_B, n_k, stride(n_k)], whose rows must be zero from feature r on.
  template <class Feature>
  Operand<Feature> operand_A(const Feature* A) const {
    return operand(A, m_shape.n_q, m_shape.group_of_A);
  }
  template <class Feature>
  Operand<Feature> operand_B(const Feature* B) const {
    return operand(B, m_shape.n_k, m_shape.group_of_B);
  }

  /// Computes what the engine needs of the weights. Must be called after they have changed.
  void queue_weights(cudaStream_t stream) const {
    visit([&]<class E>(const E& engine) {
      if constexpr (ReadsWeights<E>) engine.queue_weights(stream);
    });
  }

  /// Scratch memory of a call, and the result, `sums`.
  struct Arrays {
    Sums sums;
    typename EngineList<S>::Arrays of_engine;

    template <class E>
    const typename E::Arrays& of() const {
      return std::get<typename E::Arrays>(of_engine);
    }
  };
  /// Allocates the arrays, with room for `extra_parts` additional parts of the sums.
  Arrays take(Scratch& scratch, int extra_parts = 0) const {
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = m_shape;
    const int parts = visit([](const auto& engine) { return engine.parts(); }) + extra_parts;
    Arrays arrays{};
    float* N = scratch.take<float>(parts, z, n_q, p);
    arrays.sums = {N, scratch.take<float>(parts, z, n_q), parts, p, static_cast<std::ptrdiff_t>(z) * n_q};
    visit([&](const auto& engine) { arrays.of_engine = engine.take(scratch); });
    return arrays;
  }

  /// States of the keys before and after the band (ChunkTask), if the engine has states; else null.
  struct States {
    const float *before = nullptr, *after = nullptr;
  };
  States states(const Arrays& arrays) const {
    return visit([&]<class E>(const E&) -> States {
      if constexpr (E::has_states)
        return {arrays.template of<E>().before, arrays.template of<E>().after};
      else
        return {};
    });
  }
  /// Allocates the arrays without the sums, which is enough for queue_states().
  Arrays take_states(Scratch& scratch) const {
    Arrays arrays{};
    visit([&](const auto& engine) { arrays.of_engine = engine.take(scratch); });
    return arrays;
  }
  /// Queues the computation of states(arrays) alone, if the engine has states.
  void queue_states(const float* A, const float* B, const Columns<S>& U, const Arrays& arrays,
                    cudaStream_t stream) const {
    visit([&]<class E>(const E& engine) {
      if constexpr (E::has_states)
        engine.queue_states(TileTask<S>{operand_A(A), operand_B(B), U, m_weights.c}, arrays.template of<E>(), stream);
    });
  }

  /// Queues the computation of arrays.sums, from features in the layout of operand_A() and operand_B().
  void queue(const float* A, const float* B, const Columns<S>& U, const Arrays& arrays, cudaStream_t stream) const {
    const TileTask<S> task{operand_A(A), operand_B(B), U, m_weights.c};
    visit([&]<class E>(const E& engine) { engine.queue(task, arrays.sums, arrays.template of<E>(), stream); });
  }
  template <MmaFactor Feature>
  void queue(const Feature* A, const Feature* B, const Columns<S>& U, const Arrays& arrays, cudaStream_t stream,
             const OperandScales& scales = OperandScales::of_features<Feature>()) const {
    const TileTask<S, Feature> task{operand_A(A), operand_B(B), U, m_weights.c, scales};
    visit([&]<class E>(const E& engine) {
      if constexpr (E::is_tiled) engine.queue(task, arrays.sums, arrays.template of<E>(), stream);
    });
  }

 private:
  template <class Use>
  decltype(auto) visit(Use&& use) const {
    return std::visit(use, m_engine);
  }

  // throws InvalidArgument for a shape that no engine supports
  static const ProductShape& checked(const ProductShape& shape) {
    constexpr std::ptrdiff_t most_blocks = 65535;
    require(static_cast<std::ptrdiff_t>(shape.z) * TileShape::column_tiles(shape.p) <= most_blocks,
            "batch and heads: expected batch heads ceil(columns / 64) of at most ", most_blocks,
            ", where columns is d_v or, with gradients, the number of features, got batch heads = ", shape.z, " and ",
            shape.p, " columns");
    return shape;
  }

  std::byte* take_features(Scratch& scratch, int n, int group) const {
    const std::size_t row = static_cast<std::size_t>(stride(n)), all = static_cast<std::size_t>(m_shape.z / group);
    return scratch.take<std::byte>(on_tensor_cores() ? sizeof(std::uint16_t) * all * static_cast<std::size_t>(n) * row
                                                     : sizeof(float) * all * static_cast<std::size_t>(m_shape.r) * row);
  }

  Operand<float> operand(const float* features, int n, int group) const {
    return Operand<float>::by_channel(features, m_shape.heads / group, n, m_shape.r, stride(n)).shared_by(group);
  }
  template <MmaFactor Feature>
  Operand<Feature> operand(const Feature* rows, int n, int group) const {
    const DeviceMatrixView<const Feature> view(rows, m_shape.z / m_shape.heads, m_shape.heads / group, n, features());
    return Operand<Feature>(view).shared_by(group);
  }

  // features per row of A and B, with padding
  int features() const { return m_shape.features(m_feature_type); }

  FeatureType m_feature_type;
  ProductShape m_shape;
  ToeplitzWeights m_weights;
  typename EngineList<S>::Variant m_engine;
};

}  // namespace nprf::cuda
