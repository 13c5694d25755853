// SPDX-License-Identifier: MIT
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_plan_attention_plan_attend {

TEST_CASE("attend computes host vectors from host vectors", "[cuda]") {
  const PlanCase x{{.heads = 2, .n_q = 9, .n_k = 12, .d_v = 3}, {}, 4};
  const Attention attention(orf<float>(4, 8, 7), RelativePosition<float>(normal_vector<float>(5, 5)));
  const auto twice = [](const Matrix<float>& a) {
    Matrix<float> both(2 * a.rows(), a.cols());
    both << a, -a;
    return stored<float>(both);
  };
  const std::vector<float> y = cuda::attend(cuda::model_of(attention), x.shape, twice(x.q), twice(x.k), twice(x.v));
  Matrix<float> expected(18, 3);
  expected << attention(x.q, x.k, x.v), attention(-x.q, -x.k, -x.v);
  // at most the rounding errors of sums over 8 features and 12 keys
  CHECK((as_floats(y, 18, 3) - expected).cwiseAbs().maxCoeff() <= 20 * 0x1p-23f * x.v.cwiseAbs().maxCoeff());
  CHECK(cuda::attend(cuda::model_of(attention), {.n_q = 0, .n_k = 12, .d_v = 3}, std::vector<float>{},
                     stored<float>(x.k), stored<float>(x.v))
            .empty());
  check_invalid([&] { cuda::attend(cuda::model_of(attention), x.shape, stored<float>(x.q), twice(x.k), twice(x.v)); },
                {"q: expected 72 scalars", "got 36"});
}

}  // namespace nprf::test::cuda_plan_attention_plan_attend
