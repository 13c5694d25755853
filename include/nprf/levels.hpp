// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/config.hpp"
#include "nprf/core/cpu_level.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"

/// Code for several levels of x86-64 in one program, which is itself compiled for any x86-64 processor. The CMake
/// target nprf::levels compiles Batch and nprf's feature maps once for each level, and links the object files of a
/// level into one, in which all symbols are local except a table of functions (cmake/levels/level.hpp). So the linker
/// cannot use code of a level in the program, or the reverse; this holds for instances of the templates of Eigen and of
/// the standard library, too. At the first call the program chooses a table (CpuLevel), and calls these functions
/// through it. Other code of nprf is compiled for the program's own flags.
///
/// The program and the code of a level share objects of Batch, of the feature maps and of the classes of their
/// arguments. The layout of these classes must not depend on the level, hence they have no members of Pack or Lanes.
/// All levels are compiled with the baseline's Eigen alignment, so that the program may free what a level allocated,
/// and the reverse. A user's own feature map or position is compiled with the program, and so is the drawing of a
/// projection, whose bits are then the same for all levels.

/// Expands to APPLY(FIRST, T, name, map) for each feature map whose code exists for each level.
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

#if NPRF_X86_64_LEVELS

// cmake/levels/levels.cpp defines these constructors, and the functions of Batch
#define NPRF_VIEW_CALLED_BY_LEVEL(FIRST, T, NAME, ...) \
  template <>                                          \
  template <>                                          \
  nprf::FeatureMapView<T>::FeatureMapView(const __VA_ARGS__&);
NPRF_FEATURE_MAPS(NPRF_VIEW_CALLED_BY_LEVEL, , float)
NPRF_FEATURE_MAPS(NPRF_VIEW_CALLED_BY_LEVEL, , double)
#undef NPRF_VIEW_CALLED_BY_LEVEL

#endif
