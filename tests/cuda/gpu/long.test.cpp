// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

/// Sequences that are too long for running kernels on the host. Some rows are compared with rows computed in double.
namespace nprf::test::cuda_device_long {

namespace {

constexpr double tolerance = 20 * static_cast<double>(std::numeric_limits<float>::epsilon());

using Map = Attention<PositiveFeatures<float>, RelativePosition<float>>;

Map clipped(Direction direction, Index m = 32) {
  return Map(orf<float>(64, m, 7), RelativePosition<float>(normal_vector<float>(257, 5)), {.direction = direction});
}
Map dense(Index n, Index m = 32) {
  return Map(orf<float>(64, m, 7), RelativePosition<float>(normal_vector<float>(2 * n - 1, 5)));
}

/// Some rows of y in double, for inputs rounded to S. Each row is one call, with the model's float projections and
/// biases.
template <cuda::Storage S>
class Rows {
 public:
  Rows(const Map& map, const PlanCase& x) {
    const auto as_stored = [](const Matrix<float>& a) {
      return Matrix<double>(as_floats(stored<S>(a), a.rows(), a.cols()).template cast<double>());
    };
    const Matrix<double> q = as_stored(x.q), k = as_stored(x.k), v = as_stored(x.v);
    const Attention exact(PositiveFeatures<double>(map.features().projection().template cast<double>()),
                          RelativePosition<double>(map.position().bias().table.template cast<double>()),
                          {.direction = map.options().direction, .engine = Engine::direct});
    const Index n = q.rows();
    for (const Index i : {Index{0}, Index{1}, n / 7, n / 3, n / 2, 3 * n / 4, n - 65, n - 1}) m_rows.push_back(i);
    m_y.resize(static_cast<Index>(m_rows.size()), v.cols());
    for (Index s = 0; s < m_y.rows(); ++s) {
      const Index i = m_rows[static_cast<std::size_t>(s)];
      m_y.row(s) = exact(Matrix<double>(q.row(i)), k, v, {.offset = i});
    }
    m_largest_value = v.cwiseAbs().maxCoeff();
  }

  /// The largest |y - y in double|; infinity if y has a non-finite entry.
  double error(const Matrix<float>& y) const {
    if (!y.allFinite()) return std::numeric_limits<double>::infinity();
    double worst = 0;
    for (Index s = 0; s < m_y.rows(); ++s) {
      const auto row = y.row(m_rows[static_cast<std::size_t>(s)]).cast<double>();
      worst = std::max(worst, (row - m_y.row(s)).cwiseAbs().maxCoeff());
    }
    return worst;
  }
  double largest_value() const { return m_largest_value; }
  double largest() const { return m_y.cwiseAbs().maxCoeff(); }

 private:
  std::vector<Index> m_rows;
  Matrix<double> m_y;
  double m_largest_value = 0;
};

// engines with which no row fails the error bound
std::vector<cuda::Engine> engines_for(Direction direction) {
  return direction == Direction::causal ? std::vector{cuda::Engine::direct, cuda::Engine::banded} : cuda_engines;
}

PlanCase tokens(Index n) { return {{.n_q = n, .n_k = n, .d_v = 64}, {}, 64}; }

}  // namespace

TEST_CASE("every engine is accurate for long sequences with a clipped table", "[cuda][long]") {
  for (const Index n : {4096, 16384, 40000})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      PlanCase x = tokens(n);
      const Map map = clipped(direction);
      const Rows<float> rows(map, x);
      for (const cuda::Engine engine : engines_for(direction)) {
        x.options.engine = engine;
        INFO(name(engine) << ", n " << n << (direction == Direction::causal ? ", causal" : ""));
        CHECK(rows.error(x.result(map)) <= tolerance * rows.largest_value());
      }
    }
}

TEST_CASE("every engine is accurate for long sequences with a different bias for each lag", "[cuda][long]") {
  for (const Index n : {4096, 10000, 40000}) {
    PlanCase x = tokens(n);
    const Map map = dense(n);
    const Rows<float> rows(map, x);
    for (const cuda::Engine engine : cuda_engines) {
      x.options.engine = engine;
      INFO(name(engine) << ", n " << n);
      CHECK(rows.error(x.result(map)) <= tolerance * rows.largest_value());
    }
  }
}

TEST_CASE("smooth biases change long sequences by no more than the tolerance allows", "[cuda][long]") {
  for (const Index n : {4096, 16384, 100000})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      Vector<float> table(2 * n - 1);
      for (Index k = 0; k < table.size(); ++k) table[k] = -std::log1p(static_cast<float>(std::abs(k - (n - 1))));
      const Map map(orf<float>(64, 32, 7), RelativePosition<float>(table), {.direction = direction});
      PlanCase x = tokens(n);
      x.options.engine = cuda::Engine::smooth;
      const Rows<float> rows(map, x);
      INFO("n " << n << (direction == Direction::causal ? ", causal" : ""));
      CHECK(rows.error(x.result(map)) <= x.options.tolerance / 2 * rows.largest_value());
    }
}

TEST_CASE("every variant of the fused engine is accurate", "[cuda][long]") {
  for (const Index n : {1000, 2000, 2500, 4000, 5000, 8000, 9000, 13000, 16384, 20000, 30000, 45000, 60000, 90000,
                        130000, 190000, 250000, 390000}) {
    PlanCase x = tokens(n);
    x.options.engine = cuda::Engine::fused;
    const Map map = dense(n, 9);
    const Rows<float> rows(map, x);
    INFO("n " << n);
    CHECK(rows.error(x.result(map)) <= tolerance * rows.largest_value());
  }
}

TEMPLATE_TEST_CASE("every engine is accurate for long sequences in 16 bits", "[cuda][long]", __half, __nv_bfloat16) {
  const Index n = 16384;
  PlanCase x = tokens(n);
  const Map map = clipped(Direction::bidirectional);
  // inputs, features and results are rounded to 11 or to 8 bits
  constexpr double eps = std::is_same_v<TestType, __half> ? 0x1p-10 : 0x1p-7;
  const Rows<TestType> rows(map, x);
  for (const cuda::Engine engine : cuda_engines) {
    x.options.engine = engine;
    INFO(name(engine));
    CHECK(rows.error(x.result<TestType>(map)) <= eps * rows.largest());
  }
}

TEST_CASE("many heads of several sequences agree with single heads", "[cuda][long]") {
  const Index batch = 3, heads = 5, n = 1500, d = 64;
  const Map map = clipped(Direction::bidirectional);
  const Matrix<float> q = normal<float>(batch * heads * n, d, 1), k = normal<float>(batch * heads * n, d, 2),
                      v = normal<float>(batch * heads * n, d, 3);
  const DeviceArray<float> dq(stored<float>(q)), dk(stored<float>(k)), dv(stored<float>(v)),
      dy(static_cast<std::size_t>(v.size()));
  for (const cuda::Engine engine : cuda_engines) {
    const cuda::AttentionPlan<float> plan(
        cuda::model_of(map), {.batch = batch, .heads = heads, .n_q = n, .n_k = n, .d_v = d}, {.engine = engine});
    const auto view = [&](const DeviceArray<float>& x) {
      return cuda::DeviceMatrixView<float>(x.data(), batch, heads, n, d);
    };
    plan.forward(view(dq), view(dk), view(dv), view(dy));
    const Matrix<float> y = as_floats(dy.fetch(), batch * heads * n, d);
    for (const Index z : {Index{0}, Index{7}, batch * heads - 1}) {
      PlanCase x{{.n_q = n, .n_k = n, .d_v = d}, {.engine = engine}, d};
      x.q = q.middleRows(z * n, n), x.k = k.middleRows(z * n, n), x.v = v.middleRows(z * n, n);
      INFO(name(engine) << ", z " << z);
      CHECK((x.result(map) - y.middleRows(z * n, n)).cwiseAbs().maxCoeff() <= tolerance * v.cwiseAbs().maxCoeff());
    }
  }
}

}  // namespace nprf::test::cuda_device_long
