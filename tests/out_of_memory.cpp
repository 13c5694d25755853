// SPDX-License-Identifier: MIT
//
// Wherever memory runs out, a call throws std::bad_alloc, leaks nothing, and leaves its object as it was: each call is
// made with its first allocation failing, then its second, until it gets through. A program of its own, whose linker
// hands malloc's family over to it (--wrap): the library's own calls, not those of FFTW and OpenMP, which give up.

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/fft/fftw.hpp"
#include "nprf/nprf.hpp"

namespace {
std::atomic<long> live{0};       // allocations that are not freed
std::atomic<long> countdown{0};  // the allocation that brings it to zero fails
std::atomic<bool> failed{false};

bool fails() {
  if (countdown == 0 || --countdown != 0) return false;
  failed = true;
  return true;
}

void* counted(void* memory) {
  if (memory) ++live;
  return memory;
}
}  // namespace

extern "C" {
void* __real_malloc(std::size_t);
void* __real_calloc(std::size_t, std::size_t);
void* __real_realloc(void*, std::size_t);
void* __real_aligned_alloc(std::size_t, std::size_t);
void __real_free(void*);

void* __wrap_malloc(std::size_t size) { return fails() ? nullptr : counted(__real_malloc(size)); }
void* __wrap_calloc(std::size_t number, std::size_t size) {
  return fails() ? nullptr : counted(__real_calloc(number, size));
}
void* __wrap_realloc(void* memory, std::size_t size) {
  if (fails()) return nullptr;
  void* moved = __real_realloc(memory, size);
  return memory ? moved : counted(moved);
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : counted(__real_aligned_alloc(alignment, size));
}
void __wrap_free(void* memory) {
  if (memory) --live;
  __real_free(memory);
}
}

// those of the standard library too, wherever they are called
void* operator new(std::size_t size) {
  if (void* memory = __wrap_malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto line = static_cast<std::size_t>(alignment);
  if (void* memory = __wrap_aligned_alloc(line, (size + line - 1) / line * line)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { __wrap_free(memory); }
void operator delete(void* memory, std::size_t) noexcept { __wrap_free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { __wrap_free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { __wrap_free(memory); }

namespace {

using namespace nprf;

constexpr Index d = 8, d_v = 5;
int cases = 0, injected = 0, failures = 0;

void expect(bool holds, const std::string& what, long k, const char* sentence) {
  if (holds) return;
  std::printf("%s, allocation %ld: %s\n", what.c_str(), k, sentence);
  ++failures;
}

enum class Outcome { passed, out_of_memory, other };

// use() with its k-th allocation failing
template <class Use>
Outcome with_failure(long k, Use&& use) {
  Outcome outcome = Outcome::passed;
  failed = false;
  countdown = k;
  try {
    use();
  } catch (const std::bad_alloc&) {
    outcome = Outcome::out_of_memory;
  } catch (...) {
    outcome = Outcome::other;
  }
  countdown = 0;
  return outcome;
}

template <class T>
using Results = std::vector<Matrix<T>>;

template <class T>
bool same_bits(const Results<T>& a, const Results<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t x = 0; x < a.size(); ++x) {
    if (a[x].rows() != b[x].rows() || a[x].cols() != b[x].cols()) return false;
    if (a[x].size() > 0 && std::memcmp(a[x].data(), b[x].data(), sizeof(T) * static_cast<std::size_t>(a[x].size())))
      return false;
  }
  return true;
}

// call(make()), which returns Results, with each allocation of the call failing in turn
template <class Make, class Call>
void check(const std::string& what, Make&& make, Call&& call) {
  ++cases;
  const auto expected = [&] {
    auto object = make();
    return call(object);
  }();
  for (long k = 1; failures < 10; ++k) {
    const long before = live;
    {
      auto object = make();
      auto results = expected;
      const Outcome outcome = with_failure(k, [&] { results = call(object); });
      expect(outcome != Outcome::other, what, k, "another exception than std::bad_alloc");
      // a workspace can do without the block that it would have grown into
      expect(outcome == Outcome::out_of_memory || same_bits(results, expected), what, k, "other bits");
      if (failed) expect(same_bits(call(object), expected), what, k, "other bits afterwards");
    }
    expect(live == before, what, k, "memory leaks");
    if (!failed) return;
    ++injected;
  }
}

// forward, with and without what backward needs, and backward
template <class F, class P>
void check_attention(const std::string& what, const F& map, const P& position, const AttentionOptions& options, Index n,
                     const CallOptions& call = {}) {
  using T = typename F::Scalar;
  const Matrix<T> q = Matrix<T>::Random(n, d), k = Matrix<T>::Random(n, d), v = Matrix<T>::Random(n, d_v);
  const auto make = [&] { return std::pair(Attention(map, position, options), Saved<T>()); };
  check("Attention, " + what, make, [&](auto& x) { return Results<T>{x.first(q, k, v, call)}; });
  check("Attention, forward and backward, " + what, make, [&](auto& x) {
    const Matrix<T> y = x.first.forward(q, k, v, x.second, call);
    const Gradients<T> g = x.first.backward(x.second, v);
    return Results<T>{y, g.queries, g.keys, g.values, g.bias, g.extra};
  });
}

template <class M>
auto heads_view(M& x, Index batch, Index heads, Index tokens) {
  return HeadsView<std::remove_pointer_t<decltype(x.data())>>{x.data(), batch, heads, tokens, x.cols()};
}

template <class F, class P>
void check_heads(const std::string& what, const F& map, const P& position, const AttentionOptions& options, Index n,
                 const CallOptions& call = {}) {
  using T = typename F::Scalar;
  constexpr Index batch = 2, heads = 2;
  const auto array = [&](Index channels) -> Matrix<T> { return Matrix<T>::Random(batch * heads * n, channels); };
  const auto view = [&](auto& x) { return heads_view(x, batch, heads, n); };
  const Matrix<T> q = array(d), k = array(d), v = array(d_v);
  const auto make = [&] { return std::pair(MultiHeadAttention(map, position, options), Saved<T>()); };
  check("MultiHeadAttention, " + what, make, [&](auto& x) {
    Matrix<T> y(v.rows(), d_v);
    x.first(view(q), view(k), view(v), view(y), call);
    return Results<T>{y};
  });
  check("MultiHeadAttention, forward and backward, " + what, make, [&](auto& x) {
    Matrix<T> y(v.rows(), d_v), dq(q.rows(), d), dk(q.rows(), d), dv(q.rows(), d_v);
    Results<T> dbias, all;
    x.first.forward(view(q), view(k), view(v), view(y), x.second, call);
    x.first.backward(x.second, view(v), view(dq), view(dk), view(dv), dbias);
    all = {y, dq, dk, dv};
    all.insert(all.end(), dbias.begin(), dbias.end());
    return all;
  });
}

// what is kept and written into has another size, of an earlier call
void check_growth() {
  const std::vector<RelativePosition<float>> positions{RelativePosition<float>(Vector<float>::Random(5)),
                                                       RelativePosition<float>(Vector<float>::Random(9))};
  constexpr Index n = 40;
  const Matrix<float> q = Matrix<float>::Random(2 * n, d), v = Matrix<float>::Random(2 * n, d_v);
  const auto view = [](auto& x, Index tokens) { return heads_view(x, 1, 2, tokens); };
  struct Object {
    MultiHeadAttention<PositiveFeatures<float>, RelativePosition<float>> attention;
    Saved<float> saved;
    Results<float> dbias, dextra;
  };
  const auto run = [&](Object& x, Index tokens) {
    Matrix<float> y(2 * n, d_v), dq(2 * n, d), dk(2 * n, d), dv(2 * n, d_v);
    x.attention.forward(view(q, tokens), view(q, tokens), view(v, tokens), view(y, tokens), x.saved);
    x.attention.backward(x.saved, view(v, tokens), view(dq, tokens), view(dk, tokens), view(dv, tokens), x.dbias,
                         &x.dextra);
    return Results<float>{y, dq, dk, dv, x.dbias[0], x.dbias[1]};
  };
  const auto make = [&] {
    Object x{MultiHeadAttention(orf<float>(d, 12, 1), positions), {}, {}, {}};
    run(x, n / 3);
    x.dbias.assign(2, Matrix<float>(3, 1));
    x.dextra.assign(3, Matrix<float>(3, 1));
    return x;
  };
  check("MultiHeadAttention, grown", make, [&](Object& x) { return run(x, n); });
}

// prompts, steps and copies of states, some of which grow
template <class P>
void check_decoder(const std::string& what, const P& position) {
  constexpr Index batch = 2, heads = 2, n = 40;
  const auto array = [](Index channels) -> Matrix<float> { return Matrix<float>::Random(batch * heads * n, channels); };
  const auto view = [](auto& x, Index first, Index count) {
    auto part = heads_view(x, batch, heads, n);
    part.strides = part.all_strides();
    part.data += first * x.cols();
    part.tokens = count;
    return part;
  };
  const Matrix<float> q = array(d), k = array(d), v = array(d_v);
  const auto make = [&] {
    const AttentionOptions options{.direction = Direction::causal, .near = 3};
    return Decoder(MultiHeadAttention(orf<float>(d, 12, 1), position, options), {.batch = batch, .rollback = 2});
  };
  check("Decoder, " + what, make, [&](Decoder<float>& x) {
    Matrix<float> y = Matrix<float>::Zero(v.rows(), d_v);
    const std::vector<Index> lengths{5, 0};
    x.reorder(std::vector<Index>{0, 0});
    x.reset();
    x.prefill(view(q, 0, 5), view(k, 0, 5), view(v, 0, 5), view(y, 0, 5), {.lengths = lengths});
    x.step(view(q, 5, 30), view(k, 5, 30), view(v, 5, 30), view(y, 5, 30), {.lengths = std::vector<Index>{30, 2}});
    x.reorder(std::vector<Index>{1, 0, 1});
    x.reorder(std::vector<Index>{2, 2});
    x.rollback(0, 1);
    x.fork(0, 1);
    x.step(view(q, 35, 5), view(k, 35, 5), view(v, 35, 5), view(y, 35, 5));
    return Results<float>{y};
  });
}

template <class T>
void check_construction(const std::string& scalar) {
  struct Nothing {};
  const auto nothing = [] { return Nothing(); };
  const Matrix<T> table = Matrix<T>::Random(15, 17), extra = Matrix<T>::Random(2, 4);
  const Vector<T> b = Vector<T>::Random(33), buckets = Vector<T>::Random(32);
  const auto map = [&](const char* name, auto&& make_map) {
    const Matrix<T> x = Matrix<T>::Random(50, d);
    check(std::string(name) + ", " + scalar, nothing, [&](Nothing&) {
      const auto f = make_map();
      const Matrix<T> phi = f.queries(x);
      return Results<T>{phi, f.keys(x), f.backward(x, phi, phi)};
    });
  };
  map("PositiveFeatures", [] { return orf<T>(d, 20, 1); });
  map("HyperbolicFeatures", [] { return HyperbolicFeatures<T>({.input_dim = d, .num_features = 20}); });
  map("TrigonometricFeatures", [] { return trf<T>(d, 20, 1); });
  map("EluFeatures", [] { return EluFeatures<T>(d); });
  map("rows of the caller's", [&] { return PositiveFeatures<T>(table.leftCols(d)); });
  map("redrawn features", [] { return redrawn(sphere_prf<T>(d, 20, 1), 2); });

  const auto position = [&](const char* name, auto&& make_position) {
    check(std::string(name) + ", " + scalar, nothing, [&](Nothing&) {
      const auto p = make_position();
      return Results<T>{p.bias().table};
    });
  };
  position("NoPosition", [] { return NoPosition<T>(); });
  position("AlibiPosition", [] { return AlibiPosition<T>(T(0.1)); });
  position("RelativePosition", [&] { return RelativePosition<T>(b); });
  position("T5Position", [&] { return t5_position<T>(buckets, Direction::bidirectional); });
  position("GridPosition", [&] { return GridPosition<T>(8, 9, table, extra); });
  position("resize_bias", [&] { return RelativePosition<T>(resize_bias(b, 65)); });
  position("resize_bias of a grid", [&] { return GridPosition<T>(5, 7, resize_bias(table, 5, 7)); });

  const Matrix<T> x = Matrix<T>::Random(70, d);
  check("reference, " + scalar, nothing, [&](Nothing&) {
    const Attention attention(orf<T>(d, 8), RelativePosition<T>(b));
    const Matrix<T> softmax = reference::softmax_attention<T>(x, x, x, attention.position(), Direction::bidirectional,
                                                              Normalization::unit(1));
    return Results<T>{softmax, reference::kernelized_attention(attention, x, x, x)};
  });
}

#if NPRF_USE_FFTW
// the process keeps its plans: after a failure none is kept
void check_plans() {
  ++cases;
  for (long k = 1; failures == 0; ++k) {
    const long before = live;
    const Outcome outcome = with_failure(k, [] { fft::RealPlan<float>::shared(12345); });
    if (!failed) return expect(live > before, "plans", k, "no plan is kept");
    expect(outcome == Outcome::out_of_memory, "plans", k, "no std::bad_alloc");
    expect(live == before, "plans", k, "memory leaks");
    ++injected;
  }
}
#endif

template <class T>
void check_engines(const std::string& scalar, Index n, Index threads) {
  set_num_threads(threads);
  const Vector<T> table = Vector<T>::Random(2 * 40 + 1);
  Eigen::Array<bool, Eigen::Dynamic, 1> mask(2 * n);
  for (Index j = 0; j < mask.size(); ++j) mask[j] = j % 7 != 3;
  const std::vector<Index> cumulative{0, n / 3, n / 3, n}, lengths{n - 10, n};
  const std::span<const bool> masks(mask.data(), static_cast<std::size_t>(mask.size()));
  const CallOptions packed{.cumulative_lengths = cumulative}, masked{.key_mask = masks, .lengths = lengths};
  for (const Engine engine : {Engine::automatic, Engine::direct, Engine::fftw, Engine::lanes, Engine::block_causal,
                              Engine::banded, Engine::recurrence, Engine::grid, Engine::smooth}) {
    if (!NPRF_USE_FFTW && engine == Engine::fftw) continue;
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const AttentionOptions options{.direction = direction, .engine = engine};
      const std::string what = scalar + ", " + std::string(name(engine)) +
                               (direction == Direction::causal ? ", causal, " : ", ") + std::to_string(threads) +
                               " threads";
      const HyperbolicFeatures<T> map({.input_dim = d, .num_features = 12});
      if (threads == 1 || engine == Engine::grid) {
        const GridPosition<T> grid(n / 10, 10, Matrix<T>::Random(2 * (n / 10) - 1, 19), Matrix<T>::Zero(2, 4));
        check_heads("grid, " + what, map, grid, options, n / 10 * 10 + 2);
      }
      if (engine == Engine::grid) continue;
      const RelativePosition<T> relative(table);
      check_heads("relative, " + what, map, relative, options, n);
      if (threads > 1) continue;
      check_heads("masked, " + what, map, relative, options, n, masked);
      check_attention("packed, " + what, map, relative, options, n, packed);
      check_attention("ALiBi, " + what, trf<T>(d, 12), AlibiPosition<T>(T(0.3)), options, n);
    }
  }
}

}  // namespace

int main() {
  check_construction<float>("float");
  check_construction<double>("double");
#if NPRF_USE_FFTW
  check_plans();
#endif
  check_growth();
  check_decoder("ALiBi", AlibiPosition<float>(0.1f));
  check_decoder("a table", RelativePosition<float>(Vector<float>::Random(81)));
  check_engines<float>("float", 100, 1);
  check_engines<double>("double", 40, 1);
  check_engines<float>("float", 300, 4);  // tokens that are worth four threads
  std::printf("%d cases, %d failing allocations, %d of them not as they should be\n", cases, injected, failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
