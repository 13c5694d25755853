// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <vector>

#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// A map that calibrate() compared with others. The `first` coordinates of largest variance have first-order features,
/// and the `second` coordinates of largest variance also second-order features. `error` is the error that was estimated
/// on the first half of the sample.
struct CalibrationCandidate {
  Index first, second;
  double error;

  Index num_features() const { return 1 + first + second * (second + 1) / 2; }
};

/// A feature map for one head, and its error |y - exact| / |exact| in the Frobenius norm on the second half of the
/// sample, which was used neither for its constants nor for its choice. Without values the error is that of the
/// attention weights.
template <Real T>
struct Calibration {
  CalibratedFeatures<T> features;
  double softmax_error = 0;
  std::vector<CalibrationCandidate> candidates;  // the fewest features first

  /// save() writes text that load() reads back with the same bits, O(d^2 + r). Both throw InvalidArgument as save() and
  /// load() of CalibratedFeatures do.
  void save(std::ostream& out) const;
  static Calibration load(std::istream& in);
};

/// Feature maps for all heads of an attention, and their errors. All maps have the same number of features, as
/// MultiHeadAttention requires.
template <Real T>
struct HeadsCalibration {
  std::vector<CalibratedFeatures<T>> features;
  double softmax_error = 0;                      // of the outputs of all heads together
  std::vector<double> head_errors;               // (h)
  std::vector<CalibrationCandidate> candidates;  // their errors are those of all heads together

  /// As save() and load() of Calibration; O(h (d^2 + r)).
  void save(std::ostream& out) const;
  static HeadsCalibration load(std::istream& in);
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/calibration/calibration_definition.hpp"
#endif
