// SPDX-License-Identifier: MIT
//
// levels: prints the level that runs, a hash of results and gradients of both scalars, and with an argument times. The
// program is built for any x86-64 processor with nprf::levels, and for one level without.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <iostream>
#include <limits>
#include <nprf/nprf.hpp>
#include <type_traits>

using namespace nprf;

namespace {

std::uint64_t hash = 14695981039346656037u;  // FNV-1a

template <class M>
void add(const M& x) {
  for (const char* byte = reinterpret_cast<const char*>(x.data());
       byte != reinterpret_cast<const char*>(x.data() + x.size()); ++byte)
    hash = (hash ^ static_cast<unsigned char>(*byte)) * 1099511628211u;
}

// a user's own map, which the levels' code calls; it is compiled with the program, and its roundings are the same for
// all instruction sets
template <class T>
struct OwnMap {
  using Scalar = T;
  Index input_dim() const { return 8; }
  Index output_dim() const { return 8; }
  Matrix<T> queries(const MatrixView<T>& x) const { return x.array().square(); }
  Matrix<T> keys(const MatrixView<T>& x) const { return queries(x); }
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>&, const MatrixView<T>& dphi) const {
    return 2 * x.cwiseProduct(dphi);
  }
};

template <class T>
Matrix<T> uniform(Index rows, Index cols) {
  static std::uint64_t state = 1;
  Matrix<T> x(rows, cols);
  for (Index k = 0; k < x.size(); ++k) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x.data()[k] = static_cast<T>(static_cast<double>(state >> 40) / (1 << 23) - 1);
  }
  return x;
}

template <class T, class F, class P>
void forward_and_backward(const F& features, const P& position, Index n, AttentionOptions options) {
  const Attention attention(features, position, options);
  const Matrix<T> q = uniform<T>(n, 8), k = uniform<T>(n, 8), v = uniform<T>(n, 5), dy = uniform<T>(n, 5);
  Saved<T> saved;
  add(attention(q, k, v));
  add(attention.forward(q, k, v, saved));
  Gradients<T> g = attention.backward(saved, dy);
  for (const Matrix<T>& x : {g.queries, g.keys, g.values, g.bias}) add(x);
  // the last bits of Eigen's sin and cos depend on the alignment of the result, which the two programs do not share
  if constexpr (!std::is_same_v<F, TrigonometricFeatures<T>>) add(attention.query_features(q));
}

// products of these numbers are exact, so that what the program computes from them has the same bits for each level
template <class T>
Centring<T> centring() {
  return {Vector<T>::Constant(8, T(0.25)), Vector<T>::Constant(8, T(-0.5)), 2 * Matrix<T>::Identity(8, 8),
          T(0.5) * Matrix<T>::Identity(8, 8)};
}

// the maps get their projections, since a drawn one is the program's: its last bits are those of the baseline
template <class T>
void all_engines() {
  const Index n = 300;
  const RelativePosition<T> table(Vector<T>(uniform<T>(2 * n - 1, 1).col(0)));
  const AlibiPosition<T> alibi(T(0.1));
  for (const Engine engine : {Engine::direct, Engine::lanes, Engine::automatic}) {
    forward_and_backward<T>(PositiveFeatures<T>(uniform<T>(19, 8)), table, n, {.engine = engine});
    forward_and_backward<T>(HyperbolicFeatures<T>(uniform<T>(5, 8)), table, n, {.engine = engine});
    forward_and_backward<T>(TrigonometricFeatures<T>(uniform<T>(33, 8)), alibi, n, {.engine = engine});
    forward_and_backward<T>(EluFeatures<T>(8), table, n, {.normalization = Normalization::none(), .engine = engine});
    forward_and_backward<T>(TaylorFeatures<T>({.input_dim = 8, .directions = 3}), table, n,
                            {.engine = engine, .near = 9});
    forward_and_backward<T>(CalibratedFeatures<T>(TaylorFeatures<T>({.input_dim = 8}), centring<T>()), table, n,
                            {.engine = engine, .sinks = 2});
    forward_and_backward<T>(Centred(PositiveFeatures<T>(uniform<T>(19, 8)), centring<T>()), alibi, n,
                            {.engine = engine});
    forward_and_backward<T>(Centred(TaylorFeatures<T>({.input_dim = 8}), centring<T>()), alibi, n, {.engine = engine});
    forward_and_backward<T>(Centred(HyperbolicFeatures<T>(uniform<T>(5, 8)), centring<T>()), alibi, n,
                            {.engine = engine, .near = 3});
    forward_and_backward<T>(OwnMap<T>(), table, n, {.normalization = Normalization::none(), .engine = engine});
  }
  forward_and_backward<T>(PositiveFeatures<T>(uniform<T>(19, 8)), table, n,
                          {.direction = Direction::causal, .engine = Engine::block_causal});
  forward_and_backward<T>(PositiveFeatures<T>(uniform<T>(19, 8)), alibi, n, {.engine = Engine::recurrence});
}

// an exception of the levels' code is caught by its type
bool throws() {
  const Attention attention(orf<float>(8, 16));
  const Matrix<float> x = uniform<float>(4, 8);
  try {
    attention(x, x, x, {.tolerance = -1});
  } catch (const InvalidArgument& error) {
    return std::strstr(error.what(), "tolerance") != nullptr;
  }
  return false;
}

template <class P>
double milliseconds(Index n, const P& position) {
  const Matrix<float> q = uniform<float>(n, 64), k = uniform<float>(n, 64), v = uniform<float>(n, 64);
  const Attention attention(orf<float>(64, 32), position);
  Matrix<float> y = attention(q, k, v);
  double least = std::numeric_limits<double>::infinity();
  for (int call = 0; call < 9; ++call) {
    const std::clock_t begin = std::clock();  // processor time, so that other programs count less
    y = attention(q, k, v);
    least = std::min(least, 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

}  // namespace

int main(int argc, char**) {
  set_num_threads(1);
#if NPRF_X86_64_LEVELS
  constexpr const char* names[] = {"baseline", "v3", "v4"};
  std::cout << "level " << names[static_cast<int>(cpu_level())] << '\n';
#endif
  all_engines<float>();
  all_engines<double>();
  std::cout << "hash " << hash << '\n';
  if (argc > 1)
    for (const Index n : {1024, 4096})
      std::cout << "n " << n << ": T5 "
                << milliseconds(
                       n, T5Position<float>(Vector<float>(uniform<float>(32, 1).col(0)), Direction::bidirectional))
                << " ms, a bias for every lag "
                << milliseconds(n, RelativePosition<float>(Vector<float>(uniform<float>(2 * n - 1, 1).col(0))))
                << " ms\n";
  return throws() ? 0 : 1;
}
