// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"
#include "nprf/feature_map/centred.hpp"

namespace nprf {

/// Constants that centre and balance queries and keys, and the variances (d) that both have along their common axes,
/// the largest first.
template <Real T>
struct Balance {
  Centring<T> constants;
  Vector<double> variances;
};

/// Returns the means of the samples q (n,d) of queries and k (n',d) of keys, and axes A along which both have the same,
/// diagonal covariance. The samples must be normalised as attention normalises them.
///
///     A^T A = S_q^-1/2 (S_q^1/2 S_k S_q^1/2)^1/2 S_q^-1/2
///
/// S_q and S_k are the samples' covariances S, shrunk to (1 - shrinkage) S + shrinkage tr(S)/d I, so that they can be
/// inverted. A^T A is the geometric mean of S_q^-1 and S_k: the one solution for which A S_q A^T = A^-T S_k A^-1.
/// O((n + n') d^2 + d^3), in double. Throws InvalidArgument if the samples have different numbers of
/// columns, no rows, or a NaN or an infinity, or unless 0 < shrinkage <= 1.
template <Real T>
Balance<T> balance(const MatrixView<T>& q, const MatrixView<T>& k, double shrinkage = 0.05);

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/balance_definition.hpp"
#endif
