// SPDX-License-Identifier: MIT
//
// A plan's constructor loads the kernels of its calls, so that the first call can be captured in a graph.
#include <cstddef>
#include <vector>

#include "cuda/decode_case.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "cuda/stand_in/machine.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_stand_in_loading {

namespace {

constexpr Index n = 90, d = 6, d_v = 8;

// `call` launches kernels, all of which have been loaded
template <class Call>
void check_loaded(Call&& call) {
  const stand_in::Counts before = stand_in::counts();
  call();
  CHECK(stand_in::counts().launches > before.launches);
  CHECK(stand_in::counts().loading_launches == before.loading_launches);
}

template <class S, class F>
void check_plan(const PlanCase& x, const F& features) {
  const Attention attention(features, RelativePosition<float>(normal_vector<float>(41, 5)));
  const Index channels = x.q.cols();
  stand_in::unload_all_kernels();
  const auto plan = x.plan<S>(attention);
  check_loaded([&] { x.result(*plan); });
  const DeviceArray<S> q(stored<S>(x.q)), k(stored<S>(x.k)), v(stored<S>(x.v)), y(std::size_t{n * (d_v + 1)});
  cuda::DeviceMatrixView<S> odd_rows(y.data(), n, d_v);
  odd_rows.token_stride = d_v + 1;
  check_loaded([&] { plan->forward({q.data(), n, channels}, {k.data(), n, channels}, {v.data(), n, d_v}, odd_rows); });
  const DeviceArray<S> wide_q(std::vector<S>(static_cast<std::size_t>(n * (channels + 1))));
  cuda::DeviceMatrixView<const S> odd_queries(wide_q.data(), n, channels);
  odd_queries.token_stride = channels + 1;
  check_loaded([&] { plan->forward(odd_queries, {k.data(), n, channels}, {v.data(), n, d_v}, {y.data(), n, d_v}); });
  check_loaded([&] { gradients_of<S>(x, *plan, normal<float>(n, d_v, 9)); });
}

}  // namespace

TEST_CASE("the calls of a plan load no kernel", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    INFO(name(engine));
    const PlanCase x{{.n_q = n, .n_k = n, .d_v = d_v}, {.engine = engine, .gradients = true}, d};
    check_plan<float>(x, orf<float>(d, 16, 7));
    check_plan<__half>(x, trf<float>(d, 8, 7));
    const PlanCase on_tensor_cores{x.shape, x.options, 16};
    check_plan<__nv_bfloat16>(on_tensor_cores, orf<float>(16, 16, 7));
    check_plan<float>(x, TaylorFeatures<float>({.input_dim = d, .directions = 4}));
  }
}

TEST_CASE("the first step of a DecodePlan loads no kernel", "[cuda]") {
  const DecodeModel model(std::vector{orf<float>(d, 16, 3)},
                          {{"table", RelativePosition<float>(random_table<float>(7, 3))}});
  const TokenBatch<float> x(1, 1, 1, 4, d, d_v, 7);
  const DecodeCase on_device(x);
  stand_in::unload_all_kernels();
  cuda::DecodePlan<float> plan(model.model, on_device.shape());
  check_loaded([&] { on_device.step(plan, 0, 4); });
}

}  // namespace nprf::test::cuda_stand_in_loading
