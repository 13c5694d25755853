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
class AttentionCore;
template <Real T>
class Batch;

/// What forward saves of one sequence of one head. Masked keys and padding are left out.
template <Real T>
struct SavedSequence {
  Matrix<T> q, k;                                // (n_q,d) (n_k,d)  normalised
  Vector<T> q_scale, k_scale;                    // (n_q) (n_k)  normalisation factors
  std::vector<Index> short_queries, short_keys;  // rows whose factor would overflow (normalize/lifted_rows.hpp)
  Matrix<T> A, B, U;                             // (n_q,r) (n_k,r) (n_k,d_v+1): [v 1], with zeros for non-finite values
  Vector<double> key_log_scales;                 // (n_k), as toeplitz::Factors has them; empty: none
  // (n_q): the exact pairs of row i have the weights exp(q_i.k_j + b_ij - row_log_scales_i) beside those of its far
  // pairs, of sum D_i; empty if there are none. b_ij is relative to LagProblem::weight_bias, and in a row of exact
  // softmax to the largest of the row
  Vector<double> row_log_scales;
  bool engine_used_log_scales = false;  // denominators are relative to the log-scales of the keys that a query attends
                                        // to; else to the largest of all
  Matrix<T> y;                          // (n_q,d_v)
  int value_exponent = 0;               // U's values, y and the largest values are divided by 2^value_exponent
  T largest_value = 0;       // of U: at most 1, or 2 near overflow; not scaled if smaller values would lose precision
  Vector<T> denominator;     // (n_q)  0 for rows that are empty or were computed in double
  Vector<T> largest_values;  // (n_q)  the largest |v| that each query attends to
  std::vector<Index> recomputed_rows, softmax_rows;  // from their features, and by exact softmax
  // maxima over the rows (fallback/row_error_bound.hpp): the condition, and the bounds of the errors by an FFT, if the
  // row was not recomputed, and of all other errors
  double condition = 0, fft_error = 0, other_error = 0;
  std::vector<Index> unattended_keys;          // keys that no query attends to
  Eigen::Array<bool, Eigen::Dynamic, 1> mask;  // of all keys; empty: none is masked
  Index length = 0;                            // later keys are padding
};

/// What forward saves for backward: O(n (d + r + d_v)) memory for each head. It can be reused for another call.
template <OnlyReal T>
class Saved {
  template <class F, class P>
  friend class Attention;
  friend class AttentionCore<T>;
  friend class Batch<T>;

  std::shared_ptr<const char> m_attention;  // the identity of the attention whose forward filled this, or null
  AttentionShape m_sizes{0, 0, 0, 0};
  Index m_batch = 0, m_heads = 0, m_kv_heads = 0, m_offset = 0;
  double m_tolerance = 0;
  void (*m_poll)() = nullptr;  // of the call's options
  std::vector<Segment> m_segments;
  std::vector<SavedSequence<T>> m_sequences;  // by sequence of the batch, head, segment
};

/// A report of one backward.
///
/// error_bound bounds the rounding errors of all gradients, each relative to a magnitude of its own. With p_ij the
/// attention weight of key j in row i, so that y_i = sum_j p_ij v_j, and
///
///     s_i = |dy_i|_1 times the largest |v| that query i attends to
///
/// the magnitudes are s_i for dq_i; sum_i p_ij s_i for dk_j; sum_i p_ij |dy_i|_1 for dv_j; the sum of p_ij s_i over the
/// pairs of a lag for its bias. Those of dq and dk are also multiplied by the largest derivative of the logarithm of a
/// feature; where pairs may be those of exact softmax, by the sum of it and of that of q.k. For features of both signs,
/// p_ij has |phi(q_i)| |phi(k_j)| in place of phi(q_i).phi(k_j), and |D_i| in place of D_i. Because of underflow, the
/// magnitudes count every p_ij, of any key of the sequence, as at least the square root of the smallest normal number,
/// and every p_ij s_i as at least the smallest normal number times the largest |dy_i|_1 and |v_j| of the sequence.
struct GradientReport {
  Engine engine = Engine::automatic;  // of the first sequence; automatic if there was nothing to compute
  Index recomputed_queries = 0;       // gradients of queries, keys and lags that failed their error bound, and were
  Index recomputed_keys = 0;          // recomputed
  Index recomputed_lags = 0;
  double error_bound = 0;           // of the gradients that are returned
  std::size_t workspace_bytes = 0;  // peak scratch memory of all threads
};

/// dL/dq (n_q,d), dL/dk (n_k,d), dL/dv (n_k,d_v), dL/d(bias) in the shape of the position's parameters, and that of the
/// biases of a grid's extra tokens (E,E+2).
template <OnlyReal T>
struct Gradients {
  Matrix<T> queries, keys, values, bias, extra;
  GradientReport report;
};

}  // namespace nprf
