// SPDX-License-Identifier: MIT
#include "nprf/cuda/rescue.cuh"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/plan_case.hpp"
#include "cuda/stand_in/machine.hpp"
#include "nprf/feature_map/positive.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_rescue {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

template <class F, class P>
void check(const PlanCase& x, const Attention<F, P>& attention, double tolerance, int rescued) {
  cuda::Counts counts{};
  const auto plan = x.plan(attention);
  x.result(*plan, {}, &counts);
  INFO(name(x.options.engine) << ", rescued " << counts.rescued_rows);
  CHECK(x.error(attention, *plan) <= tolerance);
  CHECK(counts.rescued_rows >= rescued);
  CHECK(counts.empty_rows == 0);
  CHECK(counts.indefinite_rows == 0);
}

}  // namespace

TEST_CASE("rows whose weights underflow beside others' are rescued, by every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const float step : {0.7f, -4.0f}) {
      const Index n = 200, d_v = step < 0 ? 70 : 3;
      const PlanCase x{{.n_q = n, .n_k = n, .d_v = d_v}, {.engine = engine}, 6};
      const RelativePosition<float> ramp(Vector<float>::LinSpaced(2 * n - 1, 0, step * static_cast<float>(2 * n - 2)));
      INFO("step " << step);
      if (step > 0)
        check(x, Attention(orf<float>(6, 16, 7), ramp), 30 * eps, 50);
      else
        check(x, Attention(HyperbolicFeatures<float>({.input_dim = 6, .num_features = 9}), ramp), 30 * eps, 50);
    }
}

TEST_CASE("rows that see only what is far are rescued by ALiBi's own biases", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 300, .n_k = 90, .d_v = 5}, {.engine = engine}, 6};
    check(x, Attention(orf<float>(6, 40, 7), AlibiPosition<float>(1.5f)), 30 * eps, 100);
  }
}

TEST_CASE("rows whose features underflow beside others' are rescued", "[cuda]") {
  // exponents of about 30^2 / 2 apart, which are off by eps of that
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x{{.n_q = 150, .n_k = 150, .d_v = 5}, {.engine = engine}, 6};
    x.q *= 20;
    x.k *= 20;
    x.k.row(7).setZero();  // far above all others, but no row sees it
    Vector<float> table = Vector<float>::Zero(299);
    for (Index lag = 0; lag < 299; ++lag)
      if ((lag - 149) % 2 == 0) table[lag] = -std::numeric_limits<float>::infinity();
    const AttentionOptions none{.normalization = Normalization::none()};
    check(x, Attention(orf<float>(6, 16, 7), RelativePosition<float>(table), none), 30 * eps * 1000, 50);
    check(
        x,
        Attention(HyperbolicFeatures<float>({.input_dim = 6, .num_features = 9}), RelativePosition<float>(table), none),
        30 * eps * 1000, 50);
  }
}

TEST_CASE("heads, sequences and padding are rescued each by itself, by few blocks or many", "[cuda]") {
  const Index batch = 2, heads = 2, n = 70, d = 6, d_v = 5;
  const auto before = stand_in::settings();
  cuda::AttentionModel model;
  std::vector<Attention<PositiveFeatures<float>, RelativePosition<float>>> attentions;
  for (std::uint64_t h = 0; h < 2; ++h) {
    const float top = h == 0 ? 1.0f : 600.0f;
    attentions.emplace_back(orf<float>(d, 16, h), RelativePosition<float>(Vector<float>::LinSpaced(139, 0, top)));
    model.features.push_back(cuda::model_of(attentions.back().features()));
    model.positions.push_back(cuda::model_of(attentions.back().position()));
  }
  const Matrix<float> q = normal<float>(batch * heads * n, d, 1), k = normal<float>(batch * heads * n, d, 2),
                      v = normal<float>(batch * heads * n, d_v, 3);
  const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(batch * n));
  for (Index j = 0; j < batch * n; ++j) mask[static_cast<std::size_t>(j)] = j < n ? j < 50 : j % 3 == 0;
  const DeviceArray<float> dq(stored<float>(q)), dk(stored<float>(k)), dv(stored<float>(v)),
      dy(static_cast<std::size_t>(v.size()));
  const DeviceArray<unsigned char> dmask(std::vector<unsigned char>(mask.get(), mask.get() + batch * n));
  for (const int multiprocessors : {1, 132}) {
    stand_in::settings().multiprocessors = multiprocessors;
    const cuda::AttentionPlan<float> plan(model, {.batch = batch, .heads = heads, .n_q = n, .n_k = n, .d_v = d_v},
                                          {.engine = cuda::Engine::direct});
    plan.forward({dq.data(), batch, heads, n, d}, {dk.data(), batch, heads, n, d}, {dv.data(), batch, heads, n, d_v},
                 {dy.data(), batch, heads, n, d_v}, {.key_mask = reinterpret_cast<const bool*>(dmask.data())}, nullptr);
    stand_in::settings() = before;
    const std::vector<float> y = dy.fetch();
    for (Index z = 0; z < batch * heads; ++z) {
      const auto rows = [&](const Matrix<float>& x) { return x.middleRows(z * n, n); };
      const Matrix<float> expected = attentions[static_cast<std::size_t>(z % heads)](
          rows(q), rows(k), rows(v), {.key_mask = {mask.get() + z / heads * n, static_cast<std::size_t>(n)}});
      const Eigen::Map<const Matrix<float>> got(y.data() + z * n * d_v, n, d_v);
      INFO("z " << z << ", multiprocessors " << multiprocessors);
      CHECK((got - expected).cwiseAbs().maxCoeff() <= static_cast<float>(30 * eps) * v.cwiseAbs().maxCoeff());
    }
  }
}

TEST_CASE("features that tell no logarithms rescue nothing, and the rows are counted", "[cuda]") {
  const Index n = 200;
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = n, .n_k = n, .d_v = 3}, {.engine = engine}, 6};
    const Attention attention(EluFeatures<float>(6), RelativePosition<float>(Vector<float>::LinSpaced(399, 0, 278)));
    cuda::Counts counts{};
    const Matrix<float> y = x.result(attention, &counts), expected = attention(x.q, x.k, x.v);
    int right = 0, zero = 0;
    for (Index i = 0; i < n; ++i) {
      right += static_cast<double>((y.row(i) - expected.row(i)).cwiseAbs().maxCoeff()) <= 0.5e-4;
      zero += y.row(i).isZero(0);
    }
    INFO(name(engine));
    CHECK(counts.rescued_rows == 0);
    CHECK(counts.empty_rows == zero);
    CHECK(counts.indefinite_rows > 0);
    CHECK(right >= n - counts.empty_rows - counts.indefinite_rows);
  }
}

TEST_CASE("a row that is rescued has what it sees of NaNs, and of nothing else", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Index n = 300;
  PlanCase x{{.n_q = n, .n_k = n, .d_v = 3}, {.engine = cuda::Engine::direct}, 6};
  const Attention causal(orf<float>(6, 16, 7), RelativePosition<float>(Vector<float>::LinSpaced(2 * n - 1, 0, -300)),
                         {.direction = Direction::causal});
  const Matrix<float> before = x.result(causal);
  x.v.row(60).setConstant(nan);
  cuda::Counts counts{};
  const Matrix<float> after = x.result(causal, &counts);
  REQUIRE(counts.rescued_rows > 80);  // the first ones
  for (Index i = 0; i < 80; ++i) CHECK((i >= 60 ? after.row(i).array().isNaN().all() : after.row(i) == before.row(i)));
}

}  // namespace nprf::test::cuda_rescue
