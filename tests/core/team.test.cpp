// SPDX-License-Identifier: MIT
#include "nprf/core/team.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_team {

namespace {

// body(team) for teams of 1 to 5 threads
template <class Body>
void with_teams(Body&& body) {
  for (std::size_t size = 1; size <= 5; ++size) {
    std::vector<Workspace> workspaces(size);
    INFO(size << " threads");
    body(Team(workspaces));
  }
}

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// sleeps long enough that tasks overlap, even on one core
void sleep_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

using Counts = std::vector<std::atomic<int>>;

bool each_is(const Counts& counts, int expected) {
  return std::all_of(counts.begin(), counts.end(), [=](const std::atomic<int>& count) { return count == expected; });
}

}  // namespace

TEST_CASE("a team has one thread for each workspace, and the first workspace is the caller's", "[core]") {
  Workspace alone;
  CHECK(Team(alone).size() == 1);
  CHECK(&Team(alone).workspace() == &alone);
  std::vector<Workspace> workspaces(3);
  CHECK(Team(workspaces).size() == 3);
  CHECK(&Team(workspaces).workspace() == &workspaces[0]);
}

TEST_CASE("a team of an object's workspaces makes those that are missing, and measures from then on", "[core]") {
  std::vector<Workspace> workspaces(1);
  {
    const Workspace::Scope scope(workspaces[0]);
    workspaces[0].take<char>(1000);
  }
  const Team three = team_of(workspaces, 3);
  CHECK(three.size() == 3);
  CHECK(workspaces.size() == 3);
  CHECK(three.peak_bytes() == 0);
  three.workspace().take<char>(64);
  workspaces[2].take<char>(128);
  CHECK(three.peak_bytes() == workspaces[0].peak_bytes() + workspaces[2].peak_bytes());
  CHECK(three.peak_bytes() >= 192);
  CHECK(team_of(workspaces, 2).size() == 2);
  CHECK(workspaces.size() == 3);
}

TEST_CASE("a team runs every task once", "[core]") {
  with_teams([](const Team& team) {
    for (const Index tasks : {0, 1, 2, 3, 4, 5, 6, 7, 1000}) {
      Counts runs(at(tasks));
      team.run(tasks, [&](Index task, Workspace&) { ++runs.at(at(task)); });
      INFO(tasks << " tasks");
      CHECK(each_is(runs, 1));
    }
  });
}

TEST_CASE("a team runs as many threads as it has workspaces, and each thread has its own", "[core][threads]") {
  with_teams([](const Team& team) {
    std::mutex mutex;
    std::map<std::thread::id, std::set<Workspace*>> scratch_of;
    std::set<Workspace*> all;
    std::atomic<Index> waiting{0};
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    team.run(team.size(), [&](Index, Workspace& scratch) {
      {
        const std::scoped_lock lock(mutex);
        scratch_of[std::this_thread::get_id()].insert(&scratch);
        all.insert(&scratch);
      }
      // no task ends before each thread has started one
      for (++waiting; waiting < team.size() && std::chrono::steady_clock::now() < give_up;) sleep_briefly();
    });
    CHECK(static_cast<Index>(scratch_of.size()) == team.size());
    CHECK(static_cast<Index>(all.size()) == team.size());
    for (const auto& [thread, scratches] : scratch_of) CHECK(scratches.size() == 1);
    CHECK(scratch_of[std::this_thread::get_id()].count(&team.workspace()) == 1);
  });
}

TEST_CASE("tasks that run at the same time have different scratch memory", "[core]") {
  with_teams([](const Team& team) {
    std::atomic<int> corrupted{0};
    team.run(60, [&](Index task, Workspace& scratch) {
      Index* const memory = scratch.take<Index>(100);
      std::fill_n(memory, 100, task);
      sleep_briefly();
      if (std::count(memory, memory + 100, task) != 100) ++corrupted;
    });
    CHECK(corrupted == 0);
  });
}

TEST_CASE("scratch memory of a task is released after it, and memory taken before the tasks is kept", "[core]") {
  for (std::size_t size = 1; size <= 5; ++size) {
    std::vector<Workspace> workspaces(size);
    const Team team(workspaces);
    double* const kept = team.workspace().take<double>(3);
    kept[2] = 17;
    const auto task = [](Index, Workspace& scratch) {
      double* const memory = scratch.take<double>(1000);
      std::fill_n(memory, 1000, 1.0);
    };
    team.run(50, task);
    team.run_tiles(50, 3, [&](Index i0, Index, Workspace& scratch) { task(i0, scratch); });
    team.run_pairs(7, [&](Index i, Index, Workspace& scratch) { task(i, scratch); });
    team.run_nested(7, [&](Index i, const Team& inner) { task(i, inner.workspace()); });
    CHECK(kept[2] == 17);
    INFO(size << " threads");
    for (const Workspace& workspace : workspaces) CHECK(workspace.peak_bytes() <= 64 + 1000 * sizeof(double));
  }
}

TEST_CASE("after a run each workspace has reserved memory for the largest task", "[core][threads]") {
  constexpr Index piece = 1 << 14, pieces = 64;
  std::vector<Workspace> workspaces(3);
  Team(workspaces).run(3, [](Index task, Workspace& scratch) {
    for (Index k = 0; task == 1 && k < pieces; ++k) scratch.take<std::byte>(piece);
  });
  // the thread that ran task 1 allocated growing blocks; the other workspaces reserved one block
  int reserved = 0;
  for (Workspace& workspace : workspaces) {
    std::byte* const first = workspace.take<std::byte>(piece);
    bool contiguous = true;
    for (Index k = 1; k < pieces; ++k) contiguous = workspace.take<std::byte>(piece) == first + k * piece && contiguous;
    reserved += contiguous ? 1 : 0;
  }
  CHECK(reserved >= 2);
}

TEST_CASE("an exception of a task is rethrown to the caller after all threads have stopped", "[core][threads]") {
  with_teams([](const Team& team) {
    for (const Index bad : {0, 1, 13}) {
      constexpr Index tasks = 5000;  // all of them would take a second
      std::atomic<int> inside{0}, started{0};
      std::string message;
      try {
        team.run(tasks, [&](Index task, Workspace& scratch) {
          ++started;
          struct Inside {
            explicit Inside(std::atomic<int>& count) : n(count) { ++n; }
            ~Inside() { --n; }
            std::atomic<int>& n;
          } const guard(inside);
          scratch.take<std::byte>(1000);
          if (task == bad) throw std::runtime_error("task " + std::to_string(task));
          sleep_briefly();
        });
      } catch (const std::runtime_error& error) {
        message = error.what();
      }
      INFO("task " << bad);
      CHECK(message == "task " + std::to_string(bad));
      CHECK(inside == 0);
      CHECK(started < tasks);  // the remaining tasks are skipped
    }
  });
}

TEST_CASE("one of several exceptions is rethrown to the caller, and the team can run again", "[core]") {
  with_teams([](const Team& team) {
    std::byte* first = nullptr;
    {
      const Workspace::Scope scope(team.workspace());
      first = team.workspace().take<std::byte>(1);
    }
    const auto all_throw = [&] {
      team.run(40, [](Index, Workspace& scratch) {
        scratch.take<std::byte>(1000);
        sleep_briefly();
        throw std::runtime_error("task");
      });
    };
    CHECK_THROWS_AS(all_throw(), std::runtime_error);
    CHECK_THROWS_AS(team.run_pairs(3, [](Index, Index, Workspace&) { throw std::logic_error("pair"); }),
                    std::logic_error);
    CHECK_THROWS_AS(team.run_tiles(30, 7, [](Index, Index, Workspace&) { throw std::logic_error("tile"); }),
                    std::logic_error);
    CHECK_THROWS_AS(team.run_nested(7,
                                    [](Index, const Team& inner) {
                                      inner.workspace().take<std::byte>(100);
                                      throw std::logic_error("nested");
                                    }),
                    std::logic_error);
    Counts runs(20);
    team.run(20, [&](Index task, Workspace&) { ++runs[at(task)]; });
    CHECK(each_is(runs, 1));
    const Workspace::Scope scope(team.workspace());
    CHECK(team.workspace().take<std::byte>(1) == first);
  });
}

namespace {

thread_local int polls = 0, polls_left = 0;

struct Stopped {};

void count_or_stop() {
  ++polls;
  if (--polls_left < 0) throw Stopped();
}

}  // namespace

TEST_CASE("the calling thread polls between tasks, and what a poll throws ends the run", "[core]") {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4}}) {
    INFO(size << " threads");
    std::vector<Workspace> workspaces(size);
    const Team team(workspaces, count_or_stop);
    Counts runs(50);
    polls = 0, polls_left = 1000;
    team.run(50, [&](Index task, Workspace&) {
      sleep_briefly();
      ++runs.at(at(task));
    });
    CHECK(each_is(runs, 1));
    CHECK(polls >= 1);
    if (size == 1) CHECK(polls == 50);

    std::atomic<int> more = 0;
    polls_left = 2;
    CHECK_THROWS_AS(team.run(1000,
                             [&](Index, Workspace&) {
                               sleep_briefly();
                               ++more;
                             }),
                    Stopped);
    CHECK(more < 1000);
  }
}

TEST_CASE("a poll or another exception ends the nested teams of all threads", "[core][threads]") {
  constexpr Index inner_tasks = 20000;  // all of them would take seconds
  for (const std::size_t size : {std::size_t{1}, std::size_t{4}}) {
    INFO(size << " threads");
    std::vector<Workspace> workspaces(size);
    const Team polled(workspaces, count_or_stop), other(workspaces);
    std::atomic<Index> done = 0;
    const auto all_start = [&](const Team& team, bool one_throws) {
      std::atomic<std::size_t> waiting = 0;
      done = 0;
      team.run_nested(static_cast<Index>(size), [&](Index task, const Team& inner) {
        for (++waiting; waiting < size;) sleep_briefly();
        inner.run(inner_tasks, [&](Index k, Workspace&) {
          sleep_briefly();
          ++done;
          if (one_throws && task == 0 && k == 3) throw std::runtime_error("nested");
        });
      });
    };
    polls_left = 5;
    CHECK_THROWS_AS(all_start(polled, false), Stopped);
    CHECK(done < inner_tasks);
    CHECK_THROWS_AS(all_start(other, true), std::runtime_error);
    CHECK(done < inner_tasks);
    polls_left = 1000;
    Counts runs(40);
    polled.run_nested(
        40, [&](Index task, const Team& inner) { inner.run(1, [&](Index, Workspace&) { ++runs[at(task)]; }); });
    CHECK(each_is(runs, 1));
  }
}

TEST_CASE("tiles cover every row once, and only the last tile may be smaller", "[core]") {
  with_teams([](const Team& team) {
    for (const Index rows : {0, 1, 6, 7, 8, 13, 14, 15, 100})
      for (const Index tile : {1, 7, 128}) {
        Counts visits(at(rows));
        std::atomic<int> wrong{0};
        team.run_tiles(rows, tile, [&](Index i0, Index count, Workspace&) {
          if (i0 % tile != 0 || count != std::min(tile, rows - i0) || count < 1) ++wrong;
          for (Index i = i0; i < i0 + count; ++i) ++visits.at(at(i));
        });
        INFO(rows << " rows in tiles of " << tile);
        CHECK(each_is(visits, 1));
        CHECK(wrong == 0);
      }
  });
}

TEST_CASE("run_pairs runs each pair once, in a fixed order for each block, and no two that share a block at a time",
          "[core][threads]") {
  std::map<Index, std::vector<std::vector<Index>>> orders_of_rows, orders_of_columns;  // for one thread
  with_teams([&](const Team& team) {
    for (const Index blocks : {0, 1, 2, 3, 5, 8}) {
      Counts pairs(at(blocks * blocks)), rows_in_use(at(blocks)), columns_in_use(at(blocks));
      std::vector<std::vector<Index>> row_order(at(blocks)), column_order(at(blocks));
      std::atomic<int> shared{0};
      std::mutex mutex;
      team.run_pairs(blocks, [&](Index i, Index j, Workspace&) {
        if (++rows_in_use.at(at(i)) > 1) ++shared;
        if (++columns_in_use.at(at(j)) > 1) ++shared;
        {
          const std::scoped_lock lock(mutex);
          row_order[at(i)].push_back(j);
          column_order[at(j)].push_back(i);
        }
        sleep_briefly();
        ++pairs[at(i * blocks + j)];
        --rows_in_use[at(i)];
        --columns_in_use[at(j)];
      });
      INFO(blocks << " blocks");
      CHECK(each_is(pairs, 1));
      CHECK(shared == 0);
      if (team.size() == 1) {
        orders_of_rows[blocks] = row_order;
        orders_of_columns[blocks] = column_order;
      }
      CHECK(row_order == orders_of_rows[blocks]);
      CHECK(column_order == orders_of_columns[blocks]);
    }
  });
}

TEST_CASE("run_nested runs each task once, as many as possible on one thread and the remaining ones on all threads",
          "[core][threads]") {
  with_teams([](const Team& team) {
    for (const Index tasks : {0, 1, 2, 3, 4, 5, 6, 11}) {
      Counts runs(at(tasks)), inner_runs(at(tasks * 10));
      std::atomic<Index> alone{0}, with_all{0};
      team.run_nested(tasks, [&](Index task, const Team& inner) {
        ++runs.at(at(task));
        if (inner.size() == team.size()) ++with_all;
        if (inner.size() == 1) ++alone;
        inner.run(10, [&](Index i, Workspace& scratch) {
          scratch.take<double>(10);
          ++inner_runs[at(task * 10 + i)];
        });
      });
      INFO(tasks << " tasks");
      CHECK(each_is(runs, 1));
      CHECK(each_is(inner_runs, 1));
      if (team.size() == 1) continue;
      CHECK(alone == tasks / team.size() * team.size());
      CHECK(with_all == tasks % team.size());
    }
  });
}

TEST_CASE("the teams of run_nested do not share scratch memory", "[core][threads]") {
  with_teams([](const Team& team) {
    std::atomic<int> corrupted{0};
    team.run_nested(3 * team.size() + 2, [&](Index task, const Team& inner) {
      Index* const memory = inner.workspace().take<Index>(100);
      std::fill_n(memory, 100, task);
      inner.run(4, [&](Index i, Workspace& scratch) {
        std::fill_n(scratch.take<Index>(100), 100, -i - 1);
        sleep_briefly();
      });
      if (std::count(memory, memory + 100, task) != 100) ++corrupted;
    });
    CHECK(corrupted == 0);
  });
}

}  // namespace nprf::test::core_team
