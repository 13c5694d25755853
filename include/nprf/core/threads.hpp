// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

#if NPRF_USE_OPENMP
#include <omp.h>
#else
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>
#endif

namespace nprf {

#if !NPRF_USE_OPENMP
namespace detail {

inline std::atomic<Index> requested_threads{0};  // 0: as many as the machine has

}  // namespace detail
#endif

/// The number of threads that a call may use; 1 inside a parallel region of OpenMP. The default is OpenMP's own, or
/// without OpenMP the number of hardware threads.
inline Index num_threads() {
#if NPRF_USE_OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  const Index requested = detail::requested_threads;
  return requested > 0 ? requested : std::max<Index>(std::thread::hardware_concurrency(), 1);
#endif
}

/// Sets the number of threads: with OpenMP for the calling thread, as omp_set_num_threads does, otherwise for the
/// process. Results are bitwise the same for any number. Throws InvalidArgument unless 1 <= threads <= 4096.
inline void set_num_threads(Index threads) {
  require(1 <= threads && threads <= 4096, "threads: expected 1 to 4096, got ", threads);
#if NPRF_USE_OPENMP
  omp_set_num_threads(static_cast<int>(threads));
#else
  detail::requested_threads = threads;
#endif
}

namespace detail {

// Calls body(worker) for the workers 0..workers-1, each on a thread of its own. If fewer threads can be created, it is
// called for fewer workers, but always for worker 0. body must not throw.
template <class Body>
void on_threads(Index workers, Body&& body) {
#if NPRF_USE_OPENMP
#pragma omp parallel num_threads(static_cast<int>(workers))
  body(static_cast<Index>(omp_get_thread_num()));
#else
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<std::size_t>(workers - 1));
    for (Index worker = 1; worker < workers; ++worker) others.emplace_back([&body, worker] { body(worker); });
  } catch (...) {
    // no memory or no more threads: the threads created so far do all the work
  }
  body(Index{0});
  for (std::thread& other : others) other.join();
#endif
}

}  // namespace detail

}  // namespace nprf
