// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "nprf/attention/batch/batch.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/config.hpp"
#include "nprf/core/cpu_level.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/trigonometric.hpp"

// in a program that links nprf::levels; cmake/levels/levels.cpp defines them
#if NPRF_X86_64_LEVELS

#define NPRF_CALLED_BY_LEVEL(T)                                                                                   \
  template <>                                                                                                     \
  nprf::Batch<T>::~Batch();                                                                                       \
  template <>                                                                                                     \
  void nprf::Batch<T>::forward(const HeadModels<T>&, const HeadsView<const T>&, const HeadsView<const T>&,        \
                               const HeadsView<const T>&, const HeadsView<T>&, const CallOptions&, Saved<T>*);    \
  template <>                                                                                                     \
  nprf::GradientReport nprf::Batch<T>::backward(const HeadModels<T>&, const Saved<T>&, const HeadsView<const T>&, \
                                                const HeadsView<T>&, const HeadsView<T>&, const HeadsView<T>&);   \
  template <>                                                                                                     \
  template <>                                                                                                     \
  nprf::FeatureMapView<T>::FeatureMapView(const nprf::PositiveFeatures<T>&);                                      \
  template <>                                                                                                     \
  template <>                                                                                                     \
  nprf::FeatureMapView<T>::FeatureMapView(const nprf::HyperbolicFeatures<T>&);                                    \
  template <>                                                                                                     \
  template <>                                                                                                     \
  nprf::FeatureMapView<T>::FeatureMapView(const nprf::TrigonometricFeatures<T>&);                                 \
  template <>                                                                                                     \
  template <>                                                                                                     \
  nprf::FeatureMapView<T>::FeatureMapView(const nprf::EluFeatures<T>&);

NPRF_CALLED_BY_LEVEL(float)
NPRF_CALLED_BY_LEVEL(double)
#undef NPRF_CALLED_BY_LEVEL

#endif

/// Code for several levels of x86-64 in one program, which is itself compiled for any x86-64 processor. The CMake
/// target nprf::levels compiles Batch and nprf's feature maps once for each level, and links the objects of a level
/// into one, in which all symbols are local but a table of functions (Level). So the linker cannot exchange code of a
/// level, of Eigen's or the standard library's templates either, with the program's. At the first call the program
/// chooses a table (CpuLevel), and calls these functions through it.
///
/// Both sides share objects of these classes. Their layout must not depend on the level, hence they have no members of
/// Pack or Lanes. All levels are compiled with the baseline's Eigen alignment, so that either side may free what the
/// other allocated. A user's own feature map or position is compiled with the program, and so is the drawing of a
/// projection, whose bits are then the same for all levels.
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

  /// Those of the level that the caller is compiled for.
  static constexpr LevelFunctions compiled() {
    return {&Batch<T>::forward,
            &Batch<T>::backward,
            [](Batch<T>& batch) { std::construct_at((std::destroy_at(&batch), &batch)); },
            [](const PositiveFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const HyperbolicFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const TrigonometricFeatures<T>& map) { return FeatureMapView<T>(map); },
            [](const EluFeatures<T>& map) { return FeatureMapView<T>(map); }};
  }
};

/// The table of a level: its functions, and the sizes of the classes whose objects both sides share.
struct Level {
  using Sizes = std::array<std::size_t, 12>;

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
            sizeof(Workspace),
            sizeof(CallOptions),
            EIGEN_MAX_ALIGN_BYTES};
  }
  static constexpr Level compiled() {
    return {LevelFunctions<float>::compiled(), LevelFunctions<double>::compiled(), shared_sizes()};
  }
};

}  // namespace nprf
