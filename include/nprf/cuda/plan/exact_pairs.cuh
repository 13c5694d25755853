// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>

#include "nprf/cuda/attention/checked_product.cuh"
#include "nprf/cuda/attention/exact/failing_rows.cuh"
#include "nprf/cuda/attention/exact/near_sums.cuh"
#include "nprf/cuda/attention/exact/normalised_rows.cuh"
#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/kernel_loading.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/position/sinks.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

namespace nprf::cuda {

/// The sums of a plan with a near field or attention sinks, or whose features are a series: far pairs by an engine,
/// near pairs and those of sinks with the weights of exact softmax, and failing rows entirely by exact softmax
/// (attention/exact).
template <Storage S>
class ExactPlan {
 public:
  /// `product` is that of the plan's forward pass.
  ExactPlan(const Device& device, const DeviceModel& model, const Product<S>& product, std::size_t slab_bytes)
      : m_blocks(2 * device.multiprocessors) {
    if (!model.is_quadratic()) return;
    ProductShape shape = product.shape();
    shape.r = 1, shape.p = 0;
    m_terms.emplace(device, product.engine(), shape, product.weights(), slab_bytes);
  }

  /// Must be called after the weights have changed.
  void queue_weights(cudaStream_t stream) const {
    if (m_terms) m_terms->queue_spectrum(stream);
  }

  /// Scratch memory of a call, some of which are its results.
  struct Arrays {
    float *q, *k;            // [z, n_q, d] [z / group, n_k, d]: normalised rows
    float* log_factors;      // [z, n_q]
    double* log_scales;      // [z, n_q]: row i of the sums is in units of exp(log_scale)
    double* largest_biases;  // [z, n_q]: ExactPairs::largest_biases
    float* near_D;           // [z, n_q]
    bool* is_exact;          // [z, n_q]: rows by exact softmax
    int* rows;               // [z, n_q]: the same as a list
    int2* sinks;             // [sequence]: as in SinksTask; null: no sinks
    float *norm_q, *norm_k;  // [z, 1, stride] [z / feature_group, 1, stride]: of features
    typename Product<float>::Arrays terms;
  };
  Arrays take(const DeviceModel& model, Scratch& scratch) const {
    const int z = model.z(), n_q = model.n_q(), n_k = model.n_k();
    Arrays arrays{};
    arrays.q = scratch.take<float>(z, n_q, model.d());
    arrays.k = scratch.take<float>(z / model.group(), n_k, model.d());
    arrays.log_factors = scratch.take<float>(z, n_q);
    arrays.log_scales = scratch.take<double>(z, n_q);
    arrays.largest_biases = scratch.take<double>(z, n_q);
    arrays.near_D = scratch.take<float>(z, n_q);
    arrays.is_exact = scratch.take<bool>(z, n_q);
    arrays.rows = scratch.take<int>(z, n_q);
    if (model.has_sinks()) arrays.sinks = scratch.take<int2>(model.shape().batch);
    if (!m_terms) return arrays;
    arrays.norm_q = scratch.take<float>(z, m_terms->stride(n_q));
    arrays.norm_k = scratch.take<float>(z / model.feature_group(), m_terms->stride(n_k));
    arrays.terms = m_terms->take(scratch);
    return arrays;
  }

  /// The operands of a call. A is changed in rows that are not computed by features alone.
  template <class Feature>
  struct Inputs {
    DeviceMatrixView<const S> q, k;
    FeatureTask<S, Feature> queries, keys;  // of q and k, computed already, with Arrays::log_factors
    Columns<S> U;
    const Product<S>& product;
    const typename Product<S>::Arrays& sums;
    const CheckedProduct<S>& checked_product;
    const typename CheckedProduct<S>::Arrays& checks;
  };

  ExactPairs pairs(const DeviceModel& model, const bool* key_mask, const Arrays& arrays) const {
    const auto rows = [&](const float* x, int n, int group) {
      const DeviceMatrixView<const float> view(x, model.shape().batch, model.heads() / group, n, model.d());
      return Operand<float>(view).shared_by(group);
    };
    return {rows(arrays.q, model.n_q(), 1),
            rows(arrays.k, model.n_k(), model.group()),
            model.bias(),
            model.weight_bias(),
            arrays.largest_biases,
            key_mask,
            arrays.sinks};
  }

  /// Queues Arrays::sinks, if there are sinks, which the features of keys depend on.
  void queue_sinks(const DeviceModel& model, const bool* key_mask, const Arrays& arrays, cudaStream_t stream) const {
    if (!model.has_sinks()) return;
    const int sequences = static_cast<int>(model.shape().batch);
    cuda::queue_sinks({key_mask, sequences, model.n_k(), model.sinks(), arrays.sinks}, stream);
  }

  /// Queues the sums. Their rows are in units of Arrays::log_scales.
  template <class Feature>
  CheckedSums queue(const DeviceModel& model, const Inputs<Feature>& x, const Arrays& arrays,
                    cudaStream_t stream) const {
    const int z = model.z(), n_q = model.n_q();
    const Sums& sums = x.sums.sums;
    const Counters& counters = x.checks.counters;
    Columns<S> U = x.U;
    if constexpr (std::is_same_v<Feature, float>)
      U = x.checked_product.queue_product(x.product, x.queries.phi, x.keys.phi, U, x.sums, x.checks, stream);
    else
      x.product.queue(x.queries.phi, x.keys.phi, U, x.sums, stream);
    queue_normalised_rows(
        NormalisedRowsTask<S>{model.template features<S, float>(x.q, true, nullptr, nullptr, nullptr, 0),
                              model.template features<S, float>(x.k, false, U.mask, nullptr, nullptr, 0), arrays.q,
                              arrays.k},
        z, stream);
    const ExactPairs all = pairs(model, U.mask, arrays);
    const FeatureRows<Feature> A{x.queries.phi, model.r(), x.queries.stride};
    const FarLogScales far{arrays.log_factors, x.keys.max_log_scale, model.shift(), model.log_normalisation(),
                           x.keys.group};
    queue_near_sums(NearSumsTask<S, Feature>{all, U, far, sums, A, arrays.log_scales, arrays.near_D}, z, stream);
    if constexpr (std::is_same_v<Feature, float>)
      x.checked_product.queue_bounds(x.product, x.queries.phi, x.sums, x.checks, stream);
    queue_terms(model, x, A, arrays, stream);
    queue_fill("clearing flags", arrays.is_exact, 0, static_cast<std::size_t>(sums.rows), stream);
    const RowList rows{arrays.rows, counters.log_domain_rows, n_q};
    queue_failing_rows(
        {sums, model.positive(), x.checked_product.uses_fft() ? x.checks.recomputed : nullptr,
         m_terms ? arrays.terms.sums : Sums{}, arrays.near_D, model.attention_mask(U.mask), rows, arrays.log_scales},
        stream);
    queue_softmax_rows(
        SoftmaxRowsTask<S, Feature>{all, U, rows, sums, A, arrays.log_scales, arrays.is_exact, counters.counts}, z,
        m_blocks, stream);
    return {sums, nullptr, {}, U.largest};
  }

 private:
  // sum_j |A_i| c_ij |B_j|, if features have both signs
  template <class Feature>
  void queue_terms(const DeviceModel& model, const Inputs<Feature>& x, const FeatureRows<Feature>& A,
                   const Arrays& arrays, cudaStream_t stream) const {
    if (!m_terms) return;
    const int z = model.z(), n_q = model.n_q(), n_k = model.n_k();
    const FeatureRows<Feature> B{x.keys.phi, model.r(), x.keys.stride};
    queue_feature_norms(FeatureNormsTask<Feature>{A, n_q, m_terms->stride(n_q), arrays.norm_q}, z, stream);
    queue_feature_norms(FeatureNormsTask<Feature>{B, n_k, m_terms->stride(n_k), arrays.norm_k}, z / x.keys.group,
                        stream);
    const auto no_values = Operand<float>::by_channel(arrays.norm_k, model.heads(), n_k, 0, m_terms->stride(n_k));
    m_terms->queue(arrays.norm_q, arrays.norm_k, {no_values, nullptr}, arrays.terms, stream);
  }

  int m_blocks;
  std::optional<Product<float>> m_terms;  // of one feature and no values; for features of both signs
};

}  // namespace nprf::cuda
