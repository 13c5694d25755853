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

inline std::atomic<Index> threads_asked_for{0};  // 0: as many as the machine has

}  // namespace detail
#endif

/// How many threads a call may use; 1 inside somebody's OpenMP region. At first OpenMP's own number, or the machine's.
inline Index num_threads() {
#if NPRF_USE_OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  const Index asked_for = detail::threads_asked_for;
  return asked_for > 0 ? asked_for : std::max<Index>(std::thread::hardware_concurrency(), 1);
#endif
}

/// Sets it: with OpenMP for the calling thread, as omp_set_num_threads does, else for the process. No result depends on
/// it. Throws InvalidArgument unless 1 <= threads <= 4096.
inline void set_num_threads(Index threads) {
  require(1 <= threads && threads <= 4096, "threads: expected 1 to 4096, got ", threads);
#if NPRF_USE_OPENMP
  omp_set_num_threads(static_cast<int>(threads));
#else
  detail::threads_asked_for = threads;
#endif
}

namespace detail {

// body(worker) for some of the workers 0..workers-1, 0 among them, each on a thread of its own; must not throw
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
    // no memory or no more threads: those that there are do all
  }
  body(Index{0});
  for (std::thread& other : others) other.join();
#endif
}

}  // namespace detail

}  // namespace nprf
