// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/recompute_log_domain_backward.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_recompute_log_domain_backward {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

// for sums of terms of one sign: the rounding errors of features, products and weights
constexpr double tolerance = 10 * eps;

/// The inputs of all heads of a batch, as row blocks of one matrix each.
struct Heads {
  Heads(const cuda::PlanShape& shape_, Index d)
      : shape(shape_),
        z(shape.batch * shape.heads),
        q(normal<float>(z * shape.n_q, d, 1)),
        k(normal<float>(z * shape.n_k, d, 2)),
        v(normal<float>(z * shape.n_k, shape.d_v, 3)),
        dy(normal<float>(z * shape.n_q, shape.d_v, 4)),
        mask(new bool[static_cast<std::size_t>(shape.batch * shape.n_k)]) {
    std::fill_n(mask.get(), shape.batch * shape.n_k, true);
  }

  cuda::PlanShape shape;
  Index z;
  Matrix<float> q, k, v, dy;
  std::unique_ptr<bool[]> mask;  // [batch, n_k]
};

/// The gradients of a plan, whose memory is NaN before the call, and the number of rows that forward recomputes in the
/// log domain.
template <class S>
Gradients<float> gradients_of(const Heads& x, const cuda::AttentionModel& model, cuda::Engine engine,
                              int& log_domain_rows) {
  const cuda::AttentionPlan<S> plan(model, x.shape, {.engine = engine, .gradients = true});
  const auto poisoned = [](const Matrix<float>& like) {
    return stored<S>(Matrix<float>::Constant(like.rows(), like.cols(), nan));
  };
  const DeviceArray<S> q(stored<S>(x.q)), k(stored<S>(x.k)), v(stored<S>(x.v)), dy(stored<S>(x.dy)), y(stored<S>(x.dy)),
      dq(poisoned(x.q)), dk(poisoned(x.k)), dv(poisoned(x.v));
  const std::size_t count = model.positions.size() * model.positions.front().parameters.size();
  const DeviceArray<float> parameters(std::vector<float>(count, nan));
  const DeviceArray<unsigned char> mask(
      std::vector<unsigned char>(x.mask.get(), x.mask.get() + x.shape.batch * x.shape.n_k));
  const auto view = [&](const DeviceArray<S>& a, Index tokens, Index channels) {
    return cuda::DeviceMatrixView<S>(a.data(), x.shape.batch, x.shape.heads, tokens, channels);
  };
  const auto& [batch, heads, n_q, n_k, d_v, offset, heads_k] = x.shape;
  const Index d = x.q.cols();
  const cuda::PlanCall call{.key_mask = reinterpret_cast<const bool*>(mask.data())};
  plan.forward(view(q, n_q, d), view(k, n_k, d), view(v, n_k, d_v), view(y, n_q, d_v), call, nullptr);
  const cuda::Counts counts = plan.host_counts(call);
  log_domain_rows = counts.log_domain_rows;
  plan.backward(view(q, n_q, d), view(k, n_k, d), view(v, n_k, d_v), view(dy, n_q, d_v),
                {view(dq, n_q, d), view(dk, n_k, d), view(dv, n_k, d_v), count == 0 ? nullptr : parameters.data()},
                call, nullptr);
  return {as_floats(dq.fetch(), x.q.rows(), d),
          as_floats(dk.fetch(), x.k.rows(), d),
          as_floats(dv.fetch(), x.v.rows(), d_v),
          as_floats(parameters.fetch(), static_cast<Index>(model.positions.size()),
                    static_cast<Index>(model.positions.front().parameters.size())),
          {},
          {}};
}

/// The largest error of any gradient, relative to the sum of the magnitudes of its terms. The expected values
/// come from attentions in double, one per head or one for all. If `shared`, all heads use the first one's position.
template <class S = float, class F, class P>
double error(const Heads& x, const std::vector<Attention<F, P>>& attentions, cuda::Engine engine,
             int min_log_domain_rows, bool shared = false) {
  static_assert(std::is_same_v<typename F::Scalar, double>);
  cuda::AttentionModel model = cuda::model_of(attentions.front());
  for (std::size_t h = 1; h < attentions.size(); ++h) {
    model.features.push_back(cuda::model_of(attentions[h].features()));
    if (!shared) model.positions.push_back(cuda::model_of(attentions[h].position()));
  }
  int log_domain_rows = 0;
  const Gradients<float> got = gradients_of<S>(x, model, engine, log_domain_rows);
  INFO(name(engine) << ", rows in the log domain " << log_domain_rows);
  CHECK(log_domain_rows >= min_log_domain_rows);

  LargestDifference worst;
  Matrix<double> bias = Matrix<double>::Zero(got.bias.rows(), got.bias.cols());
  double bias_magnitude = 0;
  const auto& [batch, heads, n_q, n_k, d_v, offset, heads_k] = x.shape;
  for (Index z = 0; z < x.z; ++z) {
    const auto of_head = [&](const Matrix<float>& a, Index n) -> Matrix<double> {
      const Matrix<float> rows = a.middleRows(z * n, n);
      return as_floats(stored<S>(rows), n, a.cols()).template cast<double>();
    };
    const Matrix<double> q = of_head(x.q, n_q), k = of_head(x.k, n_k), v = of_head(x.v, n_k), dy = of_head(x.dy, n_q);
    const std::size_t head = static_cast<std::size_t>(z % heads), index = attentions.size() > 1 ? head : 0;
    Saved<double> saved;
    const std::span<const bool> mask(x.mask.get() + z / heads * n_k, static_cast<std::size_t>(n_k));
    attentions[index].forward(q, k, v, saved, {.key_mask = mask, .offset = offset});
    const Gradients<double> expected = attentions[index].backward(saved, dy);
    const GradientMagnitudes sizes = gradient_magnitudes(attentions[index], q, k, v, dy, offset);
    worst.compare("dq", got.queries.middleRows(z * n_q, n_q), expected.queries, sizes.queries);
    worst.compare("dk", got.keys.middleRows(z * n_k, n_k), expected.keys, sizes.keys);
    worst.compare("dv", got.values.middleRows(z * n_k, n_k), expected.values, sizes.values);
    bias.row(got.bias.rows() > 1 ? z % heads : 0) += expected.bias.reshaped().transpose();
    bias_magnitude += sizes.bias;
  }
  worst.compare("bias", got.bias, bias, bias_magnitude);
  return worst.value();
}
template <class S = float, class F, class P>
double error(const Heads& x, const Attention<F, P>& attention, cuda::Engine engine, int min_log_domain_rows) {
  return error<S>(x, std::vector{attention}, engine, min_log_domain_rows);
}

/// The tolerance for exponents that are not small: it adds the rounding errors of the features of queries and keys, in
/// p and in its denominator.
template <class F, class P>
double with_exponents(const Attention<F, P>& attention, const Heads& x) {
  const double float_to_double_eps = eps / std::numeric_limits<double>::epsilon();
  const auto error_of = [&](const Matrix<float>& a) {
    const double scale = std::pow(static_cast<double>(a.cols()), -0.25);
    const double norm = scale * static_cast<double>(a.rowwise().norm().maxCoeff());
    return float_to_double_eps * attention.features().relative_error(norm);
  };
  return tolerance + 2 * (error_of(x.q) + error_of(x.k));
}

// maps in double, with the float projections of the plan

PositiveFeatures<double> positive(Index d, Index m, std::uint64_t seed = 7) {
  return PositiveFeatures<double>(orf<float>(d, m, seed).projection().cast<double>());
}
HyperbolicFeatures<double> hyperbolic(Index d, Index m) {
  return HyperbolicFeatures<double>(
      HyperbolicFeatures<float>({.input_dim = d, .num_features = m}).projection().cast<double>());
}

/// Biases that rise (sign 1) or fall (sign -1) by 100 every `width` lags: a row's sum is dominated by the keys of one
/// step.
RelativePosition<double> stairs(Index reach, Index width, double sign, std::uint64_t seed = 5) {
  Vector<float> b = 0.3f * normal_vector<float>(2 * reach + 1, seed);
  for (Index at = 0; at < b.size(); ++at) b[at] += static_cast<float>(sign * 100 * static_cast<double>(at / width));
  return RelativePosition<double>(b.cast<double>());
}

RelativePosition<double> ramp(Index reach, float step) {
  const Vector<float> b = Vector<float>::LinSpaced(2 * reach + 1, 0, step * static_cast<float>(2 * reach));
  return RelativePosition<double>(b.cast<double>());
}

const AttentionOptions causal{.direction = Direction::causal}, none{.normalization = Normalization::none()};

}  // namespace

TEST_CASE("gradients in the log domain agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const Heads x({.n_q = 100, .n_k = 80, .d_v = 3, .offset = 3}, 6);
    CHECK(error(x, Attention(positive(6, 8), stairs(110, 30, 1)), engine, 50) <= tolerance);
    CHECK(error(x, Attention(hyperbolic(6, 4), stairs(110, 30, -1)), engine, 50) <= tolerance);
  }
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
    const Heads x({.n_q = 40, .n_k = 70, .d_v = 70}, 7);
    const Attention unnormalised(hyperbolic(7, 70), stairs(70, 15, -1), none);
    CHECK(error(x, Attention(positive(7, 70), stairs(70, 15, 1)), engine, 20) <= tolerance);
    CHECK(error(x, unnormalised, engine, 20) <= with_exponents(unnormalised, x));
  }
}

TEST_CASE("gradients in the log domain are accurate at any height of a linear bias", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const Heads x({.n_q = 100, .n_k = 100, .d_v = 3}, 6);
    CHECK(error(x, Attention(positive(6, 16), ramp(100, 0.7f)), engine, 30) <= tolerance);
    CHECK(error(x, Attention(hyperbolic(6, 9), ramp(100, -1.5f)), engine, 60) <= tolerance);
    CHECK(error(x, Attention(positive(6, 16), ramp(100, -0.7f), causal), engine, 30) <= tolerance);
  }
}

TEST_CASE("gradients of ALiBi's slope are accurate for rows that attend only to distant keys", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const Heads x({.n_q = 200, .n_k = 70, .d_v = 5}, 6);
    CHECK(error(x, Attention(positive(6, 16), AlibiPosition<double>(1.5)), engine, 80) <= tolerance);
  }
}

TEST_CASE("gradients are accurate for rows whose features underflow", "[cuda]") {
  // log-scales differ by about 30^2 / 2
  for (const cuda::Engine engine : cuda_engines) {
    Heads x({.n_q = 90, .n_k = 90, .d_v = 5}, 6);
    x.q *= 20;
    x.k *= 20;
    x.k.row(7).setZero();  // its log-scale is far above all others; half of the rows do not attend to it
    Vector<double> table = Vector<double>::Zero(181);
    for (Index at = 0; at < 181; at += 2) table[at] = -std::numeric_limits<double>::infinity();
    const RelativePosition<double> halved(table);
    const Attention with_positive(positive(6, 16), halved, none);
    const Attention with_hyperbolic(hyperbolic(6, 9), halved, none);
    CHECK(error(x, with_positive, engine, 45) <= with_exponents(with_positive, x));
    CHECK(error(x, with_hyperbolic, engine, 45) <= with_exponents(with_hyperbolic, x));
  }
}

TEST_CASE("gradients in the log domain support many heads, padding and shared positions", "[cuda]") {
  Heads x({.batch = 2, .heads = 3, .n_q = 40, .n_k = 50, .d_v = 3}, 6);
  std::fill_n(x.mask.get() + 50 + 5, 20, false);  // keys 5 to 24 of the second sequence
  using Head = Attention<PositiveFeatures<double>, RelativePosition<double>>;
  const auto head = [](std::uint64_t seed, const RelativePosition<double>& position) {
    return Head(positive(6, 8, seed), position);
  };
  const RelativePosition<double> rising = stairs(50, 20, 1);
  const std::vector<Head> different{head(1, stairs(50, 20, 1, 1)), head(2, stairs(50, 200, 1, 2)),
                                    head(3, stairs(50, 25, -1, 3))};
  const std::vector<Head> equal{head(1, rising), head(2, rising), head(3, rising)};
  for (const cuda::Engine engine : cuda_engines) {
    CHECK(error(x, different, engine, 60) <= tolerance);
    CHECK(error(x, equal, engine, 100, true) <= tolerance);
  }
  int log_domain_rows = 0;
  const cuda::AttentionModel model = cuda::model_of(different.front());
  const Gradients<float> before = gradients_of<float>(x, model, cuda::Engine::direct, log_domain_rows);
  for (Index h = 3; h < 6; ++h) {
    x.k.middleRows(50 * h + 5, 20).setConstant(nan);
    x.v.middleRows(50 * h + 5, 20).setConstant(nan);
  }
  const Gradients<float> after = gradients_of<float>(x, model, cuda::Engine::direct, log_domain_rows);
  CHECK(after.queries == before.queries);
  CHECK(after.keys == before.keys);
  CHECK(after.values == before.values);
  CHECK(after.bias == before.bias);
}

TEST_CASE("gradients in the log domain can be stored in half precision", "[cuda]") {
  const Heads x({.n_q = 70, .n_k = 70, .d_v = 5}, 6);
  const Attention attention(positive(6, 16), stairs(70, 20, 1));
  CHECK(error<__half>(x, attention, cuda::Engine::direct, 40) <= 0x1p-11);
}

TEST_CASE("gradients in the log domain are affected only by keys that the row attends to", "[cuda]") {
  Heads x({.n_q = 90, .n_k = 90, .d_v = 5}, 6);
  const cuda::AttentionModel model = cuda::model_of(Attention(positive(6, 16), stairs(90, 30, -1), causal));
  int log_domain_rows = 0;
  const Gradients<float> before = gradients_of<float>(x, model, cuda::Engine::direct, log_domain_rows);
  x.k.bottomRows(60).setConstant(nan);
  x.v.bottomRows(60).setConstant(nan);
  const Gradients<float> after = gradients_of<float>(x, model, cuda::Engine::direct, log_domain_rows);
  CHECK(log_domain_rows >= 30);  // rows at the start
  CHECK(!before.queries.topRows(30).isZero(0));
  CHECK(after.queries.topRows(30) == before.queries.topRows(30));
  CHECK(after.queries.bottomRows(60).array().isNaN().all());
}

TEST_CASE("rows that underflow have zero gradients if the features are not exponential", "[cuda]") {
  const Heads x({.n_q = 70, .n_k = 70, .d_v = 5}, 6);
  for (const cuda::Engine engine : cuda_engines) {
    int log_domain_rows = 0;
    const Attention attention(EluFeatures<double>(6), stairs(70, 20, 1));
    const Gradients<float> g = gradients_of<float>(x, cuda::model_of(attention), engine, log_domain_rows);
    INFO(name(engine));
    CHECK(log_domain_rows == 0);
    CHECK((g.keys.allFinite() && g.values.allFinite() && g.bias.allFinite()));
    CHECK(!g.queries.topRows(20).isZero(0));
    CHECK(g.queries.bottomRows(40).isZero(0));
  }
}

TEST_CASE("gradients in the log domain are zero without keys, queries or columns", "[cuda]") {
  for (const auto& [n_q, n_k, d_v] : std::vector<std::array<Index, 3>>{{7, 0, 5}, {0, 7, 5}, {70, 70, 0}}) {
    const Heads x({.n_q = n_q, .n_k = n_k, .d_v = d_v}, 6);
    INFO("n_q " << n_q << ", n_k " << n_k << ", d_v " << d_v);
    int log_domain_rows = 0;
    const Gradients<float> g = gradients_of<float>(x, cuda::model_of(Attention(positive(6, 16), stairs(70, 20, 1))),
                                                   cuda::Engine::direct, log_domain_rows);
    CHECK((g.queries.isZero(0) && g.keys.isZero(0) && g.values.isZero(0) && g.bias.isZero(0)));
  }
}

}  // namespace nprf::test::cuda_attention_recompute_log_domain_backward
