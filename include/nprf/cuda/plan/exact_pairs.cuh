// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>

#include "nprf/cuda/attention/checked_product.cuh"
#include "nprf/cuda/attention/exact/failing_rows.cuh"
#include "nprf/cuda/attention/exact/near_sums.cuh"
#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/attention/exact/recomputed_rows.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

namespace nprf::cuda {

/// What a plan computes pair by pair (attention/exact). With a near field, attention sinks or features that are a
/// series, the sums of a row are those of the engine over far pairs, plus those over near pairs and sinks with the
/// weights of softmax; a row that fails is computed by exact softmax alone. In other plans the rows whose denominator
/// underflows are recomputed, from their features or, if these underflow too, by exact softmax.
template <Storage S>
class ExactPlan {
 public:
  /// `product` is the product of the plan's forward pass.
  ExactPlan(const Device& device, const DeviceModel& model, const Product<S>& product, std::size_t slab_bytes)
      : m_blocks(2 * device.multiprocessors), m_has_field(model.has_exact_rows()) {
    if (!model.is_quadratic()) return;
    ProductShape shape = product.shape();
    shape.r = 1, shape.p = 0;
    m_terms.emplace(device, product.engine(), shape, product.weights(), slab_bytes);
  }

  /// Whether the plan has a near field, attention sinks or features that are a series: then the sums of rows are not
  /// those of the engine alone.
  bool has_field() const { return m_has_field; }

  /// Must be called after the weights have changed.
  void queue_weights(cudaStream_t stream) const {
    if (m_terms) m_terms->queue_weights(stream);
  }

  /// Scratch memory of a call. Some of the arrays are results.
  struct Arrays {
    float *q_factors, *k_factors;  // [z, n_q] [z / feature_group, n_k]: FeatureTask::factors; null: no exact softmax
    double* largest_biases;        // [z, n_q]: ExactPairs::largest_biases
    double* log_scales;            // [z, n_q]: row i of the sums is in units of exp(log_scales[i])
    RowKind* kinds;                // [z, n_q]
    RowList rows;                  // the rows that are recomputed
    float* log_factors;            // [z, n_q]; this and the following arrays only if has_field()
    float* near_D;                 // [z, n_q]: what near pairs and sinks add to D
    int2* sinks;                   // [sequence]: as in SinksTask; null: no sinks
    float *norm_q, *norm_k;        // [z, 1, stride] [z / feature_group, 1, stride]: norms of rows of features
    typename Product<float>::Arrays terms;
  };
  /// With `results`, recomputed rows replace their sums, and log_scales and kinds are results; else recomputed rows go
  /// to y.
  Arrays take(const DeviceModel& model, Scratch& scratch, const Counters& counters, bool results) const {
    const int z = model.z(), n_q = model.n_q(), n_k = model.n_k(), of_keys = z / model.feature_group();
    Arrays arrays{};
    arrays.rows = {scratch.take<int>(z, n_q), counters.recomputed_rows, n_q};
    if (model.falls_back_to_softmax()) {
      arrays.q_factors = scratch.take<float>(z, n_q);
      arrays.k_factors = scratch.take<float>(of_keys, n_k);
      arrays.largest_biases = scratch.take<double>(z, n_q);
    }
    if (results) {
      arrays.log_scales = scratch.take<double>(z, n_q);
      arrays.kinds = scratch.take<RowKind>(z, n_q);
    }
    if (!m_has_field) return arrays;
    arrays.log_factors = scratch.take<float>(z, n_q);
    arrays.near_D = scratch.take<float>(z, n_q);
    if (model.has_sinks()) arrays.sinks = scratch.take<int2>(model.shape().batch);
    if (!m_terms) return arrays;
    arrays.norm_q = scratch.take<float>(z, m_terms->stride(n_q));
    arrays.norm_k = scratch.take<float>(of_keys, m_terms->stride(n_k));
    arrays.terms = m_terms->take(scratch);
    return arrays;
  }

  /// The operands of a call. With a field, queue() may multiply rows of A, the features of queries, by factors
  /// (NearSumsTask).
  template <class Feature>
  struct Inputs {
    FeatureTask<S, Feature> queries, keys;  // after prepare()
    Columns<S> U;
    const Product<S>& product;
  };

  ExactPairs pairs(const DeviceModel& model, const bool* key_mask, const Arrays& arrays) const {
    return {model.heads(),       model.n_q(),           model.n_k(), model.bias(),
            model.weight_bias(), arrays.largest_biases, key_mask,    arrays.sinks};
  }
  template <class Feature>
  SoftmaxScores<S> scores(const FeatureTask<S, Feature>& queries, const FeatureTask<S, Feature>& keys) const {
    return {queries.x, keys.x, queries.factors, keys.factors, keys.group};
  }

  /// Makes the tasks of features store what exact pairs need of them. If there are sinks, queues Arrays::sinks, on
  /// which the features of keys depend.
  template <class Feature>
  void prepare(const DeviceModel& model, FeatureTask<S, Feature>& queries, FeatureTask<S, Feature>& keys,
               const Arrays& arrays, cudaStream_t stream) const {
    queries.log_factors = arrays.log_factors;
    queries.factors = arrays.q_factors, keys.factors = arrays.k_factors;
    keys.sinks = arrays.sinks;
    if (!model.has_sinks()) return;
    const int sequences = static_cast<int>(model.shape().batch);
    queue_sinks({keys.mask, sequences, model.n_k(), model.sinks(), arrays.sinks}, stream);
  }

  /// Queues the sums of a plan with a field. Row i of the sums is in units of exp(log_scales[i]) of `arrays`.
  template <class Feature>
  CheckedSums queue(const DeviceModel& model, const Inputs<Feature>& x, const typename Product<S>::Arrays& of_product,
                    const CheckedProduct<S>& checked_product, const typename CheckedProduct<S>::Arrays& checks,
                    const Arrays& arrays, cudaStream_t stream) const {
    const int z = model.z();
    const Sums& sums = of_product.sums;
    Columns<S> U = x.U;
    if constexpr (std::is_same_v<Feature, float>)
      U = checked_product.queue_product(x.product, x.queries.phi, x.keys.phi, U, of_product, checks, stream);
    else
      x.product.queue(x.queries.phi, x.keys.phi, U, of_product, stream);
    const ExactPairs all = pairs(model, U.mask, arrays);
    const FeatureRows<Feature> A{x.queries.phi, model.r(), x.queries.stride};
    const FarLogScales far{arrays.log_factors, x.keys.max_log_scale, model.shift(), model.log_normalisation(),
                           x.keys.group};
    queue_near_sums(
        NearSumsTask<S, Feature>{all, scores(x.queries, x.keys), U, far, sums, A, arrays.log_scales, arrays.near_D}, z,
        stream);
    if constexpr (std::is_same_v<Feature, float>)
      checked_product.queue_bounds(x.product, x.queries.phi, of_product, checks, stream);
    queue_terms(model, x, A, arrays, stream);
    queue_failing_rows({sums, model.positive(), checked_product.uses_fft() ? checks.recomputed : nullptr,
                        m_terms ? arrays.terms.sums : Sums{}, arrays.near_D, model.attention_mask(U.mask), arrays.rows,
                        arrays.log_scales, arrays.kinds},
                       stream);
    const CheckedSums all_sums{sums, nullptr, {}, U.largest};
    queue_rows(model, x, all_sums, {}, checks.counters.counts, arrays, stream);
    return all_sums;
  }

  /// Queues the recomputation of the rows that Arrays::rows lists. They go to the sums or, if take() had no `results`,
  /// to y.
  template <class Feature>
  void queue_rows(const DeviceModel& model, const Inputs<Feature>& x, const CheckedSums& sums,
                  const DeviceMatrixView<S>& y, Counts* counts, const Arrays& arrays, cudaStream_t stream) const {
    Columns<S> U = x.U;
    U.largest = sums.largest;
    queue_recomputed_rows(
        RecomputedRowsTask<S, Feature>{pairs(model, U.mask, arrays),
                                       {x.product.operand_A(static_cast<const Feature*>(x.queries.phi)),
                                        x.product.operand_B(static_cast<const Feature*>(x.keys.phi))},
                                       scores(x.queries, x.keys),
                                       !m_has_field,
                                       model.falls_back_to_softmax(),
                                       U,
                                       arrays.rows,
                                       sums,
                                       y,
                                       arrays.log_scales,
                                       arrays.kinds,
                                       counts},
        model.z(), m_blocks, stream);
  }

 private:
  // queues sum_j |A_i| c_ij |B_j| of each row i, for quadratic features
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
  bool m_has_field;
  std::optional<Product<float>> m_terms;  // a product of one feature, the norm, without values; for quadratic features
};

}  // namespace nprf::cuda
