// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <type_traits>

#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf::reference {

namespace detail {

/// reference::softmax_attention, compiled once for all positions.
template <Real T>
Matrix<T> softmax_attention(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                            const PositionView<T>& position, Direction direction, Normalization normalization,
                            void (*poll)(), std::span<const bool> key_mask, Index offset, CompiledFlags<T>);

}  // namespace detail

/// Exact softmax attention with a relative position bias, y_i = sum_j softmax_j(q_i.k_j + b[j-i]) v_j, for normalised
/// q and k (Normalization::none() divides the logits by sqrt(d)). Kernelized attention is measured against it.
///
/// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). O(n_q n_k (d + d_v)), memory O((n_q + n_k)(d + d_v)). It uses tiles
/// with a running maximum (Milakov and Gimelshein 2018) and all threads. Between tiles of rows the calling thread calls
/// `poll`, if that is not null; an exception from it ends the call. key_mask has one value for each key: false for
/// padding, whose numbers have no effect. If key_mask is empty, there is no padding. Keys that direction or bias
/// exclude have no effect either, unless their values are not finite. A row that attends to no key is zero. Query i has
/// position i + offset. Throws InvalidArgument if shapes do not match, or if the position is built for another
/// direction (T5Position) or another number of tokens (GridPosition, with which the offset must be 0).
template <OnlyReal T, Position P>
Matrix<T> softmax_attention(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                            const std::type_identity_t<MatrixView<T>>& v, const P& position, Direction direction,
                            Normalization normalization, void (*poll)() = nullptr, std::span<const bool> key_mask = {},
                            Index offset = 0) {
  check_position(position, direction);
  return detail::softmax_attention<T>(q, k, v, position, direction, normalization, poll, key_mask, offset, {});
}

}  // namespace nprf::reference

#if !NPRF_SEPARATE
#include "nprf/reference/softmax_attention_definition.hpp"
#endif
