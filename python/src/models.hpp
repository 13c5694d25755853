// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/alibi_sum.hpp"
#include "nprf/position/curve.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/kerple.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/spline.hpp"
#include "nprf/position/t5.hpp"

namespace nprf::python {

/// The feature maps of an attention: one, or one for each head.
template <Real T>
struct Features {
  std::variant<std::vector<PositiveFeatures<T>>, std::vector<HyperbolicFeatures<T>>,
               std::vector<TrigonometricFeatures<T>>, std::vector<EluFeatures<T>>, std::vector<TaylorFeatures<T>>,
               std::vector<CalibratedFeatures<T>>, std::vector<Centred<PositiveFeatures<T>>>,
               std::vector<Centred<HyperbolicFeatures<T>>>>
      maps;

  template <class F>
  static Features one(F map) {
    std::vector<F> maps;
    maps.push_back(std::move(map));
    return {std::move(maps)};
  }
};

/// Any of the library's curves. One class, so that CurvePosition is compiled once for all of them.
class AnyCurve {
 public:
  using Any = std::variant<KerpleLog, KerplePower, AlibiSum, Spline>;

  AnyCurve(Any curve) : m_curve(std::move(curve)) {}

  Index num_parameters() const {
    return std::visit([](const auto& curve) { return curve.num_parameters(); }, m_curve);
  }
  double bias(Index lag) const {
    return std::visit([&](const auto& curve) { return curve.bias(lag); }, m_curve);
  }
  void add_gradient(Index lag, double db, double* d) const {
    std::visit([&](const auto& curve) { curve.add_gradient(lag, db, d); }, m_curve);
  }
  AnyCurve with_parameters(std::span<const double> parameters) const {
    return std::visit([&](const auto& curve) { return AnyCurve(curve.with_parameters(parameters)); }, m_curve);
  }

 private:
  Any m_curve;
};

/// Any position of a sequence. One class, so that an attention is compiled once for all of them.
template <Real T>
class SequencePosition {
 public:
  using Scalar = T;
  using Any =
      std::variant<NoPosition<T>, RelativePosition<T>, T5Position<T>, AlibiPosition<T>, CurvePosition<T, AnyCurve>>;

  SequencePosition(Any position, Matrix<T> lag_vectors = {})
      : m_position(std::move(position)), m_lag_vectors(std::move(lag_vectors)) {}
  const Any& any() const { return m_position; }
  /// As QueryBiased::lag_vectors(); 0 x 0 if there are none.
  const Matrix<T>& lag_vectors() const { return m_lag_vectors; }

  const LagBias<T>& bias() const {
    return std::visit([](const auto& position) -> const LagBias<T>& { return position.bias(); }, m_position);
  }
  bool is_smooth() const {
    return std::visit(
        [](const auto& position) {
          if constexpr (MaybeSmoothPosition<std::remove_cvref_t<decltype(position)>>)
            return position.is_smooth();
          else
            return false;
        },
        m_position);
  }
  void tangent(const LagRange& lags, double* w) const {
    std::visit(
        [&](const auto& position) {
          if constexpr (MaybeSmoothPosition<std::remove_cvref_t<decltype(position)>>) position.tangent(lags, w);
        },
        m_position);
  }
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    std::visit([&](const auto& position) { position.gradient(first, db, d); }, m_position);
  }

  /// The same kind of position with other parameters (p).
  SequencePosition with_parameters(Vector<T> parameters) const {
    if (const auto* t5 = std::get_if<T5Position<T>>(&m_position)) return {t5->with_weights(std::move(parameters))};
    if (const auto* relative = std::get_if<RelativePosition<T>>(&m_position))
      return {RelativePosition<T>(std::move(parameters), relative->is_smooth())};
    if (std::holds_alternative<AlibiPosition<T>>(m_position)) return {AlibiPosition<T>(parameters[0])};
    if (const auto* curve = std::get_if<CurvePosition<T, AnyCurve>>(&m_position)) {
      const std::vector<double> p(parameters.begin(), parameters.end());
      return {curve->with_parameters(p)};
    }
    return *this;
  }

 private:
  Any m_position;
  Matrix<T> m_lag_vectors;  // (rank,lags)
};

/// The positions of an attention: one, or one for each head.
template <Real T>
struct Positions {
  std::variant<std::vector<SequencePosition<T>>, std::vector<GridPosition<T>>> positions;
};

/// make(h) for each head; errors name the head, if there are several.
template <class Make>
void for_each_head(Index heads, Make&& make) {
  for (Index h = 0; h < heads; ++h) try {
      make(h);
    } catch (const InvalidArgument& error) {
      if (heads == 1) throw;
      throw InvalidArgument(nprf::detail::sentence(error.what(), " in head ", h));
    }
}

/// The same kinds of positions with the parameters rows (h,p), one row for each.
template <Real T>
Positions<T> with_parameters(const Positions<T>& positions, const Matrix<T>& rows) {
  const auto* all = std::get_if<std::vector<SequencePosition<T>>>(&positions.positions);
  require(all != nullptr, "positions: expected those of a sequence, got those of a grid");
  std::vector<SequencePosition<T>> made;
  for_each_head(rows.rows(), [&](Index h) {
    const std::size_t at = all->size() == 1 ? 0 : static_cast<std::size_t>(h);
    made.push_back(all->at(at).with_parameters(rows.row(h).transpose()));
  });
  return {std::move(made)};
}

/// The same positions with vectors of lags, rows (h,rank lags): one for each head, or one for all.
template <Real T>
Positions<T> with_lag_vectors(const Positions<T>& positions, const Matrix<T>& rows, Index rank) {
  const auto* all = std::get_if<std::vector<SequencePosition<T>>>(&positions.positions);
  require(all != nullptr, "lag_vectors: expected none for a grid, got some");
  require(rank > 0 && rows.cols() > 0, "lag_vectors: expected at least one number, got none");
  require(rows.allFinite(), "lag_vectors: expected finite numbers, got others");
  const auto heads = static_cast<Index>(all->size());
  require(heads == 1 || rows.rows() == 1 || rows.rows() == heads, "lag_vectors: expected ", heads,
          " heads, as the position, got ", rows.rows());
  std::vector<SequencePosition<T>> made;
  for (Index h = 0; h < std::max(heads, rows.rows()); ++h) {
    const auto row = rows.row(rows.rows() == 1 ? 0 : h);
    made.emplace_back((*all)[heads == 1 ? 0 : static_cast<std::size_t>(h)].any(),
                      Eigen::Map<const Matrix<T>>(row.data(), rank, rows.cols() / rank));
  }
  return {std::move(made)};
}

}  // namespace nprf::python
