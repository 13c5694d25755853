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
  struct Rows {
    Matrix<T> normalized;           // (n,d)
    Vector<T> scale;                // (n)  normalisation factors
    std::vector<Index> short_rows;  // rows whose factor would overflow (normalize/lifted_rows.hpp)
  };
  struct Values {
    Matrix<T> U;                 // (n_k,d_v+1)  [v 1], 0 for non-finite values
    int exponent = 0;            // U's values, y and the largest values are divided by 2^exponent
    T largest = 0;               // the largest |v| in U: at most 1, or 2 near overflow. It may be larger if U is not
                                 // scaled because smaller values would lose precision
    Vector<T> largest_attended;  // (n_q)  the largest |v| that each query attends to
  };
  // maxima over the rows (fallback/row_error_bound.hpp). condition: of the condition of a row. fft: of the bound of the
  // errors by an FFT, over the rows that were not recomputed. other: of the bound of all other errors
  struct Errors {
    double condition = 0, fft = 0, other = 0;
  };
  struct Padding {
    Eigen::Array<bool, Eigen::Dynamic, 1> mask;  // of all keys: false is padding; empty: all are true
    Index length = 0;                            // keys with this index and later ones are padding
  };

  Rows queries, keys;
  Matrix<T> A, B;  // (n_q,r) (n_k,r)
  Matrix<T> r;     // (n_q,rank)  the vectors of QueryBiases
  Values values;
  Vector<double> key_log_scales;  // (n_k)  e_j of toeplitz::Factors; empty: there are none
  // (n_q); empty: there are no exact pairs. The weight of an exact pair, in the unit of the far weights and of
  // denominator_i, is
  //     exp(q_i.k_j + b_ij - row_log_scales_i)
  // where b_ij is relative to LagProblem::unit_bias(i); in a row of exact softmax, to the largest bias of the row
  Vector<double> row_log_scales;
  bool engine_used_log_scales = false;  // true: denominator_i is divided by exp(M_i) of toeplitz::Factors; false: by
                                        // exp of the largest log-scale of all keys
  Matrix<T> y;                          // (n_q,d_v)
  Vector<T> denominator;                // (n_q)  0 for rows that are empty or were computed in double
  std::vector<Index> recomputed_rows, softmax_rows;  // recomputed from their features; by exact softmax
  Errors errors;
  std::vector<Index> unattended_keys;  // keys that no query attends to
  std::vector<Index> exact_keys;       // the sinks and the salient keys, increasing
  Padding padding;
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
/// pairs of a lag for its bias. The magnitudes of dq and dk are also multiplied by the largest derivative of the
/// logarithm of a feature; where pairs may have the weights of exact softmax, by the sum of this derivative and the
/// largest derivative of q.k. For features of both signs, p_ij has |phi(q_i)| |phi(k_j)| in place of phi(q_i).phi(k_j),
/// and |D_i| in place of D_i. Because of underflow, the magnitudes count every p_ij, of any key of the sequence, as at
/// least the square root of the smallest normal number, and every p_ij s_i as at least the smallest normal number times
/// the largest |dy_i|_1 and |v_j| of the sequence. The gradients of the vectors of queries and lags (QueryBiased) have
/// no bound.
struct GradientReport {
  Engine engine = Engine::automatic;  // of the first sequence; automatic if there was nothing to compute
  Index recomputed_queries = 0;       // gradients of queries, keys and lags that failed their error bound, and were
  Index recomputed_keys = 0;          // recomputed
  Index recomputed_lags = 0;
  double error_bound = 0;           // the largest bound of a gradient that is returned
  std::size_t workspace_bytes = 0;  // peak scratch memory of all threads
};

/// The gradients dL/dq (n_q,d), dL/dk (n_k,d), dL/dv (n_k,d_v), and dL/d(bias) in the shape of the position's
/// parameters. `extra` (E,E+2) has the gradients of the biases of a grid's E extra tokens: in row e, column 0 is of
/// query e and all cells, column 1 of all cells and key e, and column 2 + f of query e and key f. `lag_vectors`
/// (rank,lags) has those of the vectors of lags (QueryBiased); dL/dq then has the queries' channels of r, too.
template <OnlyReal T>
struct Gradients {
  Matrix<T> queries, keys, values, bias, extra, lag_vectors;
  GradientReport report;
};

}  // namespace nprf
