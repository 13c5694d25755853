// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "nprf/attention/saved.hpp"
#include "nprf/levels.hpp"

namespace nprf {

/// What a program calls of a level's code.
template <Real T>
struct LevelFunctions {
  decltype(&Batch<T>::forward) forward;
  decltype(&Batch<T>::backward) backward;
  void (*clear)(Batch<T>&);  // frees its memory, so that the program destroys an empty one
  FeatureMapView<T> (*positive)(const PositiveFeatures<T>&);
  FeatureMapView<T> (*hyperbolic)(const HyperbolicFeatures<T>&);
  FeatureMapView<T> (*trigonometric)(const TrigonometricFeatures<T>&);
  FeatureMapView<T> (*elu)(const EluFeatures<T>&);
  FeatureMapView<T> (*taylor)(const TaylorFeatures<T>&);
  FeatureMapView<T> (*calibrated)(const CalibratedFeatures<T>&);
  FeatureMapView<T> (*centred_taylor)(const Centred<TaylorFeatures<T>>&);
  FeatureMapView<T> (*centred_positive)(const Centred<PositiveFeatures<T>>&);
  FeatureMapView<T> (*centred_hyperbolic)(const Centred<HyperbolicFeatures<T>>&);

  /// Those of the level that the caller is compiled for.
  static constexpr LevelFunctions compiled() {
    return {&Batch<T>::forward,
            &Batch<T>::backward,
            [](Batch<T>& batch) { std::construct_at((std::destroy_at(&batch), &batch)); },
            [](const PositiveFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const HyperbolicFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const TrigonometricFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const EluFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const TaylorFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const CalibratedFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const Centred<TaylorFeatures<T>>& map) { return FeatureMapView<T>(map); },
            [](const Centred<PositiveFeatures<T>>& map) { return FeatureMapView<T>(map); },
            [](const Centred<HyperbolicFeatures<T>>& map) { return FeatureMapView<T>(map); }};
  }
};

/// The table of a level: its functions, and the sizes of the classes whose objects both sides share.
struct Level {
  using Sizes = std::array<std::size_t, 15>;

  LevelFunctions<float> of_float;
  LevelFunctions<double> of_double;
  Sizes sizes;

  static constexpr Sizes shared_sizes() {
    using T = float;
    return {sizeof(Batch<T>),
            sizeof(Saved<T>),
            sizeof(SavedSequence<T>),
            sizeof(HeadModels<T>),
            sizeof(FeatureMapView<T>),
            sizeof(PositionView<T>),
            sizeof(PositiveFeatures<T>),
            sizeof(TrigonometricFeatures<T>),
            sizeof(EluFeatures<T>),
            sizeof(TaylorFeatures<T>),
            sizeof(CalibratedFeatures<T>),
            sizeof(Centred<PositiveFeatures<T>>),
            sizeof(Workspace),
            sizeof(CallOptions),
            EIGEN_MAX_ALIGN_BYTES};
  }
  static constexpr Level compiled() {
    return {LevelFunctions<float>::compiled(), LevelFunctions<double>::compiled(), shared_sizes()};
  }
};

}  // namespace nprf
