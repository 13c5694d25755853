// SPDX-License-Identifier: MIT

// Attention in forked processes and on threads of small stacks.

#include "nprf/config.hpp"

#if __has_include(<sys/wait.h>) && __has_include(<pthread.h>)

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nprf/attention/attention.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_fork {

namespace {

constexpr Index n = 1500, d = 8;

Attention<PositiveFeatures<float>, RelativePosition<float>> attention(Engine engine) {
  return {
      orf<float>(d, 16, 1),
      RelativePosition<float>(random_table<float>(n, 2)),
      {.direction = engine == Engine::block_causal ? Direction::causal : Direction::bidirectional, .engine = engine}};
}

}  // namespace

TEST_CASE("a forked child computes attention on one thread", "[attention][threads]") {
  const Threads two(2);
  const auto a = attention(Engine::lanes);
  const Tokens<float> x = random_tokens<float>(n, n, d, d);
  const Matrix<float> y = a(x.q, x.k, x.v);  // starts threads, which the child does not inherit
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    set_num_threads(1);
    _exit(same_bits(a(x.q, x.k, x.v), y) ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

#if !NPRF_TEST_SANITIZED  // sanitizers make frames several times as large

TEST_CASE("a call uses less than 256 KiB of its thread's stack", "[attention][threads]") {
  struct Call {
    Engine engine;
    bool done = false;
  };
  for (const Engine engine : engines()) {
    Call call{engine};
    pthread_attr_t attributes;
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
    pthread_t thread;
    const auto body = [](void* argument) -> void* {
      auto* it = static_cast<Call*>(argument);
      set_num_threads(1);
      const auto a = attention(it->engine);
      const Tokens<float> x = random_tokens<float>(n, n, d, d);
      Saved<float> saved;
      const Matrix<float> y = a.forward(x.q, x.k, x.v, saved);
      it->done = a.backward(saved, x.v).queries.rows() == n;
      return nullptr;
    };
    REQUIRE(pthread_create(&thread, &attributes, body, &call) == 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    CHECK(call.done);
  }
}

#endif

}  // namespace nprf::test::attention_fork

#endif
