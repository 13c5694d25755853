// SPDX-License-Identifier: MIT
//
// A call of MultiHeadAttention or a step of a Decoder that is like an earlier one allocates nothing: all of malloc's
// family is counted, so that Eigen's, FFTW's and OpenMP's own allocations count too. A program of its own, because it
// replaces malloc.

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "nprf/nprf.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NPRF_COUNTS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NPRF_COUNTS 0
#endif
#endif
#if !defined(NPRF_COUNTS) && defined(__GLIBC__)
#define NPRF_COUNTS 1
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<int> count{0};
}  // namespace

#if NPRF_COUNTS
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) {
  count += counting;
  return __libc_malloc(size);
}
void* calloc(std::size_t number, std::size_t size) {
  count += counting;
  return __libc_calloc(number, size);
}
void* realloc(void* memory, std::size_t size) {
  count += counting;
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  count += counting;
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  *memory = memalign(alignment, size);
  return *memory ? 0 : 12;
}
}
#endif

namespace {

using namespace nprf;

constexpr Index batch = 2, heads = 3, d = 16, d_v = 8;
int failures = 0;

struct Array {
  Array(Index tokens, Index channels)
      : values(Vector<float>::Random(batch * heads * tokens * channels)),
        view{values.data(), batch, heads, tokens, channels} {}
  Vector<float> values;
  HeadsView<float> view;
};

template <class Call>
void check(const std::string& what, Call&& call) {
  call();
  // threads share tasks by chance: then a few calls, none of which may allocate
  count = 0;
  counting = true;
  for (int again = 0; again < (num_threads() > 1 ? 5 : 1); ++again) call();
  counting = false;
  if (count == 0) return;
  std::printf("%s: %d allocations\n", what.c_str(), count.load());
  ++failures;
}

template <class F, class P>
void check_all(const std::string& what, const MultiHeadAttention<F, P>& attention, Index n, const CallOptions& call) {
  Array q(n, d), k(n, d), v(n, d_v), y(n, d_v), dq(n, d), dk(n, d), dv(n, d_v);
  Saved<float> saved;
  std::vector<Matrix<float>> dbias, dextra;
  check(what + ", call", [&] { attention(q.view, k.view, v.view, y.view, call); });
  check(what + ", forward", [&] { attention.forward(q.view, k.view, v.view, y.view, saved, call); });
  check(what + ", backward", [&] { attention.backward(saved, y.view, dq.view, dk.view, dv.view, dbias, &dextra); });
}

// steps in which tokens enter the ring and leave it, and prompts after a reset
template <class P>
void check_decoder(const std::string& what, const P& position, Index near) {
  const MultiHeadAttention attention(orf<float>(d, 24, 1), position, {.direction = Direction::causal, .near = near});
  Decoder decoder(attention, {.batch = batch, .rollback = 3});
  Array q(100, d), k(100, d), v(100, d_v), y(100, d_v), q1(1, d), k1(1, d), v1(1, d_v), y1(1, d_v);
  Report report;
  check(what + ", prefill", [&] {
    decoder.reset();
    decoder.prefill(q.view, k.view, v.view, y.view);
  });
  const std::vector<Index> lengths{1, 0};
  check(what + ", step", [&] {
    decoder.step(q1.view, k1.view, v1.view, y1.view, {.lengths = lengths, .report = &report});
    decoder.rollback(0, 1);
    decoder.step(q1.view, k1.view, v1.view, y1.view);
  });
}

// steps, among them the first of a chunk, of a state whose memory has room for their tokens
void check_chunks(const std::string& what) {
  constexpr Index prompt = 1030, steps = 66, most = 2000;
  Vector<float> table(2 * most - 1);
  for (Index l = 0; l < table.size(); ++l) table[l] = std::cos(0.01f * static_cast<float>(l - most + 1));
  const MultiHeadAttention attention(orf<float>(d, 24, 1), RelativePosition<float>(table),
                                     {.direction = Direction::causal});
  Decoder decoder(attention, {.batch = batch, .most_tokens = most});
  Array q(prompt, d), k(prompt, d), v(prompt, d_v), y(prompt, d_v), q1(1, d), k1(1, d), v1(1, d_v), y1(1, d_v);
  const auto step = [&] {
    for (Index i = 0; i < steps; ++i) decoder.step(q1.view, k1.view, v1.view, y1.view);
  };
  decoder.prefill(q.view, k.view, v.view, y.view);
  step();
  const std::size_t bytes = decoder.bytes();
  check(what, step);
  if (decoder.bytes() == bytes) return;
  std::printf("%s: the state grew\n", what.c_str());
  ++failures;
}

}  // namespace

int main() {
  if (!NPRF_COUNTS) {
    std::printf("allocations can't be counted here\n");
    return 77;  // skipped
  }
  // the count itself
  counting = true;
  delete new int(1);
  ::operator delete(::operator new(64, std::align_val_t(64)), std::align_val_t(64));
  std::free(std::malloc(1));
  counting = false;
  if (count < 3) {
    std::printf("3 allocations on purpose, %d counted\n", count.load());
    return EXIT_FAILURE;
  }

  int cases = 0;
  for (const Index threads : {Index{1}, Index{3}}) {
    // std::thread allocates when it starts; OpenMP keeps its threads
    if (threads > 1 && !NPRF_USE_OPENMP) continue;
    set_num_threads(threads);
    for (const Engine engine :
         {Engine::automatic, Engine::direct, Engine::banded, Engine::lanes, Engine::block_causal, Engine::fftw}) {
      if (!NPRF_USE_FFTW && engine == Engine::fftw) continue;
      for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
        const AttentionOptions options{.direction = direction, .engine = engine};
        const std::string what = std::string(name(engine)) + (direction == Direction::causal ? ", causal, " : ", ") +
                                 std::to_string(threads) + " threads";
        const Index n = 300;
        const Vector<float> table = Vector<float>::Random(2 * 40 + 1);
        std::vector<RelativePosition<float>> positions(heads, RelativePosition<float>(table));
        const MultiHeadAttention relative(orf<float>(d, 24, 1), positions, options);
        Eigen::Array<bool, Eigen::Dynamic, 1> mask(batch * n);
        for (Index j = 0; j < mask.size(); ++j) mask[j] = j % 7 != 3;
        const std::vector<Index> cumulative{0, 100, 100, 180, 300}, lengths{250, 300};
        check_all("relative, " + what, relative, n, {});
        check_all("masked, " + what, relative, n,
                  {.key_mask = {mask.data(), static_cast<std::size_t>(mask.size())}, .lengths = lengths});
        check_all("packed, " + what, relative, n, {.cumulative_lengths = cumulative});
        const MultiHeadAttention grid(
            TrigonometricFeatures<float>({.input_dim = d, .num_features = 8}),
            GridPosition<float>(13, 23, Matrix<float>::Random(25, 45), Matrix<float>::Zero(1, 3)), options);
        check_all("grid, " + what, grid, n, {});
        const MultiHeadAttention wide(HyperbolicFeatures<float>({.input_dim = d, .num_features = 140}), positions,
                                      options);
        check_all("many features, " + what, wide, n, {});
        cases += 15;
        if (engine != Engine::automatic) continue;
        AttentionOptions near = options;
        near.near = 20;
        check_all("near field, " + what, MultiHeadAttention(orf<float>(d, 24, 1), positions, near), n, {});
        check_all("Taylor, near field, " + what,
                  MultiHeadAttention(TaylorFeatures<float>({.input_dim = d, .directions = 2}), positions, near), n, {});
        check_all("Taylor, " + what, MultiHeadAttention(TaylorFeatures<float>({.input_dim = d}), positions, options), n,
                  {});
        cases += 9;
      }
    }
  }
  for (const Index threads : {Index{1}, Index{3}}) {
    if (threads > 1 && !NPRF_USE_OPENMP) continue;
    set_num_threads(threads);
    const std::string what = "decoder, " + std::to_string(threads) + " threads, ";
    for (const Index near : {Index{0}, Index{9}}) {
      check_decoder(what + "ALiBi", AlibiPosition<float>(0.1f), near);
      check_decoder(what + "T5", t5_position<float>(Vector<float>::Random(16), Direction::causal, 40), near);
      cases += 4;
    }
    check_chunks(what + "chunks");
    ++cases;
  }
  std::printf("%d cases, %d of them allocate\n", cases, failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
