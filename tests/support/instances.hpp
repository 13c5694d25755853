// SPDX-License-Identifier: MIT
#pragma once

// What nearly every test of attention needs: where the build says so (NPRF_TESTS_SHARE_INSTANCES) it is compiled once,
// in instances_float.cpp and instances_double.cpp, and not in each test.

#include "nprf/attention/batch.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "support/features_tolerance.hpp"

#define NPRF_TESTS_INSTANCES(PREFIX, T)                                                                        \
  PREFIX template class nprf::Batch<T>;                                                                        \
  PREFIX template nprf::RandomFeatures<T>::RandomFeatures(const nprf::FeatureOptions&);                        \
  PREFIX template nprf::FeatureMapView<T>::FeatureMapView(const nprf::PositiveFeatures<T>&);                   \
  PREFIX template nprf::FeatureMapView<T>::FeatureMapView(const nprf::HyperbolicFeatures<T>&);                 \
  PREFIX template nprf::FeatureMapView<T>::FeatureMapView(const nprf::TrigonometricFeatures<T>&);              \
  PREFIX template nprf::FeatureMapView<T>::FeatureMapView(const nprf::EluFeatures<T>&);                        \
  PREFIX template nprf::Matrix<double> nprf::test::features_tolerance(                                         \
      const nprf::Matrix<T>&, const nprf::Matrix<T>&, const std::vector<nprf::Index>&, const nprf::Matrix<T>&, \
      const nprf::Matrix<T>&, const nprf::PositionView<T>&, nprf::Direction, nprf::Engine, nprf::Index);

#if NPRF_TESTS_SHARE_INSTANCES
NPRF_TESTS_INSTANCES(extern, float)
NPRF_TESTS_INSTANCES(extern, double)
#endif
