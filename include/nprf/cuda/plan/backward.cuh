// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>

#include "nprf/config.hpp"
#include "nprf/core/error.hpp"
#include "nprf/cuda/attention/checked_product.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/backward_inputs.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/exact_pairs.cuh"
#include "nprf/cuda/plan/options.cuh"
#include "nprf/cuda/toeplitz/product.cuh"
#if NPRF_CUDA_GRADIENTS
#include "nprf/cuda/attention/exact/backward.cuh"
#include "nprf/cuda/attention/recompute_tiled.cuh"
#include "nprf/cuda/feature_map/backward.cuh"
#include "nprf/cuda/position/backward.cuh"
#include "nprf/cuda/toeplitz/backward/gradient_products.cuh"
#include "nprf/cuda/toeplitz/backward/gradients.cuh"
#include "nprf/cuda/toeplitz/backward/lags_fft.cuh"
#include "nprf/cuda/toeplitz/backward/lags_of_grid.cuh"
#include "nprf/cuda/toeplitz/backward/lags_tiled.cuh"
#include "nprf/cuda/toeplitz/backward/selected_queries.cuh"
#endif

namespace nprf::cuda {

#if NPRF_CUDA_GRADIENTS
/// Computes the gradients of y = N / D, where [N D] = Y = ((A B^T) o C) U and U = [V 1], from G = dL/dY: by three
/// products with the weights and the engine of Y (GradientProducts), and by sums over the pairs of each lag. The
/// backward pass takes about four times the time of the forward pass, which it repeats. With
/// PlanOptions::gradients_on_tensor_cores the three products are computed from factors that are rounded to the storage
/// type, and so is Y, except with a field (ExactPlan::has_field()); the gradients of lags, features and inputs stay in
/// float. With an FFT engine, the gradients of parameters add about twice the time of the forward pass. The rows of Y
/// that fail the FFT error bound contribute by tiles, from H, which has their rows of G. The gradients of the pairs of
/// an ExactPlan are added (attention/exact/backward.cuh). For all other rows the rounding error of an FFT is relative
/// to the largest gradients of the head. Where heads of queries share keys and values, dk and dv are computed for each
/// head of queries, and then added in the order of the heads.
template <Storage S>
class Backward {
 public:
  /// `forward` is the product of the plan's forward pass; the ForwardParts of all calls must refer to the same product.
  /// With `on_tensor_cores` the three products are computed on tensor cores if `forward` is, in the storage type.
  Backward(const Device& device, const DeviceModel& model, const Product<S>& forward, std::size_t slab_bytes,
           bool on_tensor_cores)
      : m_is_tiled(properties_of(forward.engine()).is_tiled),
        m_products(device, forward, slab_bytes, on_tensor_cores && forward.has_features_of_storage_type()) {
    if (forward.on_tensor_cores())
      m_in_float.emplace(device, forward.engine(), forward.shape(), forward.weights(), slab_bytes);
    const std::size_t shared = FeatureGradientShape::shared(model.d_padded(), model.is_centred() ? 2 : 1,
                                                            model.is_centred() || model.is_quadratic());
    require(shared <= device.shared_bytes, "input_dim: expected a size that fits in ", device.shared_bytes,
            " bytes of shared memory with gradients, got ", model.d());
    ToeplitzWeights weights = model.toeplitz();
    if (!properties_of(forward.engine()).has_states)
      weights.band = {weights.c.first, weights.c.first + weights.c.size - 1};
    const int z = model.z(), n_q = model.n_q(), n_k = model.n_k(), r = model.r();
    if (!model.places().is_grid()) m_lags = LagGradients(device, forward.shape(), weights, model.d_v() + 1);
    if (m_is_tiled) return;
    m_correlation = LagCorrelations(n_q, n_k, r, model.d_v(), z, model.toeplitz(), slab_bytes);
    m_parts_of_dA = parts_of_keys(device, TileShape::tiles(n_q), n_k, r, z);
    m_extra_parts = parts_of_keys(device, TileShape::tiles(n_k), n_q, r, z);
    m_blocks = 2 * device.multiprocessors;
  }

  /// Must be called after the weights have changed.
  void queue_weights(cudaStream_t stream) const {
    m_products.queue_weights(stream);
    if (m_in_float) m_in_float->queue_weights(stream);
  }

  /// Scratch memory of a call.
  struct Arrays {
    float *phi_q, *phi_k;       // [z, r, stride(n_q)] [z / feature_group, r, stride(n_k)]
    int *max_log_scale, *rows;  // [z / feature_group] [z, n_q]: rows that fail the FFT error bound
    bool* recomputed;           // [z, n_q]: flags of these rows
    SelectedQueries selected;   // the queries of these rows; of FFT engines
    float *G, *H, *U;           // [z, p + 1, stride(n_q)] [z, p + 1, stride(n_q)] [z, p + 1, stride(n_k)]
    float* db;                  // [position, entries]: gradients of biases of lags, then of the border of a grid
    float* dk;                  // [z, n_k, d]: dk of each head of queries, if heads share keys; else null
    typename ExactPlan<S>::Arrays exact;
    ExactGradients exact_gradients;
    typename Product<S>::Arrays Y, tensor_Y;  // Y: in float; only its states are computed if tensor_Y is computed
    typename CheckedProduct<S>::Arrays checks;
    LagGradients::Arrays lags;
    LagCorrelations::Arrays correlation;
    typename GradientProducts<S>::Rows rows_of_factors;
    typename GradientProducts<S>::Arrays dA, dB, dU;
    Sums extra_dA;  // the parts of dA after the first one, in recomputed rows
  };
  Arrays take(const ForwardParts<S>& forward, Scratch& scratch) const {
    const DeviceModel& model = forward.model;
    const ExactPlan<S>& exact = forward.exact;
    const Product<S>& Y = in_float(forward.product);
    const int z = model.z(), r = model.r(), p = model.d_v(), tokens_q = Y.stride(model.n_q()),
              tokens_k = Y.stride(model.n_k());
    Arrays arrays{};
    arrays.phi_q = scratch.take<float>(z, r, tokens_q);
    arrays.phi_k = scratch.take<float>(z / model.feature_group(), r, tokens_k);
    arrays.max_log_scale = scratch.take<int>(model.needs_log_scales() ? z / model.feature_group() : 0);
    arrays.rows = scratch.take<int>(z, model.n_q());
    arrays.recomputed = scratch.take<bool>(z, model.n_q());
    if (!m_is_tiled) arrays.selected = SelectedQueries::take(scratch, arrays.recomputed, z, model.n_q());
    const Counters counters = Counters::take(scratch, z);
    arrays.G = scratch.take<float>(z, p + 1, tokens_q);
    if (!m_is_tiled) arrays.H = scratch.take<float>(z, p + 1, tokens_q);
    arrays.U = scratch.take<float>(z, p + 1, tokens_k);
    arrays.db = scratch.take<float>(model.positions(), model.entries());
    if (model.group() > 1) arrays.dk = scratch.take<float>(z, model.n_k(), model.d());
    arrays.rows_of_factors = m_products.take_rows(scratch);
    arrays.exact = exact.take(model, scratch, counters, true);
    arrays.exact_gradients = ExactGradients::take(scratch, model.bias(), z, model.n_q(), model.n_k());
    const auto take_exact = [&](float*& to, Scratch& area, int n, int channels) {
      to = area.take<float>(z, n, channels);
    };
    ExactGradients& of_pairs = arrays.exact_gradients;
    if (exact.has_field()) {
      take_exact(of_pairs.dq, scratch, model.n_q(), model.d());
      take_exact(of_pairs.dk, scratch, model.n_k(), model.d());
      take_exact(of_pairs.dv, scratch, model.n_k(), p);
    }
    // without a field, dq and dk of rows by exact softmax are in the areas of the sums dA and dB, and are computed when
    // these sums are there: gradients of rows from features are added to the sums by the same kernels
    const bool in_areas = !exact.has_field() && model.falls_back_to_softmax();
    scratch.overlap(
        [&](Scratch& area) {
          if (computes_tensor_Y(forward)) {
            arrays.Y = Y.take_states(area);
            arrays.tensor_Y = forward.product.take(area);
          } else {
            arrays.Y = Y.take(area);
          }
          arrays.checks = forward.checked_product.take(area, arrays.recomputed, arrays.rows, counters);
          arrays.lags = m_lags.take(area);
          if (!m_is_tiled) arrays.correlation = m_correlation.take(area);
        },
        [&](Scratch& area) {
          arrays.dA = m_products.take_dA(area);
          const int extra = m_parts_of_dA - 1;
          float* N = area.take<float>(extra, z, model.n_q(), r);
          arrays.extra_dA = {N, area.take<float>(extra, z, model.n_q()), extra, r, arrays.dA.sums.rows};
          if (in_areas) take_exact(of_pairs.dq, area, model.n_q(), model.d());
        },
        [&](Scratch& area) {
          arrays.dB = m_products.take_dB(area, m_extra_parts);
          if (in_areas) take_exact(of_pairs.dk, area, model.n_k(), model.d());
        },
        [&](Scratch& area) { arrays.dU = m_products.take_dU(area, m_extra_parts); });
    return arrays;
  }

  /// Queues all gradients.
  void queue(const ForwardParts<S>& forward, const BackwardInputs<S>& inputs, const PlanGradients<S>& gradients,
             const Arrays& arrays, cudaStream_t stream) const {
    const DeviceModel& model = forward.model;
    const Product<S>& Y = in_float(forward.product);
    const int n_q = model.n_q(), n_k = model.n_k();
    TokenFeatures tokens{
        model.features<S>(inputs.q, true, inputs.key_mask, nullptr, arrays.phi_q, Y.stride(n_q)),
        model.features<S>(inputs.k, false, inputs.key_mask, arrays.max_log_scale, arrays.phi_k, Y.stride(n_k))};
    forward.exact.prepare(model, tokens.queries, tokens.keys, arrays.exact, stream);
    arrays.checks.counters.queue_clear(model.z(), stream);
    queue_features(tokens.queries, tokens.keys, model.z(), stream);
    const bool has_tensor_Y = computes_tensor_Y(forward);
    if (has_tensor_Y) queue_rows_of_features(arrays, stream);
    const CheckedSums sums = queue_columns(forward, inputs, tokens, arrays, stream);
    if (!has_tensor_Y) queue_rows_of_features(arrays, stream);  // near sums may have changed the features of queries
    if (!m_is_tiled) queue_selected_tiles(arrays.selected, n_q, model.z(), stream);
    float* db = gradients.parameters && model.parameter_count() > 0 ? arrays.db : nullptr;
    const ExactGradientTask<S> pairs = pair_gradients(forward, inputs, tokens, sums, arrays, db);
    queue_parameters(forward, inputs, pairs, gradients.parameters, arrays, stream);
    queue_inputs(forward, tokens, pairs, gradients, arrays, stream);
  }

 private:
  struct TokenFeatures {
    FeatureTask<S> queries, keys;
  };

  // queues the sums of the forward pass, which it returns, and the columns G, H and U
  CheckedSums queue_columns(const ForwardParts<S>& forward, const BackwardInputs<S>& inputs,
                            const TokenFeatures& tokens, const Arrays& arrays, cudaStream_t stream) const {
    const auto& [model, product, checked_product, exact] = forward;
    const auto& [queries, keys] = tokens;
    const Product<S>& Y = in_float(product);
    const Columns<S> V{model.shared_by_group(inputs.v), inputs.key_mask};
    const typename ExactPlan<S>::template Inputs<float> of_pairs{queries, keys, V, Y};
    const int z = model.z();
    CheckedSums sums;
    if (exact.has_field()) {
      sums = exact.queue(model, of_pairs, arrays.Y, checked_product, arrays.checks, arrays.exact, stream);
      if (!m_is_tiled) clear_failed_rows(arrays.checks, z, model.n_q(), stream);
    } else if (computes_tensor_Y(forward)) {
      sums = queue_tensor_Y(product, V, arrays, stream);
    } else {
      sums = checked_product.queue(Y, queries.phi, keys.phi, V, arrays.Y, arrays.checks, stream);
    }
    queue_gradient_columns(GradientColumnsTask<S>{Operand<S>(inputs.dy), sums, model.positive(), V, z, queries.stride,
                                                  keys.stride, arrays.G, arrays.H, arrays.U, arrays.recomputed,
                                                  exact.has_field() ? RowList{} : arrays.exact.rows, arrays.exact.kinds,
                                                  model.attention_mask(inputs.key_mask)},
                           stream);
    if (!exact.has_field())
      exact.queue_rows(model, of_pairs, sums, {}, arrays.checks.counters.counts, arrays.exact, stream);
    return sums;
  }

  // the task of the gradients of pairs that are computed one by one; its dA and dB are null
  ExactGradientTask<S> pair_gradients(const ForwardParts<S>& forward, const BackwardInputs<S>& inputs,
                                      const TokenFeatures& tokens, const CheckedSums& sums, const Arrays& arrays,
                                      float* db) const {
    const auto& [model, product, checked_product, exact] = forward;
    const auto [A, B, G, U, H] = factors(forward, arrays);
    return {exact.pairs(model, inputs.key_mask, arrays.exact),
            exact.scores(tokens.queries, tokens.keys),
            {A, B},
            Operand<S>(inputs.dy),
            with_channels(U, model.d_v()),
            sums,
            exact.has_field(),
            model.positive(),
            model.z(),
            model.positions(),
            arrays.exact.log_scales,
            arrays.exact.kinds,
            arrays.exact.rows.sizes,
            arrays.exact_gradients,
            db};
  }

  // queues the gradients of parameters, unless `parameters` is null, and with a field the gradients of its pairs
  void queue_parameters(const ForwardParts<S>& forward, const BackwardInputs<S>& inputs,
                        const ExactGradientTask<S>& pairs, float* parameters, const Arrays& arrays,
                        cudaStream_t stream) const {
    const DeviceModel& model = forward.model;
    const auto [A, B, G, U, H] = factors(forward, arrays);
    const int z = model.z();
    const Counters& counters = arrays.checks.counters;
    const SelectedQueries& selected = arrays.selected;
    const auto states = in_float(forward.product).states(arrays.Y);
    float* db = pairs.db;
    const bool has_db = db != nullptr;
    if (has_db && model.places().is_grid())
      queue_grid_lag_gradients({{A, B, G, U}, H, selected, model.weights(), z, model.positions(), db}, stream);
    else if (has_db && computes_tensor_Y(forward))
      in_float(forward.product)
          .queue_states(arrays.phi_q, arrays.phi_k, {model.shared_by_group(inputs.v), inputs.key_mask}, arrays.Y,
                        stream);
    if (has_db && !model.places().is_grid())
      m_lags.queue({A, B, m_is_tiled ? G : H, U}, selected, states.before, states.after, db, arrays.lags, stream);
    if (has_db && !m_is_tiled) m_correlation.queue({A, B, G, U}, counters.largest, db, arrays.correlation, stream);
    queue_exact_rows(pairs, stream);
    if (pairs.has_field) queue_exact_queries(pairs, stream);
    if (pairs.has_field) queue_exact_keys(pairs, stream);
    queue_exact_entries(pairs, stream);
    if (has_db)
      queue_parameter_gradients(model.parameter_gradients(db, m_lags.moments(arrays.lags, states.before), parameters),
                                model.positions(), stream);
  }

  // queues dq, dk and dv
  void queue_inputs(const ForwardParts<S>& forward, const TokenFeatures& tokens, const ExactGradientTask<S>& pairs,
                    const PlanGradients<S>& gradients, const Arrays& arrays, cudaStream_t stream) const {
    const auto& [queries, keys] = tokens;
    const auto [A, B, G_c, U_c, H_c] = factors(forward, arrays);
    const DeviceModel& model = forward.model;
    const int z = model.z(), p = model.d_v();
    const ExactGradients& exact = arrays.exact_gradients;
    const int* exact_rows = pairs.has_field ? nullptr : pairs.recomputed_rows;
    const RowList& failed_rows = arrays.checks.failed_rows;
    const Sums& extra_dA = arrays.extra_dA;
    const SelectedQueries& selected = arrays.selected;
    const Columns<float> columns_of_A{A, nullptr, nullptr, 0}, columns_of_B{B, nullptr, nullptr, 0};
    const auto& rows = arrays.rows_of_factors;
    const Sums &to_dA = arrays.dA.sums, &to_dB = arrays.dB.sums, &to_dU = arrays.dU.sums;
    m_products.queue_columns(arrays.G, arrays.U, rows, stream);
    m_products.queue_dA(arrays.G, arrays.U, columns_of_B, rows, arrays.dA, stream);
    if (!m_is_tiled)
      queue_recompute_tiled(RecomputeTiledTask<float>{{H_c, U_c, columns_of_B, m_products.dA().weights().c},
                                                      failed_rows,
                                                      m_parts_of_dA,
                                                      to_dA.N,
                                                      to_dA.D,
                                                      extra_dA.N,
                                                      extra_dA.D},
                            z, m_blocks, stream);
    queue_rows_of_pairs(pairs, {.dq = exact.dq, .dA = to_dA.N}, stream);
    const CheckedSums dA{to_dA, selected.selected, extra_dA};
    queue_feature_gradients(FeatureGradientTask<S>{queries, dA, z, gradients.dq, exact.dq, exact_rows}, stream);
    m_products.queue_dB(arrays.U, arrays.G, columns_of_A, rows, arrays.dB, stream);
    add_selected_queries({U_c, H_c, columns_of_A, m_products.dB().weights().c}, selected, to_dB, z, stream);
    queue_rows_of_pairs(pairs, {.dk = exact.dk, .dB = to_dB.N}, stream);
    queue_feature_gradients(FeatureGradientTask<S>{keys, {to_dB}, z, gradients.dk, exact.dk, exact_rows, arrays.dk},
                            stream);
    if (arrays.dk) {
      const Sums dk_of_z{arrays.dk, nullptr, 1, model.d(), to_dB.rows};
      queue_store(StoreTask<S>{dk_of_z, nullptr, gradients.dk, model.group()}, stream);
    }
    const Columns<float> G{with_channels(G_c, p), nullptr, nullptr, 0}, H{with_channels(H_c, p), nullptr, nullptr, 0};
    m_products.queue_dU(arrays.phi_k, arrays.phi_q, G, rows, arrays.dU, stream);
    add_selected_queries({B, A, H, m_products.dU().weights().c}, selected, to_dU, z, stream);
    queue_rows_of_pairs(pairs, {.dv = to_dU.N}, stream);
    queue_store(StoreTask<S>{to_dU, exact.dv, gradients.dv, model.group()}, stream);
  }

  // Queues those gradients of rows recomputed from their pairs that are not null in `to`. With a field it does nothing:
  // queue_parameters() has queued them.
  static void queue_rows_of_pairs(ExactGradientTask<S> pairs, ExactGradients to, cudaStream_t stream) {
    if (pairs.has_field) return;
    to.log_D = pairs.to.log_D, to.dy_y = pairs.to.dy_y;
    pairs.to = to;
    if (to.dA)
      queue_exact_queries(pairs, stream);
    else
      queue_exact_keys(pairs, stream);
  }

  // queues copies of the features in 16 bits, for products on tensor cores; does nothing if products are in float
  void queue_rows_of_features(const Arrays& arrays, cudaStream_t stream) const {
    m_products.queue_features(arrays.phi_q, arrays.phi_k, arrays.rows_of_factors, stream);
  }
  // whether Y is computed on tensor cores
  bool computes_tensor_Y(const ForwardParts<S>& forward) const {
    return m_products.on_tensor_cores() && !forward.exact.has_field();
  }
  CheckedSums queue_tensor_Y(const Product<S>& product, const Columns<S>& V, const Arrays& arrays,
                             cudaStream_t stream) const {
    if constexpr (!std::same_as<S, float>)
      product.queue(arrays.rows_of_factors.A, arrays.rows_of_factors.B, V, arrays.tensor_Y, stream);
    return {arrays.tensor_Y.sums};
  }

  // A (n_q,r), B (n_k,r), G and H (n_q,p + 1), U (n_k,p + 1)
  struct Factors {
    Operand<float> A, B, G, U, H;
  };
  Factors factors(const ForwardParts<S>& forward, const Arrays& arrays) const {
    const Product<S>& Y = in_float(forward.product);
    const Product<float>& dA = m_products.dA();
    return {Y.operand_A(arrays.phi_q), Y.operand_B(arrays.phi_k), dA.operand_A(arrays.G), dA.operand_B(arrays.U),
            dA.operand_A(arrays.H)};
  }
  // the first `channels` columns of x
  static Operand<float> with_channels(Operand<float> x, int channels) {
    x.channels = channels;
    return x;
  }
  // Clears the flags and the list of rows that fail the FFT error bound, so that no query is selected: exact softmax
  // has replaced these rows.
  static void clear_failed_rows(const typename CheckedProduct<S>::Arrays& checks, int z, int n_q, cudaStream_t stream) {
    const std::size_t rows = static_cast<std::size_t>(z) * static_cast<std::size_t>(n_q);
    queue_fill("clearing flags", checks.recomputed, 0, rows, stream);
    queue_fill("clearing counts", checks.failed_rows.sizes, 0, sizeof(int) * static_cast<std::size_t>(z), stream);
  }

  // adds the contributions of selected queries, as the last parts of the sums
  void add_selected_queries(const TileTask<float>& task, const SelectedQueries& queries, const Sums& sums, int z,
                            cudaStream_t stream) const {
    if (m_is_tiled) return;
    const std::ptrdiff_t first = (sums.parts - m_extra_parts) * sums.rows;
    queue_selected_queries({task, queries, m_extra_parts, sums.N + first * sums.p, sums.D + first}, z, stream);
  }

  // the forward product with float features
  const Product<S>& in_float(const Product<S>& forward) const { return m_in_float ? *m_in_float : forward; }

  bool m_is_tiled;  // whether the engine computes tiles and has no FFT
  std::optional<Product<S>> m_in_float;
  GradientProducts<S> m_products;
  LagGradients m_lags;
  LagCorrelations m_correlation;  // this and the following members: FFT engines only
  int m_parts_of_dA = 1, m_extra_parts = 0, m_blocks = 0;
};
#else
/// Takes the place of Backward above, so that no kernels of gradients are compiled. The constructor throws
/// InvalidArgument.
template <Storage S>
class Backward {
 public:
  Backward(const Device&, const DeviceModel&, const Product<S>&, std::size_t, bool) {
    throw InvalidArgument("gradients: expected a program compiled with NPRF_CUDA_GRADIENTS=1, got 0");
  }

  struct Arrays {};
  Arrays take(const ForwardParts<S>&, Scratch&) const { return {}; }
  void queue_weights(cudaStream_t) const {}
  void queue(const ForwardParts<S>&, const BackwardInputs<S>&, const PlanGradients<S>&, const Arrays&,
             cudaStream_t) const {}
};
#endif

}  // namespace nprf::cuda
