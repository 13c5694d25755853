// SPDX-License-Identifier: MIT
#include "nprf/calibration/calibrate.hpp"

#include <Eigen/Eigenvalues>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/calibration/calibrate_definition.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_calibrate {

namespace {

constexpr Index n = 96, d = 4, d_v = 3;

// Gaussian rows with a mean and correlated columns, of which the first vary most
Matrix<double> gaussian(Index rows, std::uint64_t seed, double size = 0.5) {
  const Vector<double> deviations = size * (Vector<double>(d) << 1.5, 1, 0.6, 0.3).finished();
  const Matrix<double> mix = Matrix<double>::Identity(d, d) + 0.3 * normal<double>(d, d, 91);
  return (normal<double>(rows, d, seed) * deviations.asDiagonal() * mix).rowwise() +
         0.3 * normal<double>(1, d, 92).row(0);
}

Matrix<double> values(Index rows = n) { return normal<double>(rows, d_v, 3); }

RelativePosition<double> table() {
  return RelativePosition<double>(Vector<double>(0.5 * normal_vector<double>(2 * n - 1, 5)));
}

template <class T>
std::string saved(const CalibratedFeatures<T>& map) {
  std::ostringstream out;
  map.save(out);
  return out.str();
}

double relative(const Matrix<double>& y, const Matrix<double>& exact) { return (y - exact).norm() / exact.norm(); }

// the error of an attention beside softmax without an offset
template <class F, class P>
double error_of(const Attention<F, P>& attention, const Matrix<double>& q, const Matrix<double>& k,
                const Matrix<double>& v, Index offset = 0) {
  const AttentionOptions& options = attention.options();
  return relative(
      attention(q, k, v, {.offset = offset}),
      reference::softmax_attention<double>(q, k, v, attention.position(), options.direction, options.normalization));
}

// the half of a sample that errors are measured by
Matrix<double> second(const Matrix<double>& x) { return x.bottomRows(x.rows() / 2); }

HeadsView<const double> heads_view(const Vector<double>& x, Index batch, Index heads, Index columns) {
  return {x.data(), batch, heads, n, columns};
}

}  // namespace

TEST_CASE("calibrate: the error is that of attention with the map on the second half of the sample", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Normalization normalization : {Normalization::none(), Normalization::unit(1.5)}) {
      const auto c = calibrate<double>(q, k, v, table(),
                                       {.num_features = 8, .direction = direction, .normalization = normalization});
      const AttentionOptions options{.direction = direction, .normalization = normalization, .engine = Engine::direct};
      const Attention attention(c.features, table(), options);
      const Matrix<double> exact =
          reference::softmax_attention<double>(second(q), second(k), second(v), table(), direction, normalization);
      const double twin = relative(reference::kernelized_attention(attention, second(q), second(k), second(v)), exact);
      CHECK(c.softmax_error > 0.001);
      CHECK(c.softmax_error < 0.5);
      CHECK(std::abs(c.softmax_error - twin) <= 1e-10 * twin);
      CHECK(std::abs(c.softmax_error - error_of(attention, second(q), second(k), second(v))) <= 1e-8 * twin);
    }
}

TEST_CASE("calibrate: in float the error is that of the rounded map", "[calibration]") {
  const Matrix<float> q = gaussian(n, 1).cast<float>(), k = gaussian(n, 2).cast<float>(), v = values().cast<float>();
  const AlibiPosition<float> position(0.1f);
  const auto c = calibrate<float>(q, k, v, position, {.num_features = 8, .normalization = Normalization::none()});
  const Attention attention(c.features, position, {.normalization = Normalization::none()});
  const Matrix<float> y = attention(q.bottomRows(n / 2), k.bottomRows(n / 2), v.bottomRows(n / 2)),
                      exact = reference::softmax_attention<float>(q.bottomRows(n / 2), k.bottomRows(n / 2),
                                                                  v.bottomRows(n / 2), position,
                                                                  Direction::bidirectional, Normalization::none());
  CHECK(std::abs(c.softmax_error - relative(y.cast<double>(), exact.cast<double>())) <= 64 * epsilon<float>);
}

TEST_CASE("calibrate: constants and choice depend on the first half alone", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  Matrix<double> other_q = q, other_k = k, other_v = v;
  other_q.bottomRows(n / 2) = gaussian(n / 2, 11, 1);
  other_k.bottomRows(n / 2) = gaussian(n / 2, 12, 1);
  other_v.bottomRows(n / 2) *= -1;
  const CalibrationOptions options{.num_features = 15, .near = 3, .normalization = Normalization::none()};
  const auto one = calibrate<double>(q, k, v, table(), options),
             other = calibrate<double>(other_q, other_k, other_v, table(), options);
  CHECK(saved(one.features) == saved(other.features));
  CHECK(one.softmax_error != other.softmax_error);
  CHECK(saved(calibrate<double>(other_q, q, v, table(), options).features) != saved(one.features));
}

TEST_CASE("calibrate: the constants are those of Gaussian queries and keys", "[calibration]") {
  const Index many = 8000;
  const auto c = calibrate<double>(
      gaussian(many, 1, 0.3), gaussian(many, 2, 0.3), values(many), NoPosition<double>(),
      {.num_features = d + 1, .normalization = Normalization::none(), .shrinkage = 1e-6, .max_queries = 200});
  // of equal covariances S the axes are the eigenvectors, and the variances those of S
  const Matrix<double> x = gaussian(1, 92), mix = Matrix<double>::Identity(d, d) + 0.3 * normal<double>(d, d, 91);
  const Vector<double> deviations = 0.3 * (Vector<double>(d) << 1.5, 1, 0.6, 0.3).finished();
  const Matrix<double> S = mix.transpose() * deviations.cwiseAbs2().asDiagonal() * mix / std::sqrt(double(d));
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> axes(Eigen::MatrixXd{S});
  const Vector<double>& lambda = c.features.features().terms().curvature;
  for (Index l = 0; l < d; ++l) {
    CHECK(std::abs(lambda[l] - axes.eigenvalues()[d - 1 - l]) < 0.06 * axes.eigenvalues()[d - 1 - l]);
    const Vector<double> axis = c.features.constants().query_axes.row(l).transpose().normalized();
    if (l == 0) CHECK(std::abs(axis.dot(axes.eigenvectors().col(d - 1))) > 0.99);
  }
  const Vector<double> mean = 0.3 * normal<double>(1, d, 92).row(0).transpose() / std::pow(double(d), 0.25);
  CHECK((c.features.constants().query_mean - mean).norm() < 0.03);
  // of first order the largest error is of the second: lambda^2 / sqrt(2) for each coordinate, and less than thrice
  // that
  CHECK(c.softmax_error < 3 * axes.eigenvalues().squaredNorm());
  CHECK(c.softmax_error > 0.01 * axes.eigenvalues().squaredNorm());
}

TEST_CASE("calibrate: more features only if they lower the error", "[calibration]") {
  const CalibrationOptions options{.num_features = 15, .normalization = Normalization::none()};
  // all coordinates matter
  const auto all = calibrate<double>(gaussian(n, 1), gaussian(n, 2), values(), NoPosition<double>(), options);
  CHECK(all.features.output_dim() > d + 1);
  CHECK(all.features.output_dim() <= 15);
  // one coordinate alone varies
  Matrix<double> q = Matrix<double>::Constant(n, d, 0.4), k = q;
  q.col(1) = gaussian(n, 1).col(0), k.col(1) = gaussian(n, 2).col(0);
  const auto one = calibrate<double>(q, k, values(), NoPosition<double>(), options);
  CHECK(one.features.output_dim() < all.features.output_dim());
  // the choice is that of the table
  for (const auto* each : {&all, &one}) {
    double least = std::numeric_limits<double>::infinity(), chosen = least;
    for (const CalibrationCandidate& candidate : each->candidates) {
      least = std::min(least, candidate.error);
      if (candidate.num_features() == each->features.output_dim()) chosen = candidate.error;
    }
    CHECK(chosen <= 1.02 * least);
  }
}

TEST_CASE("calibrate: float compares the maps in float, to the same errors", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  const CalibrationOptions options{.num_features = 15, .near = 2};
  const auto wide = calibrate<double>(q, k, v, table(), options);
  const RelativePosition<float> position(Vector<float>(table().bias().table.cast<float>()));
  const auto narrow = calibrate<float>(q.cast<float>(), k.cast<float>(), v.cast<float>(), position, options);
  REQUIRE(narrow.candidates.size() == wide.candidates.size());
  // weights exp(q.k + b) with rounded rows and biases, of terms that cancel at most to a sixteenth (terms_cancel)
  constexpr double tolerance = 16 * 2 * (d + 4) * epsilon<float>;
  for (std::size_t c = 0; c < wide.candidates.size(); ++c)
    CHECK(std::abs(narrow.candidates[c].error - wide.candidates[c].error) <= tolerance);
  CHECK(narrow.features.output_dim() == wide.features.output_dim());
  CHECK(std::abs(narrow.softmax_error - wide.softmax_error) <= tolerance);
}

TEST_CASE("calibrate: quarters whose pairs are all near are compared with the keys of the first half",
          "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  const RelativePosition<double> position = table();
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index near : {n / 4 - 1, n / 4, n / 2 - 8}) {
      const auto c = calibrate<double>(q, k, v, position, {.num_features = 8, .near = near, .direction = direction});
      const SampleTokens<double> half = sample_tokens<double>(q, k, v, Normalization::unit(1)).half(0);
      const HeadSample<double> used{{half}, detail::sample_pairs<double>(position, near)};
      for (const CalibrationCandidate& each : c.candidates) {
        SoftmaxDifference sum;
        for (const Index tested : {0, 1}) {
          HeadSample<double> part = used.half(tested);
          if (near >= n / 4) {
            part.sequences[0].k = half.k, part.sequences[0].v = half.v, part.sequences[0].first_key = 0;
            if (tested == 0 && direction == Direction::causal) continue;  // all keys before these queries are near
          }
          const auto map = hermite_features(used.half(1 - tested).balance(0.05), each.first, each.second);
          sum += softmax_difference(part, map, {.direction = direction, .max_row_error = 1});
        }
        CHECK(std::abs(each.error - sum.relative_error()) <= 1e-10 * each.error);
        CHECK(each.error > 0);
      }
      const Attention attention(c.features, position, {.direction = direction, .engine = Engine::direct, .near = near});
      const double error = error_of(attention, second(q), second(k), second(v));
      CHECK(error > 0);
      CHECK(std::abs(c.softmax_error - error) <= 1e-8 * error);
    }
}

TEST_CASE("calibrate: a budget of any size, with its candidates in increasing order", "[calibration]") {
  for (const Index budget : {1, 2, 4, 5, 6, 15, 99}) {
    const auto c = calibrate<double>(gaussian(n, 1), gaussian(n, 2), {.num_features = budget});
    CHECK(c.features.output_dim() <= budget);
    for (std::size_t l = 0; l + 1 < c.candidates.size(); ++l)
      CHECK(c.candidates[l].num_features() < c.candidates[l + 1].num_features());
    CHECK(c.candidates.back().num_features() == std::min<Index>(budget, 15));
  }
}

TEST_CASE("calibrate: a target error gives the fewest features that reach it", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  CalibrationOptions options{.num_features = 15, .normalization = Normalization::none()};
  const auto all = calibrate<double>(q, k, v, table(), options);
  for (std::size_t l = 0; l < all.candidates.size(); ++l) {
    options.target_error = all.candidates[l].error * (1 + 1e-12);  // other limits have sums in another order
    std::size_t first = 0;
    while (all.candidates[first].error > options.target_error) ++first;
    const auto limited = calibrate<double>(q, k, v, table(), options);
    CHECK(limited.features.output_dim() == all.candidates[first].num_features());
    CalibrationOptions unlimited = options;
    unlimited.num_features = 0;
    CHECK(saved(calibrate<double>(q, k, v, table(), unlimited).features) == saved(limited.features));
  }
  options.target_error = 1e-9;  // out of reach: as without a target, from all candidates
  CHECK(saved(calibrate<double>(q, k, v, table(), options).features) == saved(all.features));
  options.num_features = 0;
  CHECK(saved(calibrate<double>(q, k, v, table(), options).features) == saved(all.features));
  options.num_features = -1;
  check_invalid([&] { calibrate<double>(q, k, v, table(), options); }, {"num_features: expected at least 0, got -1"});
}

TEST_CASE("calibrate: without values the error is that of the weights", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2);
  const CalibrationOptions options{.num_features = 5, .near = 4};
  const auto weights = calibrate<double>(q, k, table(), options);
  // the weights are the outputs of values 1 at one token each
  const auto outputs = calibrate<double>(q, k, Matrix<double>(Matrix<double>::Identity(n, n)), table(), options);
  CHECK(std::abs(weights.softmax_error - outputs.softmax_error) <= 1e-10 * weights.softmax_error);
  CHECK(saved(weights.features) == saved(outputs.features));
  CHECK(saved(calibrate<double>(q, k, options).features) ==
        saved(calibrate<double>(q, k, NoPosition<double>(), options).features));
}

TEST_CASE("calibrate: cross attention", "[calibration]") {
  const auto cross = calibrate<double>(gaussian(50, 1), gaussian(80, 2), values(80), table(), {.num_features = 5});
  CHECK(cross.softmax_error > 0);
  CHECK(cross.softmax_error < 0.5);
  // causal: the keys after the last query matter to nothing
  const Matrix<double> q = gaussian(40, 1), k = gaussian(n, 2), v = values();
  const CalibrationOptions options{.num_features = 5, .near = 4, .direction = Direction::causal};
  const auto more = calibrate<double>(q, k, v, table(), options),
             same = calibrate<double>(q, k.topRows(40), v.topRows(40), table(), options);
  CHECK(more.softmax_error > 0);
  CHECK(more.softmax_error == same.softmax_error);
  CHECK(saved(more.features) == saved(same.features));
  const auto fewer = calibrate<double>(k, q, v.topRows(40), table(), options);  // fewer keys than queries
  CHECK(fewer.softmax_error > 0);
}

TEST_CASE("calibrate: on a grid the error is that of attention with a square of near cells", "[calibration]") {
  constexpr Index height = 8, width = 12;
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  Matrix<double> b = normal<double>(2 * height - 1, 2 * width - 1, 1);
  b.col(width - 1).array() += 4;  // much of the weight is above and below
  const auto c = calibrate<double>(q, k, v, GridPosition<double>(height, width, b), {.num_features = 5, .near = 2});
  // the second half is the lower half of the grid
  const GridPosition<double> lower(height / 2, width, b.middleRows(height / 2, height - 1));
  const Attention attention(c.features, lower, {.engine = Engine::direct, .near = 2});
  const double error = error_of(attention, second(q), second(k), second(v));
  CHECK(std::abs(c.softmax_error - error) <= 1e-8 * error);
  check_invalid(
      [&] { calibrate<double>(gaussian(n - 4, 1), k, v, GridPosition<double>(height, width, b), {.num_features = 5}); },
      {"expected 96 rows each (the position's tokens)", "got 92 and 96"});
}

TEST_CASE("calibrate: near cells are less than `near` rows and columns apart, and extra tokens never near",
          "[calibration]") {
  constexpr Index height = 5, width = 4, E = 2;
  const GridPosition<double> grid(height, width, normal<double>(2 * height - 1, 2 * width - 1, 1),
                                  normal<double>(E, E + 2, 2));
  for (const Index near : {0, 1, 2, 3, 9}) {
    const SamplePairs pairs = detail::sample_pairs<double>(grid, near);
    for (Index i = 0; i < grid.tokens(); ++i)
      for (Index j = 0; j < grid.tokens(); ++j) {
        const Index rows = std::abs((i - E) / width - (j - E) / width),
                    columns = std::abs((i - E) % width - (j - E) % width);
        double bias = 0;
        bool is_near = false;
        pairs.fill(i, j, {&bias, 1}, {&is_near, 1});
        CHECK(is_near == (i >= E && j >= E && rows < near && columns < near));
        CHECK(bias == grid.bias(i, j));
      }
  }
}

TEST_CASE("calibrate: sinks are exact keys of each half, and do not change the constants", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), v = values();
  Matrix<double> k = gaussian(n, 2);
  k.topRows(3) *= 4;
  const CalibrationOptions options{.num_features = 8, .near = 2, .sinks = 3, .normalization = Normalization::none()};
  const auto c = calibrate<double>(q, k, v, NoPosition<double>(), options);
  // the keys of the second half
  const Index first = 3 + (n - 3) / 2, count = n - first;
  Matrix<double> keys(3 + count, d), its_values(3 + count, d_v);
  keys << k.topRows(3), k.bottomRows(count);
  its_values << v.topRows(3), v.bottomRows(count);
  const Matrix<double> queries = q.bottomRows(n / 2);
  // without a position, and with near pairs of the offset of key 3 to its place in the sample
  const Attention attention(c.features, NoPosition<double>(),
                            {.normalization = Normalization::none(), .engine = Engine::direct, .near = 2, .sinks = 3});
  const double error = error_of(attention, queries, keys, its_values, n / 2 - first + 3);
  CHECK(std::abs(c.softmax_error - error) <= 1e-8 * error);
  CalibrationOptions without = options;
  without.sinks = 0;
  CHECK(calibrate<double>(q, k, v, NoPosition<double>(), without).softmax_error > 2 * c.softmax_error);
  Matrix<double> other = k;
  other.topRows(3) = gaussian(3, 7);
  const auto same = calibrate<double>(q, other, v, NoPosition<double>(), options);
  CHECK(same_bits<double>(same.features.constants().key_mean, c.features.constants().key_mean));
  CHECK(same_bits<double>(same.features.constants().query_axes, c.features.constants().query_axes));
  // a whole sequence measures the error: the sinks are where attention has them
  Vector<double> all_q(2 * n * d), all_k(2 * n * d), all_v(2 * n * d_v);
  for (Index b = 0; b < 2; ++b) {
    Eigen::Map<Matrix<double>>(all_q.data() + b * n * d, n, d) = b == 0 ? gaussian(n, 8) : q;
    Eigen::Map<Matrix<double>>(all_k.data() + b * n * d, n, d) = k;
    Eigen::Map<Matrix<double>>(all_v.data() + b * n * d_v, n, d_v) = v;
  }
  const RelativePosition<double> position = table();
  CalibrationOptions causal = options;
  causal.direction = Direction::causal;
  const auto whole = calibrate_heads<double>(heads_view(all_q, 2, 1, d), heads_view(all_k, 2, 1, d),
                                             heads_view(all_v, 2, 1, d_v), std::span(&position, 1), causal);
  const Attention of_whole(whole.features[0], position,
                           {.direction = Direction::causal,
                            .normalization = Normalization::none(),
                            .engine = Engine::direct,
                            .near = 2,
                            .sinks = 3});
  const double got = error_of(of_whole, q, k, v);
  CHECK(std::abs(whole.softmax_error - got) <= 1e-8 * got);
}

TEST_CASE("calibrate: heads have maps of equal size and constants of their own", "[calibration]") {
  const Index batch = 2, heads = 4, kv_heads = 2;
  Vector<double> q(batch * heads * n * d), k(batch * kv_heads * n * d), v(batch * kv_heads * n * d_v);
  const auto rows = [&](Vector<double>& x, Index at, Index columns) {
    return Eigen::Map<Matrix<double>>(x.data() + at * n * columns, n, columns);
  };
  for (Index at = 0; at < batch * heads; ++at)
    rows(q, at, d) = gaussian(n, 1 + static_cast<std::uint64_t>(at), 0.2 + 0.1 * static_cast<double>(at % heads));
  for (Index at = 0; at < batch * kv_heads; ++at) {
    rows(k, at, d) = gaussian(n, 21 + static_cast<std::uint64_t>(at));
    rows(v, at, d_v) = normal<double>(n, d_v, 41 + static_cast<std::uint64_t>(at));
  }
  std::vector<AlibiPosition<double>> positions;
  for (Index h = 0; h < heads; ++h) positions.emplace_back(0.02 * static_cast<double>(1 + h));
  const CalibrationOptions options{.num_features = 15, .near = 3, .direction = Direction::causal};
  const auto all = calibrate_heads<double>(heads_view(q, batch, heads, d), heads_view(k, batch, kv_heads, d),
                                           heads_view(v, batch, kv_heads, d_v),
                                           std::span<const AlibiPosition<double>>(positions), options);
  REQUIRE(all.features.size() == 4);
  REQUIRE(all.head_errors.size() == 4);
  const MultiHeadAttention attention(all.features, positions, {.direction = Direction::causal});  // of equal sizes
  for (Index h = 1; h < heads; ++h) CHECK(saved(all.features[static_cast<std::size_t>(h)]) != saved(all.features[0]));
  CHECK(all.softmax_error <= *std::max_element(all.head_errors.begin(), all.head_errors.end()));
  CHECK(all.softmax_error >= *std::min_element(all.head_errors.begin(), all.head_errors.end()));

  // one head of one sequence: as calibrate, and each head as with the keys that it shares
  const Vector<double> q2 = q.segment(2 * n * d, n * d), k1 = k.segment(n * d, n * d), v1 = v.segment(n * d_v, n * d_v);
  const auto one = calibrate<double>(rows(q, 2, d), rows(k, 1, d), rows(v, 1, d_v), positions[2], options);
  const auto same = calibrate_heads<double>(heads_view(q2, 1, 1, d), heads_view(k1, 1, 1, d), heads_view(v1, 1, 1, d_v),
                                            std::span<const AlibiPosition<double>>(&positions[2], 1), options);
  CHECK(saved(same.features[0]) == saved(one.features));
  CHECK(same.softmax_error == one.softmax_error);
  const auto first_sequence = calibrate_heads<double>({q.data(), 1, heads, n, d}, {k.data(), 1, kv_heads, n, d},
                                                      {v.data(), 1, kv_heads, n, d_v},
                                                      std::span<const AlibiPosition<double>>(positions), options);
  const Centring<double>&got = first_sequence.features[2].constants(), &expected = one.features.constants();
  CHECK(same_bits<double>(got.query_mean, expected.query_mean));
  CHECK(same_bits<double>(got.key_mean, expected.key_mean));
  CHECK(saved(first_sequence.features[2]) != saved(all.features[2]));  // two sequences give other constants
}

TEST_CASE("calibrate: of several sequences the last ones measure the error, whole", "[calibration]") {
  Vector<double> q(3 * n * d), k(3 * n * d), v(3 * n * d_v);
  for (Index b = 0; b < 3; ++b) {
    Eigen::Map<Matrix<double>>(q.data() + b * n * d, n, d) = gaussian(n, 1 + static_cast<std::uint64_t>(b));
    Eigen::Map<Matrix<double>>(k.data() + b * n * d, n, d) = gaussian(n, 11 + static_cast<std::uint64_t>(b));
    Eigen::Map<Matrix<double>>(v.data() + b * n * d_v, n, d_v) =
        normal<double>(n, d_v, 21 + static_cast<std::uint64_t>(b));
  }
  const RelativePosition<double> position = table();
  const auto calibrated = [&] {
    return calibrate_heads<double>(heads_view(q, 3, 1, d), heads_view(k, 3, 1, d), heads_view(v, 3, 1, d_v),
                                   std::span(&position, 1), {.num_features = 8, .near = 2});
  };
  const auto all = calibrated();
  const SampleTokens<double> last = sample_tokens<double>(heads_view(q, 3, 1, d)(2, 0), heads_view(k, 3, 1, d)(2, 0),
                                                          heads_view(v, 3, 1, d_v)(2, 0), Normalization::unit(1));
  const SamplePairs pairs = detail::sample_pairs<double>(position, 2);
  CHECK(all.softmax_error == softmax_difference<double>({{last}, pairs}, all.features[0], {}).relative_error());
  q.tail(n * d) *= -2, v.tail(n * d_v).setOnes();
  CHECK(saved(calibrated().features[0]) == saved(all.features[0]));
  q.segment(n * d, n * d) *= -2;  // the second one is used for the constants
  CHECK(saved(calibrated().features[0]) != saved(all.features[0]));
}

TEST_CASE("calibrate: the same sample gives the same bits", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2);
  const auto one = calibrate<double>(q, k, {.num_features = 15, .max_queries = 10}),
             again = calibrate<double>(q, k, {.num_features = 15, .max_queries = 10});
  CHECK(saved(one.features) == saved(again.features));
  CHECK(one.softmax_error == again.softmax_error);
  CHECK(calibrate<double>(q, k, {.num_features = 15, .seed = 1, .max_queries = 10}).softmax_error != one.softmax_error);
}

TEST_CASE("calibrate: bad samples and options are rejected", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  const NoPosition<double> none;
  const auto with = [&](const CalibrationOptions& options) {
    return [=] { calibrate<double>(q, k, v, none, options); };
  };
  check_invalid(with({.num_features = 0}), {"num_features: expected at least 1, or a target_error, got 0"});
  check_invalid(with({.num_features = 5, .near = -1}), {"near: expected at least 0, got -1"});
  check_invalid(with({.num_features = 5, .sinks = -1}), {"sinks: expected at least 0, got -1"});
  check_invalid(with({.num_features = 5, .sinks = 89}), {"sinks: expected at most 88 of 96 keys", "got 89"});
  check_invalid(with({.num_features = 5, .near = 48}),
                {"a key that is neither near nor a sink", "queries 24 to 47 with keys 0 to 47"});
  check_invalid(with({.num_features = 5, .direction = static_cast<Direction>(7)}), {"direction: expected", "7"});
  check_invalid(with({.num_features = 5, .target_error = -0.1}), {"target_error: expected at least 0, got -0.1"});
  check_invalid(with({.num_features = 5, .target_error = std::nan("")}), {"target_error: expected at least 0"});
  check_invalid(with({.num_features = 5, .shrinkage = 0}), {"shrinkage: expected more than 0"});
  check_invalid(with({.num_features = 5, .max_queries = 0}), {"max_queries: expected at least 1, got 0"});
  check_invalid([&] { calibrate<double>(q.topRows(7), k, v, none, {.num_features = 5}); },
                {"queries: expected at least 8 rows, got 7"});
  check_invalid([&] { calibrate<double>(q, k, v.topRows(9), none, {.num_features = 5}); },
                {"values: expected 96 rows", "got 9"});
  check_invalid([&] { calibrate<double>(q.leftCols(3), k, v, none, {.num_features = 5}); },
                {"keys: expected 3 columns", "got 4"});
  Matrix<double> bad = q;
  bad(3, 1) = std::numeric_limits<double>::infinity();
  check_invalid([&] { calibrate<double>(bad, k, v, none, {.num_features = 5}); }, {"expected finite scalars"});
  const auto t5 = t5_position<double>(Vector<double>::Zero(32), Direction::causal);
  check_invalid([&] { calibrate<double>(q, k, v, t5, {.num_features = 5}); }, {"position: expected one for"});
}

TEST_CASE("calibrate: views of heads that do not fit together are rejected", "[calibration]") {
  const Vector<double> x = normal_vector<double>(24 * n * d, 1);
  const std::vector<NoPosition<double>> positions(3);
  struct Sizes {
    Index batch, heads;
  };
  const auto with = [&](Sizes q, Sizes k, Sizes v, std::size_t count) {
    return [&x, &positions, q, k, v, count] {
      calibrate_heads<double>(heads_view(x, q.batch, q.heads, d), heads_view(x, k.batch, k.heads, d),
                              heads_view(x, v.batch, v.heads, d), std::span(positions.data(), count),
                              {.num_features = 5});
    };
  };
  with({2, 3}, {2, 3}, {2, 3}, 3)();
  check_invalid(with({0, 3}, {0, 3}, {0, 3}, 1), {"queries: expected at least one sequence and head, got 0 and 3"});
  check_invalid(with({2, 3}, {1, 3}, {2, 3}, 1), {"keys and values: expected 2 sequences", "got 1 and 2"});
  check_invalid(with({2, 3}, {2, 2}, {2, 2}, 1), {"keys: expected a number of heads that divides 3", "got 2"});
  check_invalid(with({2, 3}, {2, 3}, {2, 1}, 1), {"values: expected 3 heads", "got 1"});
  check_invalid(with({2, 3}, {2, 3}, {2, 3}, 2), {"positions: expected 1 or 3", "got 2"});
}

namespace {

// a poll that throws at the given call, and its number of calls so far
thread_local int polls = 0, stop_at = 0;

struct Stopped {};

void count_or_stop() {
  if (++polls == stop_at) throw Stopped();
}

}  // namespace

TEST_CASE("calibrate: a poll ends it at any part, and does not change the result", "[calibration]") {
  const Matrix<double> q = gaussian(n, 1), k = gaussian(n, 2), v = values();
  const auto calibrated = [&](void (*poll)()) {
    return calibrate<double>(q, k, v, table(), {.num_features = 8, .poll = poll});
  };
  polls = stop_at = 0;
  CHECK(saved(calibrated(count_or_stop).features) == saved(calibrated(nullptr).features));
  const int all = polls;
  CHECK(all >= 3);  // the two halves that errors are estimated by, and the measurement
  for (stop_at = 1; stop_at <= 3; ++stop_at) {
    polls = 0;
    CHECK_THROWS_AS(calibrated(count_or_stop), Stopped);
    CHECK(polls == stop_at);
  }
}

}  // namespace nprf::test::calibration_calibrate
