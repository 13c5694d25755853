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

  MatrixRef<T> matrix(Matrix<T> SavedSequence<T>::*member, Index rows, Index cols) const {
    if (!m_saved) return m_workspace.template matrix<T>(rows, cols);
    resize(m_saved->*member, rows, cols);
    return m_saved->*member;
  }
  Eigen::Ref<Vector<T>> vector(Vector<T> SavedSequence<T>::*member, Index size) const {
    if (!m_saved) return m_workspace.template vector<T>(size);
    resize(m_saved->*member, size);
    return m_saved->*member;
  }

 private:
  SavedSequence<T>* m_saved;
  Workspace& m_workspace;
};

}  // namespace nprf
