// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "nprf/attention/segments.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

template <Real T>
class Batch;

/// What one head's forward keeps of one sequence; its keys are those that take part.
template <Real T>
struct SavedSequence {
  Matrix<T> q, k;                              // (n_q,d) (n_k,d)  normalised
  Vector<T> q_scale, k_scale;                  // (n_q) (n_k)
  Matrix<T> A, B, v;                           // (n_q,r) (n_k,r) (n_k,d_v)
  Vector<double> exponents;                    // of the rows of B (shapes.hpp); empty: none
  Matrix<T> y;                                 // (n_q,d_v)
  Vector<T> denominator;                       // (n_q), 0 for rows that are empty, or were computed one by one
  std::vector<Index> repaired;                 // the rows computed by themselves
  Eigen::Array<bool, Eigen::Dynamic, 1> mask;  // of all keys; empty: none is masked
  Index length = 0;                            // keys from there on are padding
};

/// What forward keeps for backward: O(n (d + r + d_v)) memory a head. Opaque; may be used again for another call.
template <OnlyReal T>
class Saved {
  template <class F, class P>
  friend class Attention;
  template <class F, class P>
  friend class MultiHeadAttention;
  friend class Batch<T>;

  std::shared_ptr<const char> m_attention;  // whose forward filled this; null: nobody's
  AttentionShape m_sizes{0, 0, 0, 0};
  Index m_batch = 0, m_heads = 0, m_offset = 0;
  std::vector<Segment> m_segments;
  std::vector<SavedSequence<T>> m_sequences;  // by sequence of the batch, head, segment
};

/// dL/dq (n_q,d), dL/dk (n_k,d), dL/dv (n_k,d_v), the bias in the shape of the position's parameters, and the weights
/// of a grid's extra tokens (E,E+2).
template <OnlyReal T>
struct Gradients {
  Matrix<T> queries, keys, values, bias, extra;
};

}  // namespace nprf
