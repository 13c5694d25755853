// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/toeplitz/direct.hpp"
#include "nprf/toeplitz/fftw.hpp"

/// The one product under every attention and every gradient:  Y = ((A B^T) o C) U,  C[i,j] = c[j-i].
///
/// | engine | time              | good for                                                        |
/// |--------|-------------------|-----------------------------------------------------------------|
/// | direct | n_q n_k (r + p)   | short n; one-sided (causal) weights, where it keeps every digit |
/// | fftw   | r p n log n       | long n and weights that leave all rows of a size                |
namespace nprf::toeplitz {

/// The smallest over the largest sum of weights that a row sees: where it is small, an FFT's rounding, which is
/// relative to the largest rows, drowns the smallest. O(n_q + n_k).
template <Real T>
double row_balance(const LagWeights<T>& lags, const ProductShape& shape) {
  const Vector<T> c = lags.window({-(shape.n_q - 1), shape.n_k - 1});  // c[j - i] at n_q - 1 + j - i
  double sum = 0, smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (Index k = 0; k < c.size(); ++k) {
    // a window of n_k lags slides from the last row to the first; sums are those of positive weights
    sum += std::abs(static_cast<double>(c[k]));
    if (k >= shape.n_k) sum -= std::abs(static_cast<double>(c[k - shape.n_k]));
    if (k < shape.n_k - 1) continue;
    smallest = std::min(smallest, sum);
    largest = std::max(largest, sum);
  }
  return largest > 0 ? smallest / largest : 0;
}

/// The engine that Engine::automatic stands for: the cheaper one by operations, those of an FFT weighted by the
/// measured cost of one against one of a matrix product's; but direct where an FFT would drown some rows in the
/// rounding of others: for one-sided weights, and for weights that leave some rows a small part of what others see.
template <Real T>
Engine choose(const LagWeights<T>& lags, const ProductShape& shape) {
  const LagRange support = lags.support();
  if (!NPRF_USE_FFTW || support.first >= 0 || support.last <= 0) return Engine::direct;
  const double n_q = static_cast<double>(shape.n_q), n_k = static_cast<double>(shape.n_k);
  const double r = static_cast<double>(shape.r), p = static_cast<double>(shape.p), n = n_q + n_k;
  const double direct = n_q * n_k * (r + p + 16);
  const double fft = r * p * n * (4.5 * std::log2(n) + 45);
  if (direct <= fft) return Engine::direct;
  // a third of the digits may go
  const double least_balance = std::cbrt(static_cast<double>(std::numeric_limits<T>::epsilon()));
  return row_balance(lags, shape) < least_balance ? Engine::direct : Engine::fftw;
}

/// Throws InvalidArgument for an engine that this build does not have.
inline void require_available(Engine engine) {
  require(engine == Engine::automatic || engine == Engine::direct || (NPRF_USE_FFTW && engine == Engine::fftw),
          "engine: expected automatic, ", NPRF_USE_FFTW ? "direct or fftw" : "or direct (built without FFTW)", ", got ",
          name(engine));
}

namespace detail {

template <class E, Real T>
std::size_t run(const LagWeights<T>& lags, const ProductShape& shape, const MatrixView<T>& A, const MatrixView<T>& B,
                const MatrixView<T>& U, MatrixRef<T> Y) {
  if (shape.empty() || lags.support().size() == 0) {
    Y.setZero();
    return 0;
  }
  E(lags, shape).contract(A, B, U, Y);
  return E::workspace_bytes(shape);
}

}  // namespace detail

/// Y (n_q,p) = ((A B^T) o C) U with A (n_q,r), B (n_k,r), U (n_k,p); a lag outside the weights' table has weight 0.
/// Returns the bytes of workspace that were used. Throws InvalidArgument for shapes that do not fit and for engines
/// that this build does not have.
template <Real T>
std::size_t contract(Engine engine, const LagWeights<T>& lags, const MatrixView<T>& A, const MatrixView<T>& B,
                     const MatrixView<T>& U, MatrixRef<T> Y) {
  const ProductShape shape = product_shape<T>(A, B, U);
  require(Y.rows() == shape.n_q && Y.cols() == shape.p, "Y: expected ", shape.n_q, " x ", shape.p, ", got ", Y.rows(),
          " x ", Y.cols());
  require_available(engine);
  if (engine == Engine::automatic) engine = choose(lags, shape);
#if NPRF_USE_FFTW
  if (engine == Engine::fftw) return detail::run<FftwEngine<T>>(lags, shape, A, B, U, Y);
#endif
  return detail::run<DirectEngine<T>>(lags, shape, A, B, U, Y);
}

/// The same, with Y returned.
template <class T>
Matrix<T> contract(Engine engine, const LagWeights<T>& lags, const std::type_identity_t<MatrixView<T>>& A,
                   const std::type_identity_t<MatrixView<T>>& B, const std::type_identity_t<MatrixView<T>>& U) {
  Matrix<T> Y(A.rows(), U.cols());
  contract<T>(engine, lags, A, B, U, MatrixRef<T>(Y));
  return Y;
}

/// The gradients of contract() for G (n_q,p) = dL/dY. Throws as contract() does.
template <class T>
Gradients<T> gradients(Engine engine, const LagWeights<T>& lags, const std::type_identity_t<MatrixView<T>>& A,
                       const std::type_identity_t<MatrixView<T>>& B, const std::type_identity_t<MatrixView<T>>& U,
                       const std::type_identity_t<MatrixView<T>>& G) {
  const ProductShape shape = product_shape<T>(A, B, U);
  require(G.rows() == shape.n_q && G.cols() == shape.p, "G: expected ", shape.n_q, " x ", shape.p, ", got ", G.rows(),
          " x ", G.cols());
  require_available(engine);
  if (shape.empty()) return Gradients<T>(shape);
  if (engine == Engine::automatic) engine = choose(lags, shape);
#if NPRF_USE_FFTW
  if (engine == Engine::fftw) return FftwEngine<T>(lags, shape).gradients(A, B, U, G);
#endif
  return DirectEngine<T>(lags, shape).gradients(A, B, U, G);
}

}  // namespace nprf::toeplitz
