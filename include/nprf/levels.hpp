// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/batch/batch.hpp"
#include "nprf/config.hpp"
#include "nprf/core/cpu_level.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/instances.hpp"

/// Code for several levels of x86-64 in one program, which is itself compiled for any x86-64 processor. The CMake
/// target nprf::levels compiles Batch and nprf's feature maps once for each level, and links the objects of a level
/// into one, in which all symbols are local but a table of functions (cmake/levels/level.hpp). So the linker cannot
/// exchange code of a level, of Eigen's or the standard library's templates either, with the program's. At the first
/// call the program chooses a table (CpuLevel), and calls these functions through it.
///
/// Both sides share objects of these classes. Their layout must not depend on the level, hence they have no members of
/// Pack or Lanes. All levels are compiled with the baseline's Eigen alignment, so that either side may free what the
/// other allocated. A user's own feature map or position is compiled with the program, and so is the drawing of a
/// projection, whose bits are then the same for all levels.
#if NPRF_X86_64_LEVELS

// defined by cmake/levels/levels.cpp
#define NPRF_CALLED_BY_LEVEL(T)                                                                                   \
  template <>                                                                                                     \
  nprf::Batch<T>::~Batch();                                                                                       \
  template <>                                                                                                     \
  void nprf::Batch<T>::forward(const HeadModels<T>&, const HeadsView<const T>&, const HeadsView<const T>&,        \
                               const HeadsView<const T>&, const HeadsView<T>&, const CallOptions&, Saved<T>*,     \
                               Lengths);                                                                          \
  template <>                                                                                                     \
  nprf::GradientReport nprf::Batch<T>::backward(const HeadModels<T>&, const Saved<T>&, const HeadsView<const T>&, \
                                                const HeadsView<T>&, const HeadsView<T>&, const HeadsView<T>&);   \
  NPRF_FEATURE_MAPS(NPRF_VIEW_CALLED_BY_LEVEL, , T)
#define NPRF_VIEW_CALLED_BY_LEVEL(FIRST, T, NAME, ...) \
  template <>                                          \
  template <>                                          \
  nprf::FeatureMapView<T>::FeatureMapView(const __VA_ARGS__&);

NPRF_CALLED_BY_LEVEL(float)
NPRF_CALLED_BY_LEVEL(double)
#undef NPRF_CALLED_BY_LEVEL
#undef NPRF_VIEW_CALLED_BY_LEVEL

#endif
