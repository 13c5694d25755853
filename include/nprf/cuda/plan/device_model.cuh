// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nprf/core/lags.hpp"
#include "nprf/core/lower_lags.hpp"
#include "nprf/cuda/device/arithmetic.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/plan/check_model.cuh"
#include "nprf/cuda/plan/feature_constants.cuh"
#include "nprf/cuda/plan/options.cuh"
#include "nprf/cuda/plan/position_tables.hpp"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/position/backward.cuh"
#include "nprf/cuda/position/lag_weights.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"
#include "nprf/cuda/position/token_places.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"

namespace nprf::cuda {

/// An AttentionModel on the device, for one shape: its projections, and the weights of all lags of the shape.
class DeviceModel {
 public:
  /// Throws InvalidArgument if the model does not fit the shape, BackendError if CUDA reports an error or the kernels
  /// were compiled with -use_fast_math.
  DeviceModel(AttentionModel model, const PlanShape& shape, const PlanOptions& options, cudaStream_t stream)
      : m_model(std::move(model)), m_shape(shape) {
    check_model(m_model, m_shape);
    check_arithmetic(stream);
    find_shift();
    place_tokens();
    if (lags() > 0) m_band = with_near(band_of(m_lags, position().linear), m_lags.near.range(), m_lags);
    // as on the CPU: by nothing if gradients of free tables may be needed, nor for features of both signs, for which
    // the effect on y has no bound before y is known; unless the user asks for the engine that changes them
    const bool may_deviate =
        options.engine == Engine::smooth || (positive() && !options.gradients && !options.sets_parameters);
    m_max_deviation = may_deviate ? deviation_within(options.tolerance) : 0;
    copy_to_device(options.gradients, stream);
  }

  const AttentionModel& model() const { return m_model; }
  const PlanShape& shape() const { return m_shape; }

  int z() const { return static_cast<int>(m_shape.batch * m_shape.heads); }
  int n_q() const { return static_cast<int>(m_shape.n_q); }
  int n_k() const { return static_cast<int>(m_shape.n_k); }
  int heads() const { return static_cast<int>(m_shape.heads); }
  /// How many heads of queries next to each other share a head of keys and values; and how many share the features of
  /// keys, which needs one map for all heads.
  int group() const { return static_cast<int>(m_shape.group()); }
  int feature_group() const { return shares_map() ? group() : 1; }
  int d() const { return map().d; }
  int d_padded() const { return (d() + 3) / 4 * 4; }
  int d_v() const { return static_cast<int>(m_shape.d_v); }
  int m() const { return map().m; }
  int r() const { return map().features(); }
  ProductShape product_shape() const { return {z(), heads(), n_q(), n_k(), r(), d_v(), 1, feature_group()}; }
  int positions() const { return static_cast<int>(m_model.positions.size()); }
  int parameter_count() const { return static_cast<int>(position().parameters.size()); }
  /// The band of lags j - i outside of which the bias is linear.
  const Band& band() const { return m_band; }
  /// The slots of the tokens of a grid.
  const TokenPlaces& places() const { return m_places; }
  /// The number of biases, each of which has a gradient: one for each lag, then those of the border of a grid.
  int entries() const { return lags() + m_places.border_size(); }
  /// The slope of the bias outside of the band. It is read from the parameters on the device.
  TailSlope tail_slope() const {
    return position().linear ? TailSlope{m_arrays.parameters, positions() > 1 ? 1 : 0} : TailSlope{};
  }
  /// The weights exp(b - max b) of the lags -(n_q - 1) .. n_k - 1, or of a grid those of all differences of slots, for
  /// one position of model() with its parameters at construction. Near lags have the weight 0.
  std::vector<double> weights_of(const PositionModel& one) const {
    std::vector<double> c(static_cast<std::size_t>(lags()));
    if (c.empty()) return c;
    PositionTables tables;
    LagProblem<float> x = m_lags;
    const float* border = one.parameters.data() + (one.parameters.size() - one.border_size());
    add_biases_and_weights(x, tables.bias_of(one), border, Pass::backward, tables);
    std::transform(x.log_weights, x.log_weights + lags(), c.begin(), [](double b) { return std::exp(b); });
    for (int k = 0; k < lags(); ++k)
      if (m_lags.near.contains(first_lag() + k)) c[static_cast<std::size_t>(k)] = 0;
    return c;
  }
  /// Whether all features are non-negative.
  bool positive() const { return traits().is_positive; }
  bool is_quadratic() const { return traits().is_quadratic; }
  /// Whether exact softmax computes all rows that fail: with a near field or sinks, or if the features are a series.
  bool has_exact_rows() const { return has_near() || has_sinks() || is_quadratic(); }
  /// Whether exact softmax computes the rows whose features underflow: if the features estimate exp.
  bool falls_back_to_softmax() const { return traits().estimates_exp; }
  bool has_near() const { return m_model.near > 0; }
  bool has_sinks() const { return m_model.sinks > 0; }
  /// The number of attention sinks of a sequence without padding.
  int sinks() const { return static_cast<int>(std::min(m_model.sinks, m_shape.n_k)); }
  /// The logarithm of the factor by which A_i.B_j becomes a mean over features: -log(r) for exponential features,
  /// -log(m) for trigonometric ones, and 0 for quadratic ones, which have no such factor. Only for features that
  /// estimate exp.
  double log_normalisation() const { return is_quadratic() ? 0 : -std::log(traits().is_exponential ? r() : m()); }
  /// Features of keys that estimate exp are divided by exp(shift()), unless needs_log_scales().
  float shift() const { return m_shift; }
  bool is_centred() const { return !map().centring.is_empty(); }
  /// Whether the largest log-scale of the keys must be computed on the device.
  bool needs_log_scales() const { return m_needs_log_scales; }
  /// Whether features may be stored in half (feature_constants.cuh).
  bool features_fit_half(FarKeys far_keys) const {
    return !m_needs_log_scales && cuda::features_fit_half(m_model, far_keys);
  }

  /// Copies the parameters [position, parameter] on the device, and queues the weights of all lags. Throws
  /// InvalidArgument for a null pointer.
  void queue_parameters(const float* parameters, cudaStream_t stream) const {
    require(parameters != nullptr || parameter_count() == 0, "parameters: expected data, got a null pointer");
    const std::size_t bytes = sizeof(float) * m_model.positions.size() * static_cast<std::size_t>(parameter_count());
    if (bytes > 0)
      check(cudaMemcpyAsync(m_arrays.parameters, parameters, bytes, cudaMemcpyDeviceToDevice, stream),
            "copying parameters");
    queue_weights({bias(), m_arrays.weights, m_arrays.weight_bias, m_arrays.bias_maxima}, stream);
  }

  /// The biases of the lags j - i = -(n_q - 1) .. n_k - 1, or of a grid those of all differences of slots.
  DeviceBias bias() const {
    return {m_arrays.parameters,
            m_arrays.index,
            positions(),
            parameter_count(),
            lags(),
            first_position_lag(),
            last_position_lag(),
            n_q(),
            m_places,
            is_causal(),
            {m_lags.near.width, m_lags.near.pitch, 0}};
  }
  /// [position], on the device: the bias at which a weight is 1.
  const double* weight_bias() const { return m_arrays.weight_bias; }
  DeviceWeights weights() const {
    DeviceWeights c{m_arrays.weights, positions() > 1 ? entries() : 0, lags(), first_lag(), 1, first_lag(),
                    last_attended()};
    if (!m_places.is_grid()) return c;
    c.first_attended = 1 - n_q(), c.last_attended = is_causal() ? 0 : n_k() - 1;  // of tokens
    c.places = m_places, c.border = m_arrays.weights + lags();
    return c;
  }

  ToeplitzWeights toeplitz() const { return {weights(), m_band, tail_slope(), positions(), m_max_deviation}; }

  /// The task that computes the gradients of parameters [position, parameter] from db [position, entry], the gradients
  /// of biases, and from LagGradients::moments(). The model must have been made for gradients.
  ParameterGradientTask parameter_gradients(const float* db, const float* moments, float* gradients) const {
    return {db, moments, m_arrays.order, m_arrays.start, parameter_count(), entries(), first_position_lag(), gradients};
  }

  /// The task that computes the features of queries or of keys. It stores the largest log-scales of keys in
  /// max_log_scale [z / feature_group()], if needs_log_scales().
  template <Storage S, class Feature>
  FeatureTask<S, Feature> features(const DeviceMatrixView<const S>& x, bool queries, const bool* key_mask,
                                   int* max_log_scale, Feature* phi, int stride) const {
    const float scale = falls_back_to_softmax() ? static_cast<float>(std::pow(static_cast<double>(d()), -0.25)) : 1.0f;
    return {queries ? Operand<S>(x) : shared_by_group(x),
            queries ? nullptr : key_mask,
            m_arrays.w,
            shares_map() ? 0 : static_cast<std::ptrdiff_t>(map().m) * d_padded(),
            m_arrays.w_groups,
            shares_map() ? 0 : static_cast<std::ptrdiff_t>(map().m + 7) / 8 * 8 * d_padded(),
            map().kind,
            traits(),
            m(),
            r(),
            d_padded(),
            static_cast<float>(m_model.radius),
            scale,
            queries,
            m_shift,
            !queries && m_needs_log_scales ? max_log_scale : nullptr,
            phi,
            stride,
            attention_mask(key_mask),
            centring(queries),
            quadratic(),
            nullptr,
            nullptr,
            queries ? 1 : feature_group(),
            nullptr,
            by_token<Feature> ? m_parts.fragments<S>() : ProjectionFragments()};
  }

  /// Lets tensor cores compute the projections of tokens of type S, for features of 16 bits, where that is possible
  /// (feature_constants.cuh). Waits for the stream. Throws BackendError if CUDA reports an error.
  template <MmaFactor S>
  void split_projections(const Device& device, cudaStream_t stream) {
    m_parts = ProjectionParts::of<S>(m_model.features, device, stream);
  }

  /// The matrices x of keys or values, where group() heads of queries share each matrix.
  template <Storage S>
  Operand<S> shared_by_group(const DeviceMatrixView<const S>& x) const {
    return Operand<S>(x).shared_by(group());
  }

  AttentionMask attention_mask(const bool* key_mask) const { return {bias(), key_mask, heads(), n_q(), n_k()}; }

 private:
  const FeatureModel& map() const { return m_model.features.front(); }
  FeatureTraits traits() const { return traits_of(map().kind); }
  const PositionModel& position() const { return m_model.positions.front(); }

  bool shares_map() const { return m_model.features.size() == 1; }
  DeviceCentring centring(bool queries) const {
    if (!is_centred()) return {};
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(DeviceCentring::size(d(), d_padded()));
    return {m_arrays.centring + (queries ? 0 : size), shares_map() ? 0 : 2 * size};
  }
  DeviceQuadratic quadratic() const {
    if (!is_quadratic()) return {};
    return {m_arrays.coordinates, m_arrays.quadratic, shares_map() ? 0 : 1 + map().second + d(), map().second};
  }

  // arrays on the device, in m_memory; null if the model has none of these
  struct Arrays {
    float *w, *w_groups;                // w and w_groups of FeatureTask for all maps
    float *centring, *quadratic;        // as in DeviceCentring and DeviceQuadratic
    uint2* coordinates;                 // [r]
    float* weights;                     // [position, entries]
    double *weight_bias, *bias_maxima;  // [position] [position, part]
    float* parameters;                  // [position, parameter]
    std::int32_t* index;                // [entries]
    std::int32_t *order, *start;        // [entries] [parameters + 1], for gradients
    std::int32_t *slots, *tokens;       // as in TokenPlaces
  };

  bool is_causal() const { return m_model.direction == Direction::causal; }

  // lags are differences of slots, which are j - i except in a grid; the bias is defined for position lags, which are
  // lags minus the offset
  int lags() const { return n_q() == 0 || n_k() == 0 ? 0 : static_cast<int>(m_lags.lags.size()); }
  int first_lag() const { return static_cast<int>(m_lags.lags.first); }
  int last_attended() const { return static_cast<int>(m_lags.reach.last); }
  int first_position_lag() const { return first_lag() - static_cast<int>(m_lags.offset); }
  int last_position_lag() const { return last_attended() - static_cast<int>(m_lags.offset); }

  void place_tokens() {
    m_slots.assign(position().slots.begin(), position().slots.end());
    const auto placement = [&](std::ptrdiff_t n) -> nprf::Placement {
      if (!position().is_grid()) return Slots{n};
      return {Slots{static_cast<Index>(m_slots.size()), 0, m_slots.data()}, position().outside};
    };
    m_lags = problem_without_biases<float>(placement(m_shape.n_q), placement(m_shape.n_k), m_model.direction,
                                           m_shape.offset, table_range(position()));
    m_lags.has_own_slots = position().is_grid();
    m_lags.near = {std::min<std::ptrdiff_t>(m_model.near, 1 << 30), position().pitch, m_shape.offset};
    m_places.outside = position().outside, m_places.cells = static_cast<int>(m_slots.size());
    m_places.end = position().is_grid() ? static_cast<int>(m_lags.key_slots) : 0;
  }

  // if all keys have one norm, a bound |w.x| <= |w| radius replaces the search for their largest log-scale
  void find_shift() {
    if (is_centred() || is_quadratic()) {
      const auto has_factor = [](const FeatureModel& one) { return !one.curvature.empty() || one.log_scale != 0; };
      m_needs_log_scales = is_centred() || std::any_of(m_model.features.begin(), m_model.features.end(), has_factor);
      return;
    }
    const double radius = m_model.radius, longest = projection_sizes(m_model).longest;
    const double half = radius * radius / 2, most = traits().is_exponential ? longest * radius : 0;
    constexpr double max_exponent = 30;  // so that exp(-2 max_exponent) is a normal float
    m_needs_log_scales = traits().estimates_exp && !(radius > 0 && most <= max_exponent && half <= max_exponent);
    m_shift = static_cast<float>(most + traits().sign_of_square * half);
  }

  // the index of the parameter of each lag, then of each entry of the border; empty if the bias is linear or 0
  std::vector<std::int32_t> parameter_indices() const {
    std::vector<std::int32_t> index(position().index.empty() ? 0 : static_cast<std::size_t>(lags()));
    for (std::size_t k = 0; k < index.size(); ++k) {
      const Index lag = std::clamp(m_lags.lags.first + static_cast<Index>(k), m_lags.table.first, m_lags.table.last);
      index[k] = position().index[static_cast<std::size_t>(lag - m_lags.table.first)];
    }
    for (std::size_t k = position().border_size(); k > 0; --k)
      index.push_back(static_cast<std::int32_t>(position().parameters.size() - k));
    return index;
  }

  void copy_to_device(bool gradients, cudaStream_t stream) {
    std::vector<float> w, w_groups, parameters;  // rows of w are padded with zeros
    for (const FeatureModel& one : m_model.features) {
      for (auto row = one.projection.begin(); row != one.projection.end(); row += one.d)
        append_padded(w, row, d(), d_padded());
      append_groups(w_groups, one, d_padded());
    }
    const std::vector<float> centring = centring_values(m_model.features, d_padded()),
                             quadratic = quadratic_values(m_model.features);
    const std::vector<uint2> coordinates = quadratic_coordinates(map());
    for (const PositionModel& one : m_model.positions)
      parameters.insert(parameters.end(), one.parameters.begin(), one.parameters.end());
    const std::vector<std::int32_t> index = parameter_indices();
    const std::vector<std::int32_t>& slots = position().slots;
    std::vector<std::int32_t> tokens(slots.empty() ? 0 : static_cast<std::size_t>(slots.back()) + 1, -1);
    for (std::size_t cell = 0; cell < slots.size(); ++cell)
      tokens[static_cast<std::size_t>(slots[cell])] = static_cast<std::int32_t>(cell);

    std::vector<std::int32_t> order, start;
    if (gradients && !index.empty()) sort_lags(index, parameter_count(), order, start);

    const auto for_each_copied = [&](auto&& f) {
      f(m_arrays.w, w), f(m_arrays.w_groups, w_groups), f(m_arrays.centring, centring);
      f(m_arrays.quadratic, quadratic), f(m_arrays.coordinates, coordinates);
      f(m_arrays.parameters, parameters), f(m_arrays.index, index), f(m_arrays.order, order), f(m_arrays.start, start);
      f(m_arrays.slots, slots), f(m_arrays.tokens, tokens);
    };
    const auto take = [&](Scratch scratch) {
      for_each_copied([&]<class T>(T*& to, const std::vector<T>& from) {
        to = from.empty() ? nullptr : scratch.take<T>(from.size());
      });
      m_arrays.weight_bias = scratch.take<double>(m_model.positions.size());
      m_arrays.bias_maxima = scratch.take<double>(m_model.positions.size() * WeightsTask::most_parts);
      m_arrays.weights = scratch.take<float>(m_model.positions.size() * static_cast<std::size_t>(entries()));
      return scratch.bytes();
    };
    m_memory = DeviceMemory(take(Scratch()));
    take(Scratch(m_memory.data()));
    for_each_copied([&](auto* to, const auto& from) {
      if (!from.empty())
        check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice, stream),
              "copying the model to the device");
    });
    m_places.slots = m_arrays.slots, m_places.tokens = m_arrays.tokens;
    queue_weights({bias(), m_arrays.weights, m_arrays.weight_bias, m_arrays.bias_maxima}, stream);
    check(cudaStreamSynchronize(stream), "copying the model to the device");
  }

  AttentionModel m_model;
  PlanShape m_shape;
  LagProblem<float> m_lags;    // has no biases, since parameters may change on the device
  std::vector<Index> m_slots;  // m_lags refers to these
  TokenPlaces m_places{};
  Band m_band{};
  double m_max_deviation = 0;
  bool m_needs_log_scales = false;
  float m_shift = 0;  // replaces the largest log-scale of the keys, unless m_needs_log_scales
  DeviceMemory m_memory;
  ProjectionParts m_parts;
  Arrays m_arrays{};
};

}  // namespace nprf::cuda
