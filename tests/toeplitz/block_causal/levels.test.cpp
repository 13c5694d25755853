// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/levels.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "fft/complex_lanes.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_block_causal_levels {

using toeplitz::CausalAxis;
using toeplitz::CausalLevels;

namespace {

template <class T>
using Z = fft::ComplexLanes<T>;

// N(0,1) weights for a range of lags, within those of n_q queries and n_k keys
template <class T>
LagWeights<T> weights(Index n_q, Index n_k, LagRange range) {
  LagWeights<T> c = random_weights<T>(n_q, n_k, 4);
  for (Index lag = c.first; lag <= c.last(); ++lag)
    if (lag < range.first || lag > range.last) c.values[lag - c.first] = 0;
  return c;
}

constexpr Index far = 1000000;

// use(c, span) for weights up to lags on either side of 0, with and without a window
template <class Use>
void for_each_span(Use&& use) {
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{
           {1, 1}, {1, 300}, {300, 1}, {128, 128}, {129, 129}, {257, 255}, {700, 1300}, {1300, 700}, {4097, 4097}})
    for (const LagRange& range : {LagRange{-far, 0}, LagRange{-far, far}, LagRange{-far, 200}, LagRange{-far, -200},
                                  LagRange{-130, 0}, LagRange{-300, 100}, LagRange{5, 5}, LagRange{0, -1}}) {
      INFO("n_q " << n_q << ", n_k " << n_k << ", lags " << range.first << " to " << range.last);
      use(weights<double>(n_q, n_k, range), ProductShape{n_q, n_k, 1, 1});
    }
}

}  // namespace

TEST_CASE("on the causal axis no later key has a weight, and the distance of two places has the weight of their lag",
          "[toeplitz]") {
  for_each_span([](const LagWeights<double>& c, const ProductShape& span) {
    const CausalAxis axis(c.support(), span);
    CHECK((axis.queries.end - axis.queries.first == span.n_q && axis.keys.end - axis.keys.first == span.n_k));
    CHECK((axis.queries.first == 0 || axis.keys.first == 0));
    CHECK(axis.length() == std::max(axis.queries.end, axis.keys.end));
    bool right = true;
    for (Index lag = -(span.n_q - 1); lag < span.n_k; ++lag) {
      const Index distance = axis.queries.first - axis.keys.first - lag;
      right = right && axis.weight(c.view(), distance) == c[lag] && (distance >= 0 || c[lag] == 0);
    }
    for (const Index beyond : {axis.length(), axis.length() + 1, far})
      right = right && axis.weight(c.view(), beyond) == 0;
    CHECK(right);
  });
  const CausalAxis::Side side{10, 20};
  CHECK((side.meets(0, 11) && side.meets(19, 5) && side.meets(12, 2) && side.meets(0, 100)));
  CHECK_FALSE((side.meets(0, 10) || side.meets(20, 5)));
}

TEST_CASE("groups take each pair of blocks that some weight joins once, sources before targets", "[toeplitz]") {
  constexpr Index block = CausalLevels<double>::block;
  for_each_span([](const LagWeights<double>& c, const ProductShape& span) {
    Workspace workspace;
    const CausalAxis axis(c.support(), span);
    const CausalLevels<double> levels(c.view(), axis, Team(workspace));
    const Index blocks = (axis.length() + block - 1) / block;
    Matrix<int> taken = Matrix<int>::Zero(blocks + 64, blocks + 64);  // of a target and a source
    levels.for_each_group([&](const CausalLevels<double>::BlockGroup& group) {
      const auto& level = levels[group.level];
      CHECK((group.first % level.size == 0 && 1 <= group.count && group.count <= CausalLevels<double>::most));
      CHECK(group.count * level.size <= levels.group_length());
      const Index first = group.first / block, wide = level.size / block;
      for (Index t = 0; t < group.count; ++t)
        for (Index s = std::max<Index>(t - level.offsets + 1, 0); s <= t; ++s)
          taken.block(first + (t + 1) * wide, first + s * wide, wide, wide).array() += 1;
    });
    bool right = taken.maxCoeff() <= 1;
    for (Index i = 0; i < blocks; ++i)
      for (Index j = 0; j < blocks; ++j) {
        bool joined = false;
        for (Index d = (i - j) * block - block + 1; d < (i - j) * block + block; ++d)
          joined = joined || axis.weight(c.view(), d) != 0;
        joined = joined && axis.queries.meets(i * block, block) && axis.keys.meets(j * block, block);
        right = right && (i > j ? !joined || taken(i, j) == 1 : taken(i, j) == 0);
      }
    CHECK(right);
  });
}

TEMPLATE_TEST_CASE(
    "spectra multiply the values of sources to those of targets, and their conjugates those of targets to those of "
    "sources",
    "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index window : {4000, 300}) {  // all offsets, and two
    std::vector<Workspace> workspaces(2);
    const Team team(workspaces);
    const LagWeights<T> c = weights<T>(4000, 4000, {1 - window, 0});
    const CausalLevels<T> levels(c.view(), CausalAxis(c.support(), {4000, 4000, 1, 1}), team);
    const auto& level = levels[0];
    const Index leaf = 5, most = CausalLevels<T>::most;
    CHECK(level.offsets == std::min<Index>((window + 126) / 128, 31));
    for (const Index count : {Index{1}, Index{2}, Index{3}, Index{8}, most - 1, most}) {
      const auto x = normal_lanes<T>(8 * most, 1), w = normal_lanes<T>(8 * most, 2);
      Z<T> y[most][8], z[most][8], sources[most][8], targets[most][8];
      for (auto* to : {y, sources}) std::copy_n(x.data(), 8 * most, to[0]);
      for (auto* to : {z, targets}) std::copy_n(w.data(), 8 * most, to[0]);
      levels.multiply(level, leaf, count, y);
      levels.multiply_transposed(level, leaf, count, z);
      const Vector<T> before = normal_vector<T>(levels.numbers(), 3);
      Vector<T> correlations = before;
      levels.correlate(level, leaf, count, sources, targets, correlations.data());

      Errors product, transposed, correlation;
      const T* numbers = level.spectra + level.at_leaf(leaf);
      for (Index f = 0; f < 8; ++f) {
        const auto g = [&](Index D) {
          return Complex(numbers[16 * (D - 1) + 2 * f], numbers[16 * (D - 1) + 2 * f + 1]);
        };
        for (Index s = 0; s < count; ++s)
          for (Index l = 0; l < fft::lane_count<T>; ++l) {
            Complex sum = 0, back = 0;
            for (Index t = 0; t < count; ++t) {
              if (t <= s && s - t < level.offsets) sum += g(s - t + 1) * lane(sources[t][f], l);
              if (t >= s && t - s < level.offsets) back += std::conj(g(t - s + 1)) * lane(targets[t][f], l);
            }
            product.add(lane(y[s][f], l), sum);
            transposed.add(lane(z[s][f], l), back);
          }
        for (Index D = 1; D <= std::min(count, level.offsets); ++D) {
          Complex sum = 0;
          for (Index t = D - 1; t < count; ++t)
            for (Index l = 0; l < fft::lane_count<T>; ++l)
              sum += std::conj(lane(targets[t][f], l)) * lane(sources[t - D + 1][f], l);
          const Index at = level.before + level.at_leaf(leaf) + 16 * (D - 1) + f;  // real parts first
          correlation.add({correlations[at] - before[at], correlations[at + 8] - before[at + 8]}, sum);
          correlations[at] = before[at], correlations[at + 8] = before[at + 8];
        }
      }
      INFO(count << " sources, " << level.offsets << " offsets");
      const double growth = epsilon<T> * std::sqrt(static_cast<double>(2 + count));
      CHECK(product.relative() <= growth);
      CHECK(transposed.relative() <= growth);
      CHECK(correlation.relative() <= growth);
      CHECK(correlations == before);  // nowhere else
    }
  }
}

//     y_i = sum_j weight(i - j) x_j    z_j = sum_i weight(i - j) w_i    dc[l] = sum over lag l of w_i x_j
// for queries i and keys j in different blocks of 128; rows are lanes
TEST_CASE("the transforms of all groups add up to the sums over their pairs, and over those of each lag",
          "[toeplitz]") {
  using T = double;
  constexpr std::size_t most = CausalLevels<T>::most;
  constexpr Index W = fft::lane_count<T>;
  using Wide = Eigen::Matrix<long double, Eigen::Dynamic, W, Eigen::RowMajor>;
  for (const auto& [n, last] : std::vector<std::pair<Index, Index>>{{700, 0}, {600, 90}, {600, -90}, {4100, 0}}) {
    if (NPRF_TEST_SANITIZED && n > 1000) continue;
    std::vector<Workspace> workspaces(2);
    const Team team(workspaces);
    const LagWeights<T> c = weights<T>(n, n, {-far, last});
    const CausalAxis axis(c.support(), {n, n, 1, 1});
    const CausalLevels<T> levels(c.view(), axis, team);
    const Index places = 2 * axis.length();  // a group's last block may go on beyond the axis
    Matrix<T> x = Matrix<T>::Zero(places, W), w = x, y = x, z = x;
    x.middleRows(axis.keys.first, n) = normal<T>(n, W, 1);
    w.middleRows(axis.queries.first, n) = normal<T>(n, W, 2);
    Vector<T> correlations = Vector<T>::Zero(levels.numbers());
    const Vector<T> before = normal_vector<T>(2 * n - 1, 3);
    Vector<T> dc = before;
    Buffer<Z<T>> scratch(2 * places);
    levels.for_each_group([&](const CausalLevels<T>::BlockGroup& group) {
      const auto& level = levels[group.level];
      const Index S = level.size, count = group.count;
      level.tree->convolve<2 * most>(
          scratch.data(), S, 2 * count,
          [&](Index s, Index j) {
            return fft::load_lanes(s < count ? &x(group.first + s * S + j, 0)
                                             : &w(group.first + (s - count + 1) * S + j, 0));
          },
          [&](Index k, Z<T>(&values)[2 * most][8]) {
            levels.correlate(level, k, count, values, values + count, correlations.data());
            levels.multiply(level, k, count, values);
            levels.multiply_transposed(level, k, count, values + count);
          },
          [&](Index s, Index j0, const Z<T>(&twisted)[8]) {
            for (Index j = j0; j < j0 + 8; ++j) {
              T* row = s < count ? &y(group.first + (s + 1) * S + j, 0) : &z(group.first + (s - count) * S + j, 0);
              const fft::Lanes<T> t = toeplitz::real_part(twisted[j - j0], level.tree->twist() + 2 * j);
              fft::store_lanes<T>(fft::load_lanes(row) + t, row);
            }
          });
    });
    levels.add_lag_gradient(correlations.data(), 1 - n, dc.data(), team.workspace());

    const Wide X = x.cast<long double>(), V = w.cast<long double>();
    Wide y_sum = Wide::Zero(places, W), z_sum = y_sum;
    Vector<long double> dc_sum = before.cast<long double>();
    for (Index i = axis.queries.first; i < axis.queries.end; ++i)
      for (Index j = axis.keys.first; j < std::min(i / 128 * 128, axis.keys.end); ++j) {
        const long double weight = axis.weight(c.view(), i - j);
        y_sum.row(i) += weight * X.row(j);
        z_sum.row(j) += weight * V.row(i);
        dc_sum[j - axis.keys.first - (i - axis.queries.first) + n - 1] += V.row(i).dot(X.row(j));
      }
    const auto error = [](const auto& got, const auto& sum) {
      return static_cast<double>((got.template cast<long double>() - sum).norm() / sum.norm());
    };
    INFO(n << " tokens, last lag " << last << ", " << levels.count() << " levels");
    const double tolerance = epsilon<T> * std::sqrt(std::log2(static_cast<double>(2 * n)));
    CHECK(error(y.middleRows(axis.queries.first, n), y_sum.middleRows(axis.queries.first, n)) <= tolerance);
    CHECK(error(z.middleRows(axis.keys.first, n), z_sum.middleRows(axis.keys.first, n)) <= tolerance);
    CHECK(error(dc, dc_sum) <= tolerance);
  }
}

TEST_CASE("the cost of a product is that of the transforms and the products of its groups", "[toeplitz]") {
  const auto operations = [](Index n) { return CausalLevels<double>::operations(n); };
  for (const Index n : {0, 1, 128}) CHECK(operations(n) == 0);
  CHECK(operations(129) == 128 * (3 * 7 - 4) + 128);          // one source
  CHECK(operations(384) == 2 * 128 * (3 * 7 - 4) + 3 * 128);  // two, and three products
  for (Index n = 128; n < 20000; n += 128) CHECK(operations(n + 1) > operations(n));
}

}  // namespace nprf::test::toeplitz_block_causal_levels
