// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <span>

#include "nprf/core/threads.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The threads of one call, and each one's scratch memory. Whoever takes a Team cuts its work into tasks that do not
/// depend on the number of threads, so that no bit of the result does.
///
///     team.run(tasks, [&](Index task, Workspace& scratch) { ... });
class Team {
 public:
  /// One thread for each workspace; at least one.
  explicit Team(std::span<Workspace> workspaces) : m_workspaces(workspaces) {}
  /// The calling thread alone.
  explicit Team(Workspace& workspace) : m_workspaces(&workspace, 1) {}

  Index size() const { return static_cast<Index>(m_workspaces.size()); }

  /// The calling thread's own scratch memory.
  Workspace& workspace() const { return m_workspaces.front(); }

  /// body(task, scratch) once for each task < tasks, in any order, on any thread; what it takes is given back after it.
  /// Throws what a body throws, when all have stopped. A body must not run the team again.
  template <class Body>
  void run(Index tasks, Body&& body) const {
    if (size() == 1 || tasks <= 1) {
      for (Index task = 0; task < tasks; ++task) one(task, workspace(), body);
      return;
    }
    std::atomic<Index> next{0};
    std::atomic<std::size_t> largest{0};  // of the tasks' scratch memory
    std::exception_ptr error;
    std::mutex error_mutex;
    // OpenMP allocates where a region has other numbers of threads than the one before: a few may find nothing to do
    const Index workers = NPRF_USE_OPENMP ? size() : std::min(size(), tasks);
    detail::on_threads(workers, [&](Index worker) {
      try {
        std::size_t most = 0;
        for (Index task; (task = next++) < tasks;)
          most = std::max(most, one(task, m_workspaces[static_cast<std::size_t>(worker)], body));
        for (std::size_t seen = largest; seen < most && !largest.compare_exchange_weak(seen, most);) continue;
      } catch (...) {
        next = tasks;
        const std::scoped_lock lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    });
    if (error) std::rethrow_exception(error);
    // which thread gets which task is chance: the next call shall find memory for any
    for (Workspace& each : m_workspaces) each.reserve(largest);
  }

  /// Rows that go through the first two caches together.
  static constexpr Index tile = 128;

  /// The same for tiles of rows: body(i0, count, scratch).
  template <class Body>
  void run_tiles(Index rows, Index of, Body&& body) const {
    run((rows + of - 1) / of,
        [&](Index task, Workspace& scratch) { body(task * of, std::min(of, rows - task * of), scratch); });
  }
  template <class Body>
  void run_tiles(Index rows, Body&& body) const {
    run_tiles(rows, tile, body);
  }

  /// body(task, team) for each task, which may run that team: as many rounds of whole tasks as fill all threads with a
  /// task each, then what remains task by task with all threads.
  template <class Body>
  void run_nested(Index tasks, Body&& body) const {
    const Index alone = size() == 1 ? 0 : tasks / size() * size();
    run(alone, [&](Index task, Workspace& scratch) { body(task, Team(scratch)); });
    for (Index task = alone; task < tasks; ++task) {
      const Workspace::Scope scope(workspace());
      body(task, *this);
    }
  }

  /// body(i, j, scratch) for all i, j < blocks. No two that run at a time share i or j, and each i meets all j in one
  /// order, as each j meets all i: a body may add to what belongs to its i and to what belongs to its j.
  template <class Body>
  void run_pairs(Index blocks, Body&& body) const {
    for (Index shift = 0; shift < blocks; ++shift)
      run(blocks, [&](Index i, Workspace& scratch) { body(i, (i + shift) % blocks, scratch); });
  }

 private:
  template <class Body>
  static std::size_t one(Index task, Workspace& workspace, Body& body) {
    const Workspace::Scope scope(workspace);
    body(task, workspace);
    return scope.peak_bytes();
  }

  std::span<Workspace> m_workspaces;
};

/// The matrix (rows,cols) that write(matrix, team) fills in, by the calling thread alone.
template <Real T, class Write>
Matrix<T> filled(Index rows, Index cols, Write&& write) {
  Matrix<T> x(rows, cols);
  Workspace workspace;
  write(x, Team(workspace));
  return x;
}

}  // namespace nprf
