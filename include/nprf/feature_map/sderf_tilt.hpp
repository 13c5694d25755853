// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/tilt.hpp"

namespace nprf {

/// Returns the tilt (tilt.hpp) of symmetric dense exponential random features (Likhosherstov et al. 2023). It is the
/// best one for all pairs of a row x of q (n_q,d) and a row y of k (n_k,d): its axes are the eigenvectors of the mean
/// of (x + y)(x + y)^T over these pairs. O(n d^2 + d^3). Throws InvalidArgument unless both have rows, of the same
/// non-zero length and finite.
template <OnlyReal T>
Tilt sderf_tilt(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k);

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/tilt_definition.hpp"
#endif
