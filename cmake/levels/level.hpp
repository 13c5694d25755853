// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "nprf/attention/batch/batch.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/levels.hpp"

namespace nprf {

/// What a program calls of a level's code.
template <Real T>
struct LevelFunctions {
  decltype(&Batch<T>::forward) forward;
  decltype(&Batch<T>::backward) backward;
  void (*clear)(Batch<T>&);  // frees its memory, so that the program destroys an empty one
#define NPRF_VIEW_FUNCTION(FIRST, T, NAME, ...) FeatureMapView<T> (*NAME)(const __VA_ARGS__&);
  NPRF_FEATURE_MAPS(NPRF_VIEW_FUNCTION, , T)
#undef NPRF_VIEW_FUNCTION

  /// Those of the level that the caller is compiled for.
  static constexpr LevelFunctions compiled() {
    return {&Batch<T>::forward, &Batch<T>::backward,
            [](Batch<T>& batch) { std::construct_at((std::destroy_at(&batch), &batch)); },
#define NPRF_VIEW(FIRST, T, NAME, ...) [](const __VA_ARGS__& map) { return FeatureMapView<T>(map); },
            NPRF_FEATURE_MAPS(NPRF_VIEW, , T)
#undef NPRF_VIEW
    };
  }
};

/// The sizes of the classes whose objects the program and a level share, and the alignment of Eigen's memory.
constexpr auto shared_sizes() {
  using T = float;
#define NPRF_SIZE(FIRST, T, NAME, ...) sizeof(__VA_ARGS__),
  return std::to_array<std::size_t>({NPRF_FEATURE_MAPS(NPRF_SIZE, , T)  //
                                     sizeof(Batch<T>),
                                     sizeof(Saved<T>), sizeof(SavedSequence<T>), sizeof(HeadModels<T>),
                                     sizeof(FeatureMapView<T>), sizeof(PositionView<T>), sizeof(Workspace),
                                     sizeof(CallOptions), EIGEN_MAX_ALIGN_BYTES});
#undef NPRF_SIZE
}

/// The table of a level: its functions, and the sizes that must be the program's.
struct Level {
  using Sizes = decltype(shared_sizes());

  LevelFunctions<float> of_float;
  LevelFunctions<double> of_double;
  Sizes sizes;

  static constexpr Level compiled() {
    return {LevelFunctions<float>::compiled(), LevelFunctions<double>::compiled(), shared_sizes()};
  }
};

}  // namespace nprf
