// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "nprf/core/function_ref.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The threads of one call, each with its own scratch memory. A function that uses a Team divides its work into tasks
/// that do not depend on the number of threads, so that results are bitwise reproducible for any thread count.
///
///     team.run(tasks, [&](Index task, Workspace& scratch) { ... });
class Team {
 public:
  /// The team has one thread for each workspace; at least one workspace is required. If `poll` is not null, the calling
  /// thread calls it between tasks, also between those of nested teams (run_nested). An exception of `poll` ends a run
  /// as an exception of a task does.
  explicit Team(std::span<Workspace> workspaces, void (*poll)() = nullptr) : m_workspaces(workspaces), m_poll(poll) {}
  /// A team of the calling thread only.
  explicit Team(Workspace& workspace) : m_workspaces(&workspace, 1) {}

  Index size() const { return static_cast<Index>(m_workspaces.size()); }

  /// The sum of the workspaces' peak_bytes(): the scratch memory if all threads used the most at the same time.
  std::size_t peak_bytes() const {
    std::size_t sum = 0;
    for (const Workspace& each : m_workspaces) sum += each.peak_bytes();
    return sum;
  }

  /// The scratch memory of the calling thread.
  Workspace& workspace() const { return m_workspaces.front(); }

  /// Calls body(task, scratch) once for each task < tasks, in any order, on any thread. The scratch memory that a call
  /// of body takes is released at the end of that call. If a call throws, the tasks that have not started are skipped,
  /// and the first exception is rethrown after all threads have stopped. A body must not run this team; run_nested()
  /// gives it a team that it may run.
  template <class Body>
  void run(Index tasks, Body&& body) const {
    const auto call = [&](Index task, Workspace& scratch, const std::atomic<bool>*) { body(task, scratch); };
    run_until_error(tasks, call);
  }

  /// The default number of rows in a tile, chosen so that a tile fits into the first two levels of cache.
  static constexpr Index tile = 128;

  /// Calls body(i0, count, scratch) for each tile of rows i0..i0+count-1, of tile_rows rows or fewer.
  template <class Body>
  void run_tiles(Index rows, Index tile_rows, Body&& body) const {
    run((rows + tile_rows - 1) / tile_rows, [&](Index task, Workspace& scratch) {
      body(task * tile_rows, std::min(tile_rows, rows - task * tile_rows), scratch);
    });
  }
  template <class Body>
  void run_tiles(Index rows, Body&& body) const {
    run_tiles(rows, tile, body);
  }

  /// Calls body(task, team) for each task; a body may run the team that it gets. The first tasks / size() * size()
  /// tasks get one thread each. The remaining tasks run one after another, each with all threads. If a call of body
  /// throws, the teams of the other calls throw at the start of their next task.
  template <class Body>
  void run_nested(Index tasks, Body&& body) const {
    const Index single_threaded = size() == 1 ? 0 : tasks / size() * size();
    const auto call = [&](Index task, Workspace& scratch, const std::atomic<bool>* has_failed) {
      const bool is_calling_thread = &scratch == &workspace();
      body(task, Team(scratch, is_calling_thread ? m_poll : nullptr, has_failed));
    };
    run_until_error(single_threaded, call);
    for (Index task = single_threaded; task < tasks; ++task) {
      const Workspace::Scope scope(workspace());
      body(task, *this);
    }
  }

  /// Calls body(i, j, scratch) for all i, j < blocks. Calls that run at the same time differ in i and in j. For each i
  /// the order of the j is fixed, and for each j the order of the i. So a body may add to the data of block i and to
  /// the data of block j, and the sums are bitwise reproducible.
  template <class Body>
  void run_pairs(Index blocks, Body&& body) const {
    for (Index shift = 0; shift < blocks; ++shift)
      run(blocks, [&](Index i, Workspace& scratch) { body(i, (i + shift) % blocks, scratch); });
  }

 private:
  // what a nested team throws to end its tasks, after a task of another thread has thrown an exception
  struct OtherThreadFailed {};

  Team(Workspace& workspace, void (*poll)(), const std::atomic<bool>* has_failed)
      : m_workspaces(&workspace, 1), m_poll(poll), m_has_failed(has_failed) {}

  // throws if the work is to end
  void check() const {
    if (m_has_failed && *m_has_failed) throw OtherThreadFailed();
    if (m_poll) m_poll();
  }

  // body(task, scratch, has_failed): *has_failed is whether another call has thrown; has_failed is null if no other
  // calls run at the same time
  using Call = FunctionRef<void(Index, Workspace&, const std::atomic<bool>*)>;

  void run_until_error(Index tasks, Call body) const {
    if (size() == 1 || tasks <= 1) {
      for (Index task = 0; task < tasks; ++task) {
        check();
        run_task(task, workspace(), body, m_has_failed);
      }
      return;
    }
    check();  // at least once: the other threads may take all tasks
    std::atomic<Index> next{0};
    std::atomic<std::size_t> largest{0};  // the most scratch memory that a task took, in bytes
    std::atomic<bool> has_failed{false};
    std::exception_ptr error;
    std::mutex error_mutex;
    // OpenMP allocates memory if a region has another number of threads than the previous one. So all threads run, even
    // if there are fewer tasks.
    const Index workers = NPRF_USE_OPENMP ? size() : std::min(size(), tasks);
    detail::on_threads(workers, [&](Index worker) {
      try {
        std::size_t most = 0;
        for (Index task; (task = next++) < tasks;) {
          if (worker == 0) check();
          most = std::max(most, run_task(task, m_workspaces[static_cast<std::size_t>(worker)], body, &has_failed));
        }
        for (std::size_t old = largest; old < most && !largest.compare_exchange_weak(old, most);) continue;
      } catch (...) {
        next = tasks;
        const std::scoped_lock lock(error_mutex);
        if (!error) error = std::current_exception();
        has_failed = true;
      }
    });
    if (error) std::rethrow_exception(error);
    // Which thread gets which task is random. Each workspace reserves memory for any task, so that the next call of the
    // same shapes allocates nothing.
    for (Workspace& each : m_workspaces) each.reserve(largest);
  }

  static std::size_t run_task(Index task, Workspace& workspace, Call body, const std::atomic<bool>* has_failed) {
    const Workspace::Scope scope(workspace);
    body(task, workspace, has_failed);
    return scope.peak_bytes();
  }

  std::span<Workspace> m_workspaces;
  void (*m_poll)() = nullptr;
  const std::atomic<bool>* m_has_failed = nullptr;  // whether a run that this team is nested in has failed
};

/// Returns a team of `threads` threads for one call of an object that keeps its workspaces. Adds the workspaces that
/// are missing for so many threads, and resets the peaks of all.
inline Team team_of(std::vector<Workspace>& workspaces, Index threads, void (*poll)() = nullptr) {
  const auto count = static_cast<std::size_t>(threads);
  if (workspaces.size() < count) workspaces.resize(count);
  for (Workspace& workspace : workspaces) workspace.reset_peak();
  return Team(std::span(workspaces).first(count), poll);
}

/// The matrix (rows,cols) that write(matrix, team) fills, with a team of the calling thread only.
template <Real T, class Write>
Matrix<T> filled(Index rows, Index cols, Write&& write) {
  Matrix<T> x(rows, cols);
  Workspace workspace;
  write(x, Team(workspace));
  return x;
}

}  // namespace nprf
