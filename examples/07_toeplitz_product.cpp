// SPDX-License-Identifier: MIT

// The product inside every attention, used alone:  Y = ((A B^T) o C) U  with C[i,j] = c[j-i].
// If A and B are columns of ones, it is a filter: here a Gaussian window that smooths a noisy wave. As in attention, a
// column of ones beside the signal gives the sums of the weights. Dividing by them normalises the filter, at both ends
// of the signal too.

#include <cmath>
#include <cstdio>
#include <nprf/nprf.hpp>

using namespace nprf;

int main() {
  const Index n = 2000, reach = 60;
  const double width = 20;
  const Vector<double> wave = Vector<double>::LinSpaced(n, 0, 25).array().sin();
  const Vector<double> noise = 0.5 * Vector<double>::Random(n);

  LagWeights<double> c{-reach, Vector<double>(2 * reach + 1)};  // the lags -60..60; beyond them c is zero
  for (Index lag = -reach; lag <= reach; ++lag)
    c.values[lag + reach] = std::exp(-0.5 * std::pow(static_cast<double>(lag) / width, 2));

  const Matrix<double> ones = Matrix<double>::Ones(n, 1);
  Matrix<double> U(n, 2);
  U << wave + noise, ones;
  const Matrix<double> Y = toeplitz::contract<double>(Engine::automatic, c, ones, ones, U);  // (n,2)
  const Vector<double> smooth = Y.col(0).cwiseQuotient(Y.col(1));

  const auto rms = [](const Vector<double>& x) { return x.norm() / std::sqrt(static_cast<double>(x.size())); };
  const double before = rms(noise), after = rms(smooth - wave);
  std::printf("noise before %.3f, after %.3f\n", before, after);
  for (Index i = 0; i < n; i += 80) std::printf("%*s\n", static_cast<int>(std::lround(30 + 25 * smooth[i])), "*");
  return after < before / 4 ? 0 : 1;
}
