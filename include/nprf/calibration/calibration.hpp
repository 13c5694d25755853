// SPDX-License-Identifier: MIT
#pragma once

#include <istream>
#include <ostream>
#include <utility>
#include <vector>

#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/calibration/number_text.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// A map that calibrate() compared with others: its first-order features, of the coordinates of largest variance, the
/// number of coordinates with second-order features too, and its error as estimated on the first half of the sample.
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

  /// Writes it as text that load reads back with the same bits, O(d^2 + r). Both throw InvalidArgument as
  /// CalibratedFeatures does.
  void save(std::ostream& out) const;
  static Calibration load(std::istream& in);
};

/// The same for all heads. All maps have the same number of features, as MultiHeadAttention requires.
template <Real T>
struct HeadsCalibration {
  std::vector<CalibratedFeatures<T>> features;
  double softmax_error = 0;                      // of the outputs of all heads together
  std::vector<double> head_errors;               // (h)
  std::vector<CalibrationCandidate> candidates;  // their errors are those of all heads together

  /// As those of Calibration; O(h (d^2 + r)).
  void save(std::ostream& out) const;
  static HeadsCalibration load(std::istream& in);
};

template <Real T>
void HeadsCalibration<T>::save(std::ostream& out) const {
  detail::NumberWriter text(out);
  text.header<T>("nprf-calibration", 1);
  text.number("heads", static_cast<Index>(features.size()));
  text.number("softmax_error", softmax_error);
  text.numbers("head_errors", head_errors.data(), static_cast<Index>(head_errors.size()));
  text.number("candidates", static_cast<Index>(candidates.size()));
  for (const CalibrationCandidate& each : candidates) {
    text.number("first", each.first);
    text.number("second", each.second);
    text.number("error", each.error);
  }
  for (const CalibratedFeatures<T>& each : features) each.save(out);
}

template <Real T>
HeadsCalibration<T> HeadsCalibration<T>::load(std::istream& in) {
  constexpr Index most = 1 << 20;
  detail::NumberReader text(in);
  text.header<T>("nprf-calibration", 1);
  HeadsCalibration result;
  const Index heads = text.index("heads", 1, most);
  result.softmax_error = text.number<double>("softmax_error");
  const Vector<double> errors = text.numbers<double>("head_errors", heads);
  result.head_errors.assign(errors.begin(), errors.end());
  const Index candidates = text.index("candidates", 0, most);
  while (static_cast<Index>(result.candidates.size()) < candidates) {
    const Index first = text.index("first", 0, most), second = text.index("second", 0, first);
    result.candidates.push_back({first, second, text.number<double>("error")});
  }
  while (static_cast<Index>(result.features.size()) < heads) result.features.push_back(CalibratedFeatures<T>::load(in));
  return result;
}

template <Real T>
void Calibration<T>::save(std::ostream& out) const {
  HeadsCalibration<T>{{features}, softmax_error, {softmax_error}, candidates}.save(out);
}

template <Real T>
Calibration<T> Calibration<T>::load(std::istream& in) {
  HeadsCalibration<T> all = HeadsCalibration<T>::load(in);
  require(all.features.size() == 1, "heads: expected 1, got ", all.features.size());
  return {std::move(all.features[0]), all.softmax_error, std::move(all.candidates)};
}

}  // namespace nprf
