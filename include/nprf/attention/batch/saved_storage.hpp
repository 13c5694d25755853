// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/saved.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// Storage for results of forward: members of a SavedSequence, or scratch memory if nothing is saved.
template <Real T>
class SavedStorage {
 public:
  /// `saved` may be null.
  SavedStorage(SavedSequence<T>* saved, Workspace& workspace) : m_saved(saved), m_workspace(workspace) {}

  /// A member of the SavedSequence, which pointers to members lead to: vector(n_q, &Saved::queries,
  /// &Saved::Rows::scale).
  template <class... Members>
  MatrixRef<T> matrix(Index rows, Index cols, Members... members) const {
    if (!m_saved) return m_workspace.template matrix<T>(rows, cols);
    Matrix<T>& x = (*m_saved.*....*members);
    resize(x, rows, cols);
    return x;
  }
  template <class... Members>
  Eigen::Ref<Vector<T>> vector(Index size, Members... members) const {
    if (!m_saved) return m_workspace.template vector<T>(size);
    Vector<T>& x = (*m_saved.*....*members);
    resize(x, size);
    return x;
  }

 private:
  SavedSequence<T>* m_saved;
  Workspace& m_workspace;
};

}  // namespace nprf
