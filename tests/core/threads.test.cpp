// SPDX-License-Identifier: MIT
#include "nprf/core/threads.hpp"

#include <atomic>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::core_threads {

namespace {

// restores the number of threads
struct RestoreThreads {
  ~RestoreThreads() { set_num_threads(before); }
  const Index before = num_threads();
};

}  // namespace

TEST_CASE("there is at least one thread", "[core]") { CHECK(num_threads() >= 1); }

TEST_CASE("num_threads returns the number that was set last", "[core]") {
  const RestoreThreads restore;
  for (const Index threads : {1, 3, 2, 4096, 1}) {
    set_num_threads(threads);
    CHECK(num_threads() == threads);
  }
}

TEST_CASE("set_num_threads rejects numbers outside 1 to 4096 and then changes nothing", "[core]") {
  const RestoreThreads restore;
  set_num_threads(3);
  for (const Index threads :
       {Index{0}, Index{-1}, Index{4097}, (Index{1} << 32) + 1, std::numeric_limits<Index>::min()}) {
    check_invalid([&] { set_num_threads(threads); }, {"threads: expected 1 to 4096", "got " + std::to_string(threads)});
    CHECK(num_threads() == 3);
  }
}

#if NPRF_USE_OPENMP
TEST_CASE("inside a parallel region of OpenMP a call has one thread", "[core]") {
  const RestoreThreads restore;
  set_num_threads(4);
  std::atomic<int> regions{0}, alone{0};
#pragma omp parallel num_threads(2)
  {
    if (omp_get_num_threads() > 1) ++regions;
    if (omp_get_num_threads() > 1 && num_threads() == 1) ++alone;
  }
  CHECK(regions == alone);
  CHECK(num_threads() == 4);
}
#endif

TEST_CASE("on_threads runs each worker at most once, worker 0 on the calling thread, and waits for all",
          "[core][threads]") {
  for (const Index workers : {1, 2, 3, 5, 16}) {
    std::mutex mutex;
    std::multiset<Index> ran;
    std::set<std::thread::id> threads;
    std::thread::id first;
    detail::on_threads(workers, [&](Index worker) {
      const std::scoped_lock lock(mutex);
      ran.insert(worker);
      threads.insert(std::this_thread::get_id());
      if (worker == 0) first = std::this_thread::get_id();
    });
    INFO(workers << " workers");
    CHECK(first == std::this_thread::get_id());
    CHECK(threads.size() == ran.size());  // each on a thread of its own
    for (const Index worker : ran) {
      CHECK((worker >= 0 && worker < workers));
      CHECK(ran.count(worker) == 1);
    }
    CHECK(static_cast<Index>(ran.size()) == workers);  // the test can create that many threads
  }
}

}  // namespace nprf::test::core_threads
