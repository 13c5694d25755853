// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/batch/batch.hpp"
#include "nprf/attention/batch/head_models.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/calibration/calibrate.hpp"
#include "nprf/config.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/random_features.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "nprf/normalize/normalization.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/product.hpp"

/// The explicit instantiations, for a scalar T, of the templates that take longest to compile. A program of many files
/// can compile them once: compile all files with NPRF_EXTERN_INSTANCES=1, and write in one of them
///
///     #include <nprf/instances.hpp>
///     NPRF_INSTANCES(, float)
///     NPRF_INSTANCES(, double)    // of which calibration for float needs some
///
/// The CMake target nprf::compiled does this. All files must be compiled with the same -march flags (CompiledFlags).
///
/// The members of these classes are defined after the class, not inline: the compiler compiles an inline member
/// wherever it is called, even if its class is declared extern.
#define NPRF_INSTANCES(PREFIX, T)     \
  NPRF_PRODUCT_INSTANCES(PREFIX, T)   \
  NPRF_ATTENTION_INSTANCES(PREFIX, T) \
  NPRF_DECODER_INSTANCES(PREFIX, T)   \
  NPRF_SAMPLE_INSTANCES(PREFIX, T)

/// The parts of NPRF_INSTANCES, for several files.
#define NPRF_PRODUCT_INSTANCES(PREFIX, T)               \
  PREFIX template class nprf::toeplitz::Product<T>;     \
  PREFIX template class nprf::toeplitz::ForwardTile<T>; \
  PREFIX template class nprf::toeplitz::BackwardTile<T>;
#define NPRF_ATTENTION_INSTANCES(PREFIX, T)                                                                     \
  NPRF_FEATURE_MAP_INSTANCES(PREFIX, T)                                                                         \
  PREFIX template class nprf::Batch<T>;                                                                         \
  PREFIX template void nprf::HeadModels<T>::check() const;                                                      \
  PREFIX template void nprf::check_attention_arrays<T>(                                                         \
      const nprf::HeadsView<const T>&, const nprf::HeadsView<const T>&, const nprf::HeadsView<const T>&,        \
      const nprf::HeadsView<T>&, nprf::Index, nprf::Index);                                                     \
  PREFIX template void nprf::check_gradient_arrays<T>(                                                          \
      const nprf::AttentionShape&, nprf::Index, nprf::Index, nprf::Index, const nprf::HeadsView<const T>&,      \
      const nprf::HeadsView<T>&, const nprf::HeadsView<T>&, const nprf::HeadsView<T>&);                         \
  PREFIX template nprf::Vector<T> nprf::Normalization::row_scale<T>(const nprf::MatrixView<T>&, bool) const;    \
  PREFIX template void nprf::Normalization::row_scale<T>(const nprf::MatrixView<T>&, bool,                      \
                                                         Eigen::Ref<nprf::Vector<T>>, const nprf::Team&) const; \
  PREFIX template void nprf::Normalization::backward<T>(const nprf::MatrixView<T>&, nprf::RowScale<T>,          \
                                                        nprf::MatrixRef<T>) const;                              \
  NPRF_FEATURE_MAPS(NPRF_VIEW_INSTANCE, PREFIX, T)
#define NPRF_DECODER_INSTANCES(PREFIX, T) PREFIX template class nprf::Decoder<T>;
/// Calibration, and exact attention for comparisons.
#define NPRF_SAMPLE_INSTANCES(PREFIX, T)                                                                              \
  PREFIX template nprf::Balance<T> nprf::balance<T>(const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, double);  \
  PREFIX template nprf::SampleTokens<double> nprf::sample_tokens<T>(                                                  \
      const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, const nprf::Normalization&, \
      nprf::Index);                                                                                                   \
  PREFIX template nprf::HeadsCalibration<T> nprf::detail::calibrate_samples<T>(                                       \
      std::span<const nprf::HeadSample<double>>, const nprf::CalibrationOptions&);                                    \
  PREFIX template nprf::Matrix<T> nprf::reference::detail::softmax_attention<T>(                                      \
      const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, const nprf::MatrixView<T>&,                             \
      const nprf::PositionView<T>&, nprf::Direction, nprf::Normalization, void (*)(), std::span<const bool>,          \
      nprf::Index);
#define NPRF_VIEW_INSTANCE(PREFIX, T, NAME, ...) \
  PREFIX template nprf::FeatureMapView<T>::FeatureMapView(const __VA_ARGS__&);

/// The feature maps whose FeatureMapView is compiled once: APPLY(FIRST, T, name, map) for each.
#define NPRF_FEATURE_MAPS(APPLY, FIRST, T)                                    \
  APPLY(FIRST, T, positive, nprf::PositiveFeatures<T>)                        \
  APPLY(FIRST, T, hyperbolic, nprf::HyperbolicFeatures<T>)                    \
  APPLY(FIRST, T, trigonometric, nprf::TrigonometricFeatures<T>)              \
  APPLY(FIRST, T, elu, nprf::EluFeatures<T>)                                  \
  APPLY(FIRST, T, taylor, nprf::TaylorFeatures<T>)                            \
  APPLY(FIRST, T, calibrated, nprf::CalibratedFeatures<T>)                    \
  APPLY(FIRST, T, centred_taylor, nprf::Centred<nprf::TaylorFeatures<T>>)     \
  APPLY(FIRST, T, centred_positive, nprf::Centred<nprf::PositiveFeatures<T>>) \
  APPLY(FIRST, T, centred_hyperbolic, nprf::Centred<nprf::HyperbolicFeatures<T>>)

/// Of NPRF_ATTENTION_INSTANCES, what a program that links nprf::levels does not call through LevelFunctions
/// (cmake/levels/level.hpp).
#define NPRF_FEATURE_MAP_INSTANCES(PREFIX, T)                                           \
  PREFIX template struct nprf::CompiledFlags<T>;                                        \
  PREFIX template nprf::RandomFeatures<T>::RandomFeatures(const nprf::FeatureOptions&); \
  PREFIX template class nprf::ExponentialFeatures<T, 1>;                                \
  PREFIX template class nprf::ExponentialFeatures<T, 2>;                                \
  PREFIX template class nprf::TrigonometricFeatures<T>;                                 \
  PREFIX template class nprf::EluFeatures<T>;

#if NPRF_X86_64_LEVELS
NPRF_FEATURE_MAP_INSTANCES(extern, float)
NPRF_FEATURE_MAP_INSTANCES(extern, double)
#elif NPRF_EXTERN_INSTANCES
NPRF_INSTANCES(extern, float)
NPRF_INSTANCES(extern, double)
#endif
