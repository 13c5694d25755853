// SPDX-License-Identifier: MIT
//
// One head: whatever maps, positions, options and numbers come, a call gives rows of the right shape or an
// InvalidArgument; forward gives the same bits as the call; what is finite and moderate stays finite.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <variant>

#include "fuzz/check.hpp"
#include "fuzz/input.hpp"

namespace nprf::fuzz {

namespace {

template <Real T>
bool same_bits(const Matrix<T>& a, const Matrix<T>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0);
}

template <class F, class P>
void attend(Input& input, const Attention<F, P>& attention) {
  using T = typename F::Scalar;
  const Index d = attention.features().input_dim(), d_v = input.up_to(9);
  Index n_q = input.size(300), n_k = input.flag() ? n_q : input.size(300);
  if constexpr (PlacedPosition<P>) n_q = n_k = attention.position().tokens();
  // a block of a larger matrix, so that rows do not follow each other
  const Index beside = input.number(0, 3);
  const Matrix<T> wide = input.matrix<T>(input.size_near(n_q), input.size_near(d) + beside);
  const auto q = wide.leftCols(std::max<Index>(wide.cols() - beside, 0));
  const Matrix<T> k = input.matrix<T>(input.size_near(n_k), input.size_near(d));
  const Matrix<T> v = input.matrix<T>(input.size_near(n_k), input.size_near(d_v));
  const Call call(input, 1, n_q, n_k);

  const Matrix<T> y = attention(q, k, v, call.options());
  const Report report = call.report();
  check(y.rows() == q.rows() && y.cols() == v.cols(), "y is n_q x d_v");
  check(report.empty_rows + report.repaired_rows <= y.rows(), "no more rows are counted than there are");
  const bool stays_finite = input.tame() && is_positive<F>() && report.indefinite_rows == 0;
  check(!stays_finite || y.allFinite(), "y of moderate numbers is finite");

  Saved<T> saved;
  const Matrix<T> again = attention.forward(q, k, v, saved, call.options());
  const Report& after = call.report();
  if (attention.options().engine != Engine::automatic && report.repaired_rows + after.repaired_rows == 0)
    check(same_bits(again, y), "forward gives the bits of the call");
  if (stays_finite && y.size() > 0 && v.size() > 0 && have_one_formula(attention.options(), report, after))
    check(!((again - y).cwiseAbs().maxCoeff() > (report.error_bound + after.error_bound) * v.cwiseAbs().maxCoeff()),
          "forward and call are as near to each other as both bounds allow");
  if constexpr (LearnedPosition<P>) {
    const Gradients<T> g = attention.backward(saved, input.matrix<T>(y.rows(), input.size_near(y.cols())));
    check(g.queries.rows() == q.rows() && g.queries.cols() == d, "dq is n_q x d");
    check(g.keys.rows() == k.rows() && g.keys.cols() == d, "dk is n_k x d");
    check(g.values.rows() == v.rows() && g.values.cols() == v.cols(), "dv is n_k x d_v");
    check(!stays_finite || (g.queries.allFinite() && g.keys.allFinite() && g.values.allFinite() && g.bias.allFinite() &&
                            g.extra.allFinite()),
          "gradients of moderate numbers are finite");
  }
}

template <Real T>
void attend(Input& input) {
  const AttentionOptions options = input.options();
  const AnyMap<T> map = input.map<T>(input.up_to(9));
  const AnyPosition<T> position = input.position<T>(options);
  std::visit([&](const auto& f, const auto& p) { attend(input, Attention(f, p, options)); }, map, position);
}

}  // namespace

}  // namespace nprf::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nprf::fuzz::Input input(data, size);
  try {
    if (input.flag())
      nprf::fuzz::attend<float>(input);
    else
      nprf::fuzz::attend<double>(input);
  } catch (const nprf::InvalidArgument&) {
  }
  return 0;
}
