// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
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
  Matrix<T> q, k;                                  // (n_q,d) (n_k,d)  normalised
  Vector<T> q_scale, k_scale;                      // (n_q) (n_k)
  std::vector<Index> lifted_queries, lifted_keys;  // rows that are too short for a factor (lifted_rows.hpp)
  Matrix<T> A, B, U;                               // (n_q,r) (n_k,r) (n_k,d_v+1): [v 1], 0 for v that is not finite
  Vector<double> exponents;                        // of the rows of B (shapes.hpp); empty: none
  bool rows_have_exponents = false;                // denominators are relative to those that a query attends to
  Matrix<T> y;                                     // (n_q,d_v)
  int unit = 0;                                    // 2^unit is that of v, y and the largest values
  T largest_value = 0;                             // of U, 1 at most unless values are so far apart that some would
                                                   // lose digits (below 2 in the last binade)
  Vector<T> denominator;                           // (n_q), 0 for rows that are empty, or were computed one by one
  Vector<T> largest_values;                        // (n_q), the largest |v| that each query attends to
  std::vector<Index> repaired;                     // the rows computed by themselves
  double own_bound = 0,
         condition = 0;       // the largest of rows, transforms' rounding apart (fallback/row_error_bound.hpp)
  double noise = 0;           // what that is, the largest of rows that were not repaired
  std::vector<Index> unseen;  // the keys that no query sees
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
  Index m_batch = 0, m_heads = 0, m_kv_heads = 0, m_offset = 0;
  double m_tolerance = 0;
  std::vector<Segment> m_segments;
  std::vector<SavedSequence<T>> m_sequences;  // by sequence of the batch, head, segment
};

/// What one backward did. With p_ij the weight of key j in row i of the attention, so that y_i = sum_j p_ij v_j, and
///
///     s_i = |dy_i|_1 times the largest |v| that query i attends to
///
/// errors are relative to: s_i for dq_i; sum_i p_ij s_i for dk_j; sum_i p_ij |dy_i|_1 for dv_j; the sum of p_ij s_i
/// over the pairs of a lag for its bias; dq and dk times the largest derivative of the logarithm of a feature. For
/// features of both signs |phi(q_i)| |phi(k_j)| stands for phi(q_i).phi(k_j) in p_ij, and |D_i| for D_i. A p_ij below
/// the root of the smallest normal number counts as that root, for all keys of the sequence, and a p_ij s_i below the
/// smallest normal number times the largest |dy_i|_1 and |v_j| of the sequence as that: they may have underflown beside
/// the others.
struct GradientReport {
  Engine engine = Engine::automatic;  // that ran, of the first sequence; automatic if there was nothing to compute
  Index recomputed_queries = 0;       // whose gradients an FFT's rounding may have put off, and were recomputed
  Index recomputed_keys = 0;
  Index recomputed_lags = 0;
  double error_bound = 0;           // the largest that remains possible of a gradient, as Report::error_bound
  std::size_t workspace_bytes = 0;  // scratch memory of all threads at its peak
};

/// dL/dq (n_q,d), dL/dk (n_k,d), dL/dv (n_k,d_v), the bias in the shape of the position's parameters, and the weights
/// of a grid's extra tokens (E,E+2).
template <OnlyReal T>
struct Gradients {
  Matrix<T> queries, keys, values, bias, extra;
  GradientReport report;
};

}  // namespace nprf
