// SPDX-License-Identifier: MIT
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>

#include "nprf/core/threads.hpp"
#include "nprf/core/types.hpp"

namespace nprf::python {

namespace nb = nanobind;

/// The exception that interrupted a call, for example KeyboardInterrupt, is the current one of Python.
struct Interrupted {};

namespace detail {

inline thread_local std::chrono::steady_clock::time_point last_poll;

/// Runs the handlers of signals that have arrived, at most every 20 ms. Python runs them in its main thread only.
inline void poll_signals() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_poll < std::chrono::milliseconds(20)) return;
  last_poll = now;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw Interrupted();
}

/// Whether this process is a fork, where OpenMP's threads do not exist, and a call that would use them would wait for
/// ever.
inline std::atomic<bool> is_forked = false;

/// For one call, another number of threads; 0: as many as before; in a fork one.
class ThreadsOfCall {
 public:
  explicit ThreadsOfCall(Index threads) {
    const Index before = num_threads(), now = is_forked ? 1 : threads > 0 ? threads : before;
    if (now == before) return;
    set_num_threads(now);
    m_before = before;
  }
  ~ThreadsOfCall() {
    if (m_before > 0) set_num_threads(m_before);
  }
  ThreadsOfCall(const ThreadsOfCall&) = delete;
  ThreadsOfCall& operator=(const ThreadsOfCall&) = delete;

 private:
  Index m_before = 0;  // 0: they stay as they are
};

}  // namespace detail

/// Runs `body` without the GIL, on `threads` threads.
template <class Body>
void without_gil(Index threads, Body&& body) {
  detail::last_poll = std::chrono::steady_clock::now();
  try {
    const nb::gil_scoped_release release;
    const detail::ThreadsOfCall scope(threads);
    body();
  } catch (const Interrupted&) {
    throw nb::python_error();
  }
}

}  // namespace nprf::python
