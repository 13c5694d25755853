// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/attention_core.hpp"
#include "nprf/attention/batch/attention_core_definition.hpp"
#include "nprf/attention/batch/batch.hpp"
#include "nprf/calibration/calibrate.hpp"
#include "nprf/calibration/calibrate_definition.hpp"
#include "nprf/calibration/calibrated_features_definition.hpp"
#include "nprf/calibration/calibration_definition.hpp"
#include "nprf/config.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/decoder/decoder_definition.hpp"
#include "nprf/feature_map/balance_definition.hpp"
#include "nprf/feature_map/centred_definition.hpp"
#include "nprf/feature_map/elu_definition.hpp"
#include "nprf/feature_map/feature_map_base_definition.hpp"
#include "nprf/feature_map/feature_map_view_definition.hpp"
#include "nprf/feature_map/positive_definition.hpp"
#include "nprf/feature_map/projection_definition.hpp"
#include "nprf/feature_map/random_features_definition.hpp"
#include "nprf/feature_map/taylor_definition.hpp"
#include "nprf/feature_map/tilt_definition.hpp"
#include "nprf/feature_map/trigonometric_definition.hpp"
#include "nprf/levels.hpp"
#include "nprf/normalize/normalization_definition.hpp"
#include "nprf/reference/kernelized_attention_definition.hpp"
#include "nprf/reference/softmax_attention_definition.hpp"
#include "nprf/toeplitz/contract_definition.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/product.hpp"

/// This header has the code that nprf's other headers only declare if NPRF_SEPARATE is 1. A program of several files
/// can compile that code once: all files are compiled with NPRF_SEPARATE=1 and the same -march flags (CompiledFlags),
/// and one of them has the line
///
///     #include <nprf/implementation.hpp>
///
/// That file has the code for float and double. Several files can share the work: each defines NPRF_IMPLEMENT=0, which
/// leaves out all code, and names the part that it compiles, as the CMake target nprf::compiled does:
///
///     #define NPRF_IMPLEMENT 0
///     #include <nprf/implementation.hpp>
///     NPRF_ATTENTION_INSTANCES(, float)
#ifndef NPRF_IMPLEMENT
#define NPRF_IMPLEMENT NPRF_SEPARATE
#endif

#define NPRF_INSTANCES(PREFIX, T)     \
  NPRF_PRODUCT_INSTANCES(PREFIX, T)   \
  NPRF_FEATURE_INSTANCES(PREFIX, T)   \
  NPRF_ATTENTION_INSTANCES(PREFIX, T) \
  NPRF_DECODER_INSTANCES(PREFIX, T)   \
  NPRF_SAMPLE_INSTANCES(PREFIX, T)

#define NPRF_PRODUCT_INSTANCES(PREFIX, T)                                                                  \
  PREFIX template class nprf::toeplitz::Product<T>;                                                        \
  PREFIX template class nprf::toeplitz::ForwardTile<T>;                                                    \
  PREFIX template class nprf::toeplitz::BackwardTile<T>;                                                   \
  PREFIX template void nprf::toeplitz::contract<T>(nprf::Engine, const nprf::LagWeights<T>&,               \
                                                   const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, \
                                                   const nprf::MatrixView<T>&, nprf::MatrixRef<T>);        \
  PREFIX template nprf::toeplitz::Gradients<T> nprf::toeplitz::gradients<T>(                               \
      nprf::Engine, const nprf::LagWeights<T>&, const std::type_identity_t<nprf::MatrixView<T>>&,          \
      const std::type_identity_t<nprf::MatrixView<T>>&, const std::type_identity_t<nprf::MatrixView<T>>&,  \
      const std::type_identity_t<nprf::MatrixView<T>>&);

#define NPRF_FEATURE_INSTANCES(PREFIX, T)                                                                       \
  PREFIX template class nprf::FeatureMapView<T>;                                                                \
  PREFIX template class nprf::FeatureMapBase<nprf::ExponentialFeatures<T, 1>, T>;                               \
  PREFIX template class nprf::FeatureMapBase<nprf::ExponentialFeatures<T, 2>, T>;                               \
  PREFIX template class nprf::FeatureMapBase<nprf::TrigonometricFeatures<T>, T>;                                \
  PREFIX template class nprf::FeatureMapBase<nprf::QuadraticFeatures<T>, T>;                                    \
  PREFIX template class nprf::RandomFeatures<T>;                                                                \
  PREFIX template class nprf::ExponentialFeatures<T, 1>;                                                        \
  PREFIX template class nprf::ExponentialFeatures<T, 2>;                                                        \
  PREFIX template class nprf::TrigonometricFeatures<T>;                                                         \
  PREFIX template class nprf::EluFeatures<T>;                                                                   \
  PREFIX template class nprf::QuadraticFeatures<T>;                                                             \
  PREFIX template class nprf::TaylorFeatures<T>;                                                                \
  PREFIX template class nprf::CentredCore<T>;                                                                   \
  PREFIX template nprf::DrawnProjection<T> nprf::draw_tilted_projection<T>(const nprf::FeatureOptions&);        \
  PREFIX template nprf::Matrix<T> nprf::draw_projection<T>(const nprf::FeatureOptions&);                        \
  PREFIX template nprf::Vector<T> nprf::Normalization::row_scale<T>(const nprf::MatrixView<T>&, bool) const;    \
  PREFIX template void nprf::Normalization::row_scale<T>(const nprf::MatrixView<T>&, bool,                      \
                                                         Eigen::Ref<nprf::Vector<T>>, const nprf::Team&) const; \
  PREFIX template void nprf::Normalization::backward<T>(const nprf::MatrixView<T>&, nprf::RowScale<T>,          \
                                                        nprf::MatrixRef<T>) const;

#define NPRF_ATTENTION_INSTANCES(PREFIX, T)     \
  PREFIX template class nprf::AttentionCore<T>; \
  PREFIX template class nprf::Batch<T>;

#define NPRF_DECODER_INSTANCES(PREFIX, T) PREFIX template class nprf::Decoder<T>;

/// Calibration, and exact attention for comparisons.
#define NPRF_SAMPLE_INSTANCES(PREFIX, T)                                                                             \
  PREFIX template nprf::Balance<T> nprf::balance<T>(const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, double); \
  PREFIX template nprf::Tilt nprf::oprf_tilt<T>(nprf::Index, double);                                                \
  PREFIX template nprf::Tilt nprf::sderf_tilt<T>(const std::type_identity_t<nprf::MatrixView<T>>&,                   \
                                                 const std::type_identity_t<nprf::MatrixView<T>>&);                  \
  PREFIX template class nprf::CalibratedFeatures<T>;                                                                 \
  PREFIX template struct nprf::Calibration<T>;                                                                       \
  PREFIX template struct nprf::HeadsCalibration<T>;                                                                  \
  PREFIX template nprf::HeadsCalibration<T> nprf::detail::calibrate_heads<T>(                                        \
      const nprf::HeadsView<const T>&, const nprf::HeadsView<const T>&, const nprf::HeadsView<const T>&,             \
      std::span<const nprf::PositionView<T>>, const nprf::CalibrationOptions&, nprf::CompiledFlags<T>);              \
  PREFIX template nprf::Matrix<T> nprf::reference::detail::softmax_attention<T>(                                     \
      const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, const nprf::MatrixView<T>&,                            \
      const nprf::PositionView<T>&, nprf::Direction, nprf::Normalization, void (*)(), std::span<const bool>,         \
      nprf::Index, nprf::CompiledFlags<T>);                                                                          \
  PREFIX template nprf::Matrix<T> nprf::reference::detail::kernelized_attention<T>(                                  \
      const nprf::FeatureMapView<T>&, const nprf::PositionView<T>&, const nprf::AttentionOptions&,                   \
      const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, const nprf::MatrixView<T>&, nprf::Index,               \
      nprf::reference::detail::Attends);

#if NPRF_IMPLEMENT
NPRF_INSTANCES(, float)
NPRF_INSTANCES(, double)
#elif NPRF_SEPARATE
NPRF_INSTANCES(extern, float)
NPRF_INSTANCES(extern, double)
#endif
