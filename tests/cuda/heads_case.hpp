// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "nprf/cuda.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test {

/// y and the gradients of all heads of a plan; rows are [batch, heads, tokens].
struct HeadsResults {
  Matrix<float> y, dq, dk, dv, parameters;  // parameters: [position, parameter]
  cuda::Counts counts;
};

/// The queries, keys, values and dy of several heads and sequences; rows are [batch, heads, tokens].
struct HeadsCase {
  HeadsCase(const cuda::PlanShape& shape_, Index d)
      : shape(shape_),
        q(normal<float>(shape.batch * shape.heads * shape.n_q, d, 1)),
        k(normal<float>(shape.batch * shape.heads / shape.group() * shape.n_k, d, 2)),
        v(normal<float>(k.rows(), shape.d_v, 3)),
        dy(normal<float>(q.rows(), shape.d_v, 4)) {}

  /// The number of matrices z = (sequence, head of queries).
  Index matrices() const { return shape.batch * shape.heads; }
  /// The rows of queries of z, and those of the keys or values that z attends to.
  Matrix<float> queries_of(const Matrix<float>& x, Index z) const { return x.middleRows(z * shape.n_q, shape.n_q); }
  Matrix<float> keys_of(const Matrix<float>& x, Index z) const {
    return x.middleRows(z / shape.group() * shape.n_k, shape.n_k);
  }

  /// The same with keys and values for each head of queries.
  HeadsCase repeated() const {
    HeadsCase x = *this;
    x.shape.heads_k = 0;
    x.k.resize(matrices() * shape.n_k, k.cols());
    x.v.resize(matrices() * shape.n_k, v.cols());
    for (Index z = 0; z < matrices(); ++z) {
      x.k.middleRows(z * shape.n_k, shape.n_k) = keys_of(k, z);
      x.v.middleRows(z * shape.n_k, shape.n_k) = keys_of(v, z);
    }
    return x;
  }
  /// The sums over each group of heads of rows of the keys of repeated().
  Matrix<float> summed(const Matrix<float>& x) const {
    Matrix<float> sum = Matrix<float>::Zero(k.rows(), x.cols());
    for (Index z = 0; z < matrices(); ++z)
      sum.middleRows(z / shape.group() * shape.n_k, shape.n_k) += x.middleRows(z * shape.n_k, shape.n_k);
    return sum;
  }

  /// The results of a plan with gradients. Their memory is NaN before the calls.
  template <class S>
  HeadsResults results(const cuda::AttentionPlan<S>& plan, const cuda::PlanCall& call = {}) const {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const auto poisoned = [&](const Matrix<float>& like) {
      return DeviceArray<S>(stored<S>(Matrix<float>::Constant(like.rows(), like.cols(), nan)));
    };
    const DeviceArray<S> of_q(stored<S>(q)), of_k(stored<S>(k)), of_v(stored<S>(v)), of_dy(stored<S>(dy));
    const DeviceArray<S> y = poisoned(dy), dq = poisoned(q), dk = poisoned(k), dv = poisoned(v);
    const auto queries = [&](const DeviceArray<S>& x, Index channels) {
      return cuda::DeviceMatrixView<S>(x.data(), shape.batch, shape.heads, shape.n_q, channels);
    };
    const auto keys = [&](const DeviceArray<S>& x, Index channels) {
      return cuda::DeviceMatrixView<S>(x.data(), shape.batch, shape.heads / shape.group(), shape.n_k, channels);
    };
    const std::vector<cuda::PositionModel>& positions = plan.model().positions;
    const std::size_t parameters_of_position = positions.front().parameters.size();
    const DeviceArray<float> parameters(std::vector<float>(positions.size() * parameters_of_position, nan));
    const Index d = q.cols(), d_v = v.cols();
    plan.forward(queries(of_q, d), keys(of_k, d), keys(of_v, d_v), queries(y, d_v), call, nullptr);
    plan.backward(queries(of_q, d), keys(of_k, d), keys(of_v, d_v), queries(of_dy, d_v),
                  {queries(dq, d), keys(dk, d), keys(dv, d_v), parameters.data()}, call, nullptr);
    const auto matrix = [](const DeviceArray<S>& x, const Matrix<float>& like) {
      return as_floats(x.fetch(), like.rows(), like.cols());
    };
    return {
        matrix(y, dy),
        matrix(dq, q),
        matrix(dk, k),
        matrix(dv, v),
        as_floats(parameters.fetch(), static_cast<Index>(positions.size()), static_cast<Index>(parameters_of_position)),
        plan.host_counts(call)};
  }

  cuda::PlanShape shape;
  Matrix<float> q, k, v, dy;
};

/// Checks the results of a plan against the CPU's for the attention attention_of(head): y relative to the largest |v|,
/// and gradients relative to the terms that they are sums of. key_mask, which may be empty, is [batch, n_k]; lengths
/// are those of the sequences, or none.
template <class AttentionOf>
void check_heads(const HeadsCase& x, const HeadsResults& got, const AttentionOf& attention_of, double y_tolerance,
                 double gradient_tolerance, const std::vector<unsigned char>& key_mask = {},
                 const std::vector<int>& lengths = {}) {
  const Index n_k = x.shape.n_k, group = x.shape.group();
  const auto zeros = [](const Matrix<float>& like) {
    return Matrix<float>(Matrix<float>::Zero(like.rows(), like.cols()));
  };
  Matrix<float> dk = zeros(x.k), dv = zeros(x.v), parameters = zeros(got.parameters);
  std::vector<double> of_keys(static_cast<std::size_t>(x.matrices() / group)), of_values(of_keys.size());
  double of_parameters = 0;
  const auto check = [](const char* what, const Matrix<float>& a, const Matrix<float>& b, double most) {
    INFO(what);
    if (a.size() > 0) CHECK(static_cast<double>((a - b).cwiseAbs().maxCoeff()) <= most);
  };
  for (Index z = 0; z < x.matrices(); ++z) {
    INFO("z " << z);
    const auto b = static_cast<std::size_t>(z / x.shape.heads), of_group = static_cast<std::size_t>(z / group);
    const Index length = lengths.empty() ? n_k : lengths[b], j = z / group * n_k;
    if (length == 0) {
      CHECK((x.queries_of(got.y, z).isZero(0) && x.queries_of(got.dq, z).isZero(0)));
      continue;
    }
    const Matrix<float> q = x.queries_of(x.q, z), k = x.keys_of(x.k, z).topRows(length),
                        v = x.keys_of(x.v, z).topRows(length), dy = x.queries_of(x.dy, z);
    const auto attention = attention_of(z % x.shape.heads);
    const bool* mask =
        key_mask.empty() ? nullptr : reinterpret_cast<const bool*>(key_mask.data()) + z / x.shape.heads * n_k;
    Saved<float> saved;
    const Matrix<float> y = attention.forward(
        q, k, v, saved,
        {.key_mask = {mask, static_cast<std::size_t>(mask ? length : 0)}, .offset = x.shape.offset, .tolerance = 1e-6});
    const Gradients<float> expected = attention.backward(saved, dy);
    const GradientMagnitudes sizes = gradient_magnitudes(attention, q, k, v, dy, x.shape.offset);
    check("y", x.queries_of(got.y, z), y, y_tolerance * static_cast<double>(v.cwiseAbs().maxCoeff()));
    check("dq", x.queries_of(got.dq, z), expected.queries, gradient_tolerance * sizes.queries);
    dk.middleRows(j, length) += expected.keys, of_keys[of_group] += sizes.keys;
    dv.middleRows(j, length) += expected.values, of_values[of_group] += sizes.values;
    auto own = parameters.row(parameters.rows() == 1 ? 0 : z % x.shape.heads);
    own.head(expected.bias.size()) += expected.bias.template reshaped<Eigen::RowMajor>().transpose();
    own.tail(expected.extra.size()) += expected.extra.template reshaped<Eigen::RowMajor>().transpose();
    of_parameters += std::max(sizes.bias, sizes.extra);
  }
  for (std::size_t g = 0; g < of_keys.size(); ++g) {
    INFO("keys " << g);
    const Index j = static_cast<Index>(g) * n_k;
    check("dk", got.dk.middleRows(j, n_k), dk.middleRows(j, n_k), gradient_tolerance * of_keys[g]);
    check("dv", got.dv.middleRows(j, n_k), dv.middleRows(j, n_k), gradient_tolerance * of_values[g]);
  }
  check("parameters", got.parameters, parameters, gradient_tolerance * of_parameters);
}

}  // namespace nprf::test
