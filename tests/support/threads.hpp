// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/threads.hpp"

namespace nprf::test {

/// Sets the number of threads, and restores the previous number in its destructor.
class Threads {
 public:
  explicit Threads(Index threads) { set_num_threads(threads); }
  ~Threads() { set_num_threads(m_before); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  Index m_before = num_threads();
};

}  // namespace nprf::test
