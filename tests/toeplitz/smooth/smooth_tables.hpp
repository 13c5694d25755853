// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/product.hpp"

/// Tables of weights that are smooth at long lags, and tables that are not.
namespace nprf::test {

struct SmoothTable {
  std::string name;
  std::function<double(double)> weight;  // of a lag
};

inline std::vector<SmoothTable> smooth_tables() {
  return {{"1 / (1 + |l|)", [](double l) { return 1 / (1 + std::abs(l)); }},
          {"exp(-|l|^0.3), before and after differ",
           [](double l) { return (l < 0 ? 1 : 0.25) * std::exp(-std::pow(std::abs(l), 0.3)); }},
          {"a sum of exponentials",
           [](double l) { return std::exp(-std::abs(l) / 90) + 0.1 * std::exp(-std::abs(l) / 2000); }},
          {"a wide wave", [](double l) { return 1 + 0.5 * std::sin(l / 120); }}};
}

/// The weights of the lags between n_q queries and n_k keys; 0 for lags after `last`.
template <Real T>
LagWeights<T> weights_of(const SmoothTable& table, Index n_q, Index n_k, double max_deviation, Index last = 1 << 30) {
  LagWeights<T> c{1 - n_q, Vector<T>::Zero(n_q + n_k - 1), {}, max_deviation};
  for (Index lag = c.first; lag <= std::min(c.last(), last); ++lag)
    c.values[lag - c.first] = static_cast<T>(table.weight(static_cast<double>(lag)));
  return c;
}

/// A deviation that the tables admit with fewer polynomials than SmoothEngine has.
template <Real T>
constexpr double smooth_deviation = sizeof(T) == sizeof(float) ? 2.5e-5 : 1e-6;

}  // namespace nprf::test
