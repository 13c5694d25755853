// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/attention.hpp"
#include "nprf/core/function_ref.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf::reference {

namespace detail {

/// Whether query i may attend to key j, if direction and bias also admit it.
using Attends = FunctionRef<bool(Index i, Index j)>;

/// reference::kernelized_attention, compiled once for all feature maps and positions.
template <Real T>
Matrix<T> kernelized_attention(const FeatureMapView<T>& features, const PositionView<T>& position,
                               const AttentionOptions& options, const MatrixView<T>& q, const MatrixView<T>& k,
                               const MatrixView<T>& v, Index offset, Attends attends);

}  // namespace detail

/// The reference implementation of Attention: its formula as two plain loops in long double, with the exact pairs of
/// its options. The weights exp(b) of each row are relative to the largest of the row.
///
/// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). O(n_q n_k (r + d_v)). Throws InvalidArgument if shapes do not match,
/// and for a grid also if the number of tokens is not the grid's, or the offset is not 0.
/// attends(i, j) states whether query i may attend to key j, if direction and bias also admit it: for masks, lengths
/// and packing. A key that no query may attend to does not affect the common factor of the keys' features.
template <class F, class P>
Matrix<typename F::Scalar> kernelized_attention(const Attention<F, P>& attention,
                                                const MatrixView<typename F::Scalar>& q,
                                                const MatrixView<typename F::Scalar>& k,
                                                const MatrixView<typename F::Scalar>& v, Index offset,
                                                detail::Attends attends) {
  using T = typename F::Scalar;
  return detail::kernelized_attention<T>(attention.features(), attention.position(), attention.options(), q, k, v,
                                         offset, attends);
}

/// The same without `attends`: a query may attend to all keys that direction and bias admit.
template <class F, class P>
Matrix<typename F::Scalar> kernelized_attention(const Attention<F, P>& attention,
                                                const MatrixView<typename F::Scalar>& q,
                                                const MatrixView<typename F::Scalar>& k,
                                                const MatrixView<typename F::Scalar>& v, Index offset = 0) {
  return kernelized_attention(attention, q, k, v, offset, [](Index, Index) { return true; });
}

}  // namespace nprf::reference

#if !NPRF_SEPARATE
#include "nprf/reference/kernelized_attention_definition.hpp"
#endif
