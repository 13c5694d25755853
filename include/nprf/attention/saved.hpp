// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "nprf/core/lag_weights.hpp"

namespace nprf {

template <class F, class P>
class Attention;

/// What Attention::forward keeps for backward: O(n (d + r + d_v)) memory. Opaque; may be used again for another call.
template <Real T>
class Saved {
  template <class F, class P>
  friend class Attention;

  std::shared_ptr<const char> m_attention;  // whose forward filled this; null: nobody's
  Matrix<T> m_q, m_k;                       // (n_q,d) (n_k,d)  normalised
  Vector<T> m_q_scale, m_k_scale;           // (n_q) (n_k)
  Matrix<T> m_A, m_B, m_U;                  // (n_q,r) (n_k,r) (n_k,d_v+1)
  Matrix<T> m_y;                            // (n_q,d_v)
  Vector<T> m_denominator;                  // (n_q), 0 for the rows that the product says nothing of
  std::vector<Index> m_repaired;            // rows computed one by one
  LagWeights<T> m_c;
  Engine m_engine = Engine::automatic;
  Index m_offset = 0;
};

/// dL/dq (n_q,d), dL/dk (n_k,d), dL/dv (n_k,d_v), and the bias in the shape of the position's parameters.
template <Real T>
struct Gradients {
  Matrix<T> queries, keys, values, bias;
};

}  // namespace nprf
