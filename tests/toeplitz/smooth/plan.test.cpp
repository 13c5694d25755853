// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/smooth/plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "toeplitz/smooth/smooth_tables.hpp"

namespace nprf::test::toeplitz_smooth_plan {

using toeplitz::Axis;
using toeplitz::ChunkPolynomials;
using toeplitz::Coupling;
using toeplitz::most_terms;
using toeplitz::smooth_chunk;
using toeplitz::SmoothPlan;

namespace {

constexpr Index terms = 6;

// C of all slots as the plan computes it, (n_q,n_k), and how often it computes each entry
struct Expanded {
  Matrix<double> C;
  Matrix<int> count;
};

template <Real T>
Expanded expand(const SmoothPlan<T>& plan, const LagWeights<T>& c, Index n_q, Index n_k, Axis axis) {
  Expanded x{Matrix<double>::Zero(n_q, n_k), Matrix<int>::Zero(n_q, n_k)};
  const auto add = [&](Index i, Index j, double weight) {
    if (i < n_q && j < n_k) x.C(i, j) += weight, ++x.count(i, j);
  };
  for (Index l = 0; l <= plan.top(); ++l) {
    const Index N = smooth_chunk << l;
    Matrix<double> P(N, most_terms);
    for (Index s = 0; s < N; ++s) ChunkPolynomials{static_cast<double>(N)}.values(s, most_terms, &P(s, 0));
    const auto& side = plan.level(l).side(axis);
    const Index others = plan.level(l).side(axis == Axis::queries ? Axis::keys : Axis::queries).chunks;
    for (Index I = 0; I < side.chunks; ++I)
      for (const Coupling<T>& each : side.coupled[I % 2]) {
        const Index J = I + each.offset;
        if (J < 0 || J >= others) continue;
        const Eigen::Map<const Matrix<T>> K(each.K, most_terms, most_terms);
        const Matrix<double> block = P * K.template cast<double>() * P.transpose();
        for (Index u = 0; u < N; ++u)
          for (Index v = 0; v < N; ++v)
            axis == Axis::queries ? add(I * N + u, J * N + v, block(u, v)) : add(J * N + v, I * N + u, block(u, v));
      }
  }
  for (const Index D : plan.tiles())
    for (Index i = 0; i < n_q; ++i)
      for (Index j = 0; j < n_k; ++j)
        if (i / smooth_chunk - j / smooth_chunk == D) add(i, j, static_cast<double>(c[j - i]));
  return x;
}

// all lags of c, which may change by `tolerance`
template <Real T>
LagWeightsView<T> within(const LagWeights<T>& c, double tolerance) {
  LagWeightsView<T> view = c.view();
  view.max_deviation = tolerance;
  return view;
}

template <Real T>
void check_plan(const LagWeights<T>& c, Index n_q, Index n_k, double tolerance) {
  Workspace workspace;
  const SmoothPlan<T> plan(within(c, tolerance), n_q, n_k, terms, workspace);
  CHECK(plan.error() <= tolerance);
  for (const Axis axis : {Axis::queries, Axis::keys}) {
    const Expanded x = expand(plan, c, n_q, n_k, axis);
    double worst = 0;
    Index missed = 0, repeated = 0;
    for (Index i = 0; i < n_q; ++i)
      for (Index j = 0; j < n_k; ++j) {
        const double weight = static_cast<double>(c[j - i]);
        repeated += x.count(i, j) > 1;
        missed += x.count(i, j) == 0 && weight != 0;
        if (weight != 0) worst = std::max(worst, std::abs(x.C(i, j) / weight - 1));
      }
    CHECK((missed == 0 && repeated == 0));
    CHECK(worst <= plan.error() + plan.condition() * 64 * epsilon<T>);
  }
  if (plan.is_one_sided())
    for (Index l = 0; l <= plan.top(); ++l)
      for (const auto& list : plan.level(l).side(Axis::queries).coupled)
        for (const Coupling<T>& each : list) CHECK(each.offset < 0);
}

}  // namespace

TEMPLATE_TEST_CASE("each weight is in one tile, or in one smooth block within the tolerance", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const SmoothTable& table : smooth_tables())
    for (const Index last : {-100, 0, 1 << 20})
      for (const auto& [n_q, n_k] : {std::pair<Index, Index>{1024, 1024}, {1000, 700}, {130, 1300}, {900, 50}}) {
        INFO(table.name << ", " << n_q << " queries, " << n_k << " keys, last lag " << last);
        check_plan(weights_of<T>(table, n_q, n_k, 0, last), n_q, n_k, 1e-4);
      }
}

TEMPLATE_TEST_CASE("kinks, steps, zeros and noise are tiles where they are", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 1500;
  const Vector<double> noise = normal_vector<double>(2 * n, 1);
  const std::vector<SmoothTable> odd{
      {"a kink", [](double l) { return 2 + std::abs(l + 500) / 1000; }},
      {"steps", [](double l) { return 1 / (1 + std::floor(std::abs(l) / 300)); }},
      {"zeros in between", [](double l) { return std::abs(l) > 400 && std::abs(l) < 700 ? 0 : 1 / (1 + std::abs(l)); }},
      {"noise", [&](double l) { return std::exp(0.1 * noise[Index(l) + n]); }},
      {"20 decades", [](double l) { return std::exp(-0.03 * std::abs(l)); }}};
  for (const SmoothTable& table : odd) {
    INFO(table.name);
    check_plan(weights_of<T>(table, n, n, 0), n, n, 1e-4);
  }
  Workspace workspace;
  const auto tiles = [&](std::size_t k) {
    const LagWeights<T> c = weights_of<T>(odd[k], n, n, 0);
    return SmoothPlan<T>(within(c, 1e-4), n, n, terms, workspace).tiles().size();
  };
  CHECK(tiles(0) < 10);
  CHECK(tiles(3) == 2 * (n / smooth_chunk + 1) - 1);
}

TEMPLATE_TEST_CASE("blocks whose tangents are rough are tiles, also where the weights are constant", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 2000;
  const LagWeights<T> c = weights_of<T>({"", [](double) { return 1; }}, n, n, 0);
  Workspace workspace;
  const auto plan = [&](const std::function<double(double)>& tangent) {
    const LagWeights<T> w = weights_of<T>({"", tangent}, n, n, 0);
    LagWeightsView<T> all = within(c, 1e-4);
    all.tangents = w.values.data();
    return SmoothPlan<T>(all, n, n, terms, workspace);
  };
  const auto couplings = [](const SmoothPlan<T>& of) {
    std::size_t count = 0;
    for (Index l = 0; l <= of.top(); ++l)
      for (const auto& list : of.level(l).side(Axis::queries).coupled) count += list.size();
    return count;
  };
  const SmoothPlan<T> constant = plan([](double) { return 0.5; }),
                      kink = plan([](double l) { return std::abs(l + 700) / 1e3; }),
                      noise = plan([](double l) { return std::sin(l * l); });
  CHECK(constant.tiles().size() == 2);  // those that the slots do not fill
  CHECK(couplings(kink) > couplings(constant));
  CHECK((kink.tiles().size() > 2 && kink.tiles().size() <= 5));
  CHECK(noise.top() == -1);
}

TEST_CASE("chunks of smooth tables have a few couplings at each level", "[toeplitz]") {
  Workspace workspace;
  const Index n = 1 << 14;
  const LagWeights<float> c = weights_of<float>(smooth_tables()[0], n, n, 0, 0);
  const SmoothPlan<float> plan(within(c, 2.5e-5), n, n, terms, workspace);
  CHECK(plan.top() == 6);
  CHECK(plan.is_one_sided());
  CHECK(plan.tiles().size() <= 4);
  for (Index l = 0; l <= plan.top(); ++l)
    for (const auto& list : plan.level(l).side(Axis::queries).coupled) CHECK(list.size() <= 3);
}

}  // namespace nprf::test::toeplitz_smooth_plan
