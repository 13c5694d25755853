// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "nprf/core/index.hpp"

namespace nprf {

/// A term exp(log_weight + slope k) of a sum of decays at k = 0, 1, ...
struct DecayTerm {
  double log_weight, slope;  // slope <= 0
};

/// Decays whose sum stands for exp(b), and the largest |log sum - b|.
struct FittedDecays {
  std::vector<DecayTerm> terms;
  double deviation = 0;
};

namespace detail {

/// Fits `terms` decays with positive weights to exp(b) at some places, by the method of Levenberg and Marquardt (1963):
/// the least sum of the squares of  sum_p exp(a_p - s_p k) / exp(b(k)) - 1  over the logarithms a_p of the weights and
/// the logarithms of the rates s_p. Positive terms never cancel, so that sums of features keep their precision.
class DecayFit {
 public:
  /// `places` are the k (samples), increasing from 0, and `b` the biases there.
  DecayFit(const std::vector<double>& places, const std::vector<double>& b, std::size_t terms)
      : m_places(places), m_b(b), m_terms(terms), m_parameters(2 * terms), m_residuals(places.size()) {
    // rates at equal steps of the logarithm, from below 1 / the last place up; each term makes about half of a weight
    const double slowest = std::log(0.3 / (1 + places.back())), fastest = std::log(0.06);
    for (std::size_t p = 0; p < terms; ++p) {
      const double part = terms > 1 ? static_cast<double>(p) / static_cast<double>(terms - 1) : 0.5;
      const double rate = slowest + part * (fastest - slowest);
      const auto at = std::ranges::lower_bound(places, std::min(std::exp(-rate), places.back()));
      m_parameters[p] = b[static_cast<std::size_t>(at - places.begin())] + 1 - std::log(2.0);
      m_parameters[terms + p] = rate;
    }
    m_error = set_residuals(m_parameters);
    for (int step = 0; step < most_steps && improve(); ++step) continue;
  }

  std::vector<DecayTerm> decays() const {
    std::vector<DecayTerm> all;
    for (std::size_t p = 0; p < m_terms; ++p) all.push_back({m_parameters[p], -std::exp(m_parameters[m_terms + p])});
    return all;
  }

 private:
  static constexpr int most_steps = 80, most_tries = 10;

  // the sum of the squares of the residuals, which it sets, with their derivatives
  double set_residuals(const std::vector<double>& x) {
    m_derivatives.assign(m_places.size() * x.size(), 0.0);
    double sum = 0;
    for (std::size_t i = 0; i < m_places.size(); ++i) {
      double residual = -1;
      double* d = m_derivatives.data() + i * x.size();
      for (std::size_t p = 0; p < m_terms; ++p) {
        const double rate = std::exp(x[m_terms + p]), term = std::exp(x[p] - rate * m_places[i] - m_b[i]);
        residual += term;
        d[p] = term;
        d[m_terms + p] = -term * rate * m_places[i];
      }
      m_residuals[i] = residual;
      sum += residual * residual;
    }
    return sum;
  }

  // one step that lessens the error; false if there is none, or if it hardly does
  bool improve() {
    const std::size_t n = m_parameters.size();
    std::vector<double> normal(n * n, 0.0), gradient(n, 0.0);
    for (std::size_t i = 0; i < m_places.size(); ++i) {
      const double* d = m_derivatives.data() + i * n;
      for (std::size_t p = 0; p < n; ++p) {
        gradient[p] += d[p] * m_residuals[i];
        for (std::size_t q = 0; q <= p; ++q) normal[p * n + q] += d[p] * d[q];
      }
    }
    for (int tries = 0; tries < most_tries; ++tries, m_damping *= 4) {
      std::vector<double> step = gradient;
      if (!solve(normal, step)) continue;
      std::vector<double> next = m_parameters;
      for (std::size_t p = 0; p < n; ++p) next[p] -= std::clamp(step[p], -3.0, 3.0);
      const double error = set_residuals(next);
      if (!(error < m_error)) continue;
      const bool goes_on = m_error - error > 1e-4 * m_error;
      m_parameters = std::move(next), m_error = error;
      m_damping = std::max(m_damping / 5, 1e-12);
      return goes_on;
    }
    return false;
  }

  // x = (normal + damping diagonal)^-1 x by Cholesky's method; false if the matrix is not positive definite
  bool solve(std::vector<double> A, std::vector<double>& x) const {
    const std::size_t n = x.size();
    for (std::size_t p = 0; p < n; ++p) A[p * n + p] += m_damping * (A[p * n + p] + 1e-12);
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = 0; q <= p; ++q) {
        double sum = A[p * n + q];
        for (std::size_t k = 0; k < q; ++k) sum -= A[p * n + k] * A[q * n + k];
        if (p == q && !(sum > 0)) return false;
        A[p * n + q] = p == q ? std::sqrt(sum) : sum / A[q * n + q];
      }
      for (std::size_t k = 0; k < p; ++k) x[p] -= A[p * n + k] * x[k];
      x[p] /= A[p * n + p];
    }
    for (std::size_t p = n; p-- > 0;) {
      for (std::size_t k = p + 1; k < n; ++k) x[p] -= A[k * n + p] * x[k];
      x[p] /= A[p * n + p];
    }
    return true;
  }

  const std::vector<double>&m_places, &m_b;
  std::size_t m_terms;
  std::vector<double> m_parameters;  // a, log s
  std::vector<double> m_residuals, m_derivatives;
  double m_error = 0, m_damping = 1e-2;
};

}  // namespace detail

/// Whether exp(b(k)) for k = 0..last can be near a sum of decays: such a sum falls, and its logarithm is convex.
/// O(last).
template <class B>
bool may_be_decays(Index last, double most, B&& b) {
  for (Index k = 1; k <= last; ++k) {
    if (!(b(k) <= b(k - 1) + 2 * most)) return false;
    if (k < last && !(2 * b(k) <= b(k - 1) + b(k + 1) + 4 * most)) return false;
  }
  return true;
}

/// The fewest decays, of at most `most_terms`, whose sum is within exp(+-most) of exp(b(k)) for k = 0..last, where b is
/// finite; no terms if none are found. The deviation is checked at every k. O(last most_terms), besides the fits, which
/// take some milliseconds for each number of terms.
template <class B>
FittedDecays fitted_decays(Index last, std::size_t most_terms, double most, B&& b) {
  constexpr Index samples = 160;
  if (!may_be_decays(last, most, b)) return {};
  std::vector<double> places, biases;
  for (Index i = 0; i < samples; ++i) {
    const double x = std::log1p(static_cast<double>(last) / 16) * static_cast<double>(i) / (samples - 1);
    const double place = std::min(std::round(16 * std::expm1(x)), static_cast<double>(last));
    if (!places.empty() && place <= places.back()) continue;
    places.push_back(place);
    biases.push_back(b(static_cast<Index>(place)));
  }
  const auto deviation = [&](const std::vector<DecayTerm>& terms) {
    double worst = 0;
    std::vector<double> values, ratios;
    for (const DecayTerm& each : terms)
      values.push_back(std::exp(each.log_weight - b(0))), ratios.push_back(std::exp(each.slope));
    for (Index k = 0; k <= last && worst <= most; ++k) {
      double sum = 0;
      for (std::size_t p = 0; p < terms.size(); ++p) sum += values[p], values[p] *= ratios[p];
      const double off = std::abs(std::log(sum) - (b(k) - b(0)));
      worst = off <= worst ? worst : off;  // NaN ends the loop
    }
    return worst;
  };
  for (const unsigned terms : {1u, 2u, 3u, 4u, 6u, 8u, 10u, 12u, 14u, 16u}) {
    if (terms > most_terms) break;
    FittedDecays found{detail::DecayFit(places, biases, terms).decays(), 0};
    found.deviation = deviation(found.terms);
    if (found.deviation <= most) return found;
  }
  return {};
}

}  // namespace nprf
