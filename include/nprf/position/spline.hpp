// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Cholesky>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/types.hpp"
#include "nprf/position/curve.hpp"

namespace nprf {

/// How a spline continues beyond its last knot: its bias stays the same; or it falls or rises on a straight line.
enum class SplineEnd { constant, linear };

/// `count` distances from 0 to `reach` at about equal steps of log(1 + distance), all different. Throws InvalidArgument
/// for fewer than 2, or for more than reach + 1.
inline std::vector<Index> log_spaced_knots(Index count, Index reach) {
  require(count >= 2, "count: expected at least 2, got ", count);
  require(reach >= count - 1, "reach: expected at least ", count - 1, " (the number of knots - 1), got ", reach);
  std::vector<Index> knots{0};
  for (Index k = 1; k < count; ++k) {
    const double x = std::log1p(static_cast<double>(reach)) * static_cast<double>(k) / static_cast<double>(count - 1);
    const auto at = static_cast<Index>(std::lround(std::expm1(x)));
    knots.push_back(std::clamp(at, knots.back() + 1, reach - (count - 1 - k)));
  }
  return knots;
}

/// A bias with values at a few distances, the knots, and a cubic spline in log(1 + distance) through them. It is twice
/// differentiable in between; at distance 0 its second derivative is 0, and at the last knot its first one
/// (SplineEnd::constant) or its second one (SplineEnd::linear). Cubic splines: de Boor 1978.
class Spline {
 public:
  /// Values at the knots: k values of the distance |lag|; or 2 k, first those of keys at or before the query (lag <=
  /// 0), then those of keys after it. Throws InvalidArgument unless there are at least 2 knots, which begin with 0 and
  /// increase, and the values are finite.
  Spline(std::vector<double> values, std::vector<Index> knots, SplineEnd end = SplineEnd::constant)
      : m_values(std::move(values)), m_end(end) {
    require(knots.size() >= 2 && knots[0] == 0, "knots: expected at least 2 distances, of which the first is 0");
    for (std::size_t k = 1; k < knots.size(); ++k)
      require(knots[k] > knots[k - 1], "knots: expected increasing distances, got ", knots[k], " after ", knots[k - 1]);
    check_values(m_values, knots.size());
    m_basis = std::make_shared<const Basis>(std::move(knots), end);
    set_curvatures();
  }

  const std::vector<double>& values() const { return m_values; }
  const std::vector<Index>& knots() const { return m_basis->knots; }
  SplineEnd end() const { return m_end; }
  /// Whether keys before and after the query have values of their own.
  bool has_two_sides() const { return m_values.size() > knots().size(); }

  Index num_parameters() const { return static_cast<Index>(m_values.size()); }
  double bias(Index lag) const {
    const Taps x = m_basis->taps(std::abs(lag));
    const std::size_t at = side(lag) + x.knot;
    return x.of_value[0] * m_values[at] + x.of_value[1] * m_values[at + 1] + x.of_curvature[0] * m_curvatures[at] +
           x.of_curvature[1] * m_curvatures[at + 1];
  }
  void add_gradient(Index lag, double db, double* d) const {
    const Taps x = m_basis->taps(std::abs(lag));
    d += side(lag);
    d[x.knot] += db * x.of_value[0], d[x.knot + 1] += db * x.of_value[1];
    const std::size_t k = knots().size();
    const double* first = m_basis->curvatures.data() + x.knot * k;
    for (std::size_t j = 0; j < k; ++j) d[j] += db * (x.of_curvature[0] * first[j] + x.of_curvature[1] * first[k + j]);
  }
  Spline with_parameters(std::span<const double> values) const {
    require(values.size() == m_values.size(), "values: expected ", m_values.size(), " numbers, got ", values.size());
    Spline other = *this;
    other.m_values.assign(values.begin(), values.end());
    check_values(other.m_values, knots().size());
    other.set_curvatures();
    return other;
  }

 private:
  // the spline at one distance: a sum of the values and the second derivatives at two knots
  struct Taps {
    std::size_t knot;
    double of_value[2], of_curvature[2];
  };

  // what does not depend on the values
  struct Basis {
    std::vector<Index> knots;
    std::vector<double> x;           // log(1 + knot)
    std::vector<double> curvatures;  // (knots,knots): the second derivatives at the knots, by the values
    SplineEnd end;

    Basis(std::vector<Index> at, SplineEnd beyond) : knots(std::move(at)), end(beyond) {
      for (const Index knot : knots) x.push_back(std::log1p(static_cast<double>(knot)));
      const std::size_t k = knots.size();
      curvatures.resize(k * k);
      for (std::size_t j = 0; j < k; ++j) set_column(j);
    }

    double step(std::size_t j) const { return x[j + 1] - x[j]; }

    // the second derivatives M for the values v = 1 at knot `of`, else 0: with the steps h,
    //     h_{i-1} M_{i-1} + 2 (h_{i-1} + h_i) M_i + h_i M_{i+1} = 6 ((v_{i+1} - v_i) / h_i - (v_i - v_{i-1}) / h_{i-1})
    // and M_0 = 0. At the last knot h_i and the first difference are 0, or M is 0.
    void set_column(std::size_t of) {
      const std::size_t k = knots.size(), last = k - 1;
      std::vector<double> v(k, 0.0), factor(k, 0.0), M(k, 0.0);
      v[of] = 1;
      for (std::size_t i = 1; i < k; ++i) {  // elimination
        const bool is_last = i == last;
        if (is_last && end == SplineEnd::linear) break;
        const double before = step(i - 1), after = is_last ? 0 : step(i);
        const double difference = (is_last ? 0 : (v[i + 1] - v[i]) / after) - (v[i] - v[i - 1]) / before;
        const double pivot = 2 * (before + after) - before * factor[i - 1];
        factor[i] = after / pivot;
        M[i] = (6 * difference - before * M[i - 1]) / pivot;
      }
      for (std::size_t i = last; i-- > 1;) M[i] -= factor[i] * M[i + 1];
      for (std::size_t i = 0; i < k; ++i) curvatures[i * k + of] = M[i];
    }

    Taps taps(Index distance) const {
      const std::size_t last = knots.size() - 1;
      if (distance >= knots[last]) {
        // with the derivative at the last knot, by log(1 + distance), the line by the distance
        const double h = step(last - 1),
                     beyond = static_cast<double>(distance - knots[last]) / (1 + static_cast<double>(knots[last]));
        if (end == SplineEnd::constant) return {last - 1, {0, 1}, {0, 0}};
        return {last - 1, {-beyond / h, 1 + beyond / h}, {beyond * h / 6, beyond * h / 3}};
      }
      const auto next =
          static_cast<std::size_t>(std::upper_bound(knots.begin(), knots.end(), distance) - knots.begin());
      const std::size_t j = next - 1;
      const double h = step(j), b = (std::log1p(static_cast<double>(distance)) - x[j]) / h, a = 1 - b;
      return {j, {a, b}, {(a * a * a - a) * h * h / 6, (b * b * b - b) * h * h / 6}};
    }
  };

  static void check_values(const std::vector<double>& values, std::size_t knots) {
    require(values.size() == knots || values.size() == 2 * knots, "values: expected ", knots, " numbers or ", 2 * knots,
            " (for both signs of the lag), got ", values.size());
    for (std::size_t k = 0; k < values.size(); ++k)
      require(std::isfinite(values[k]), "values[", k, "]: expected a finite number, got ", values[k]);
  }
  std::size_t side(Index lag) const { return lag > 0 && has_two_sides() ? knots().size() : 0; }
  void set_curvatures() {
    const std::size_t k = knots().size();
    m_curvatures.assign(m_values.size(), 0.0);
    for (std::size_t i = 0; i < m_values.size(); ++i)
      for (std::size_t j = 0; j < k; ++j)
        m_curvatures[i] += m_basis->curvatures[i % k * k + j] * m_values[i / k * k + j];
  }

  std::vector<double> m_values, m_curvatures;
  SplineEnd m_end;
  std::shared_ptr<const Basis> m_basis;
};

template <OnlyReal T>
using SplinePosition = CurvePosition<T, Spline>;

/// A spline in place of a table, and how far it is from it.
struct SplineFit {
  Spline spline;
  double largest_error, mean_error;  // of |bias - table| over the lags of the table
};

/// The spline with these knots that has the least squared error over the lags -R..R of a table of 2R+1 biases; with
/// values for both signs of the lag if `two_sides`. Throws InvalidArgument for a table of even length or with a number
/// that is not finite, and for a last knot beyond R. O(R k^2 + k^3) for k values.
template <OnlyReal T>
SplineFit fit_spline(const Vector<T>& table, std::vector<Index> knots, SplineEnd end = SplineEnd::constant,
                     bool two_sides = true) {
  require(table.size() % 2 == 1, "table: expected an odd number of scalars, 2R+1 for the lags -R..R, got ",
          table.size());
  for (Index l = 0; l < table.size(); ++l)
    require(std::isfinite(table[l]), "table[", l, "]: expected a finite number, got ", table[l]);
  const Index reach = table.size() / 2;
  require(knots.empty() || knots.back() <= reach, "knots: expected distances up to ", reach, " (R of the table), got ",
          knots.empty() ? Index{0} : knots.back());
  const std::vector<double> zeros(knots.size(), 0.0);
  const Spline one_side(zeros, knots, end);
  const Index size = one_side.num_parameters();
  std::vector<double> values;
  // the side after the query has a value at distance 0, too, which is fitted to that of lag 0
  for (const LagRange& lags :
       two_sides ? std::vector<LagRange>{{-reach, 0}, {0, reach}} : std::vector<LagRange>{{-reach, reach}}) {
    Matrix<double> normal = Matrix<double>::Zero(size, size);  // B^T B, where B (lags,k) times the values is the spline
    Vector<double> right = Vector<double>::Zero(size), row(size);
    for (Index lag = lags.first; lag <= lags.last; ++lag) {
      row.setZero();
      one_side.add_gradient(lag, 1, row.data());
      normal += row * row.transpose();
      right += static_cast<double>(table[lag + reach]) * row;
    }
    const Vector<double> solved = normal.ldlt().solve(right);
    values.insert(values.end(), solved.data(), solved.data() + size);
  }
  SplineFit fit{Spline(std::move(values), std::move(knots), end), 0, 0};
  for (Index lag = -reach; lag <= reach; ++lag) {
    const double error = std::abs(fit.spline.bias(lag) - static_cast<double>(table[lag + reach]));
    fit.largest_error = std::max(fit.largest_error, error);
    fit.mean_error += error / static_cast<double>(table.size());
  }
  return fit;
}

}  // namespace nprf
