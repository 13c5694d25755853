// SPDX-License-Identifier: MIT
#include "nprf/feature_map/feature_map.hpp"

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_feature_map {

namespace {

// the example in the comment of the concept
struct Squares {
  using Scalar = float;
  Index input_dim() const { return d; }
  Index output_dim() const { return d; }
  Matrix<float> queries(const MatrixView<float>& x) const { return x.array().square(); }  // (n,d) -> (n,r)
  Matrix<float> keys(const MatrixView<float>& x) const { return queries(x); }             // (n,d) -> (n,r)
  Matrix<float> backward(const MatrixView<float>& x, const MatrixView<float>&, const MatrixView<float>& dphi) const {
    return 2 * x.cwiseProduct(dphi);  // (n,d)
  }
  Index d;
};

// a map may accept views by value, have default arguments, and return sizes of a narrower type
struct Relaxed {
  using Scalar = double;
  static constexpr bool estimates_exp = false;
  static constexpr bool is_positive = true;
  int input_dim() const { return 2; }
  int output_dim() const { return 2; }
  Matrix<double> queries(MatrixView<double> x, int = 0) const { return x; }
  Matrix<double> keys(MatrixView<double> x) const { return x; }
  Matrix<double> backward(MatrixView<double>, MatrixView<double>, MatrixView<double> dphi) const { return dphi; }
};

// types that do not model FeatureMap, each for one reason
struct NoBackward {
  using Scalar = float;
  Index input_dim() const { return 1; }
  Index output_dim() const { return 1; }
  Matrix<float> queries(const MatrixView<float>& x) const { return x; }
  Matrix<float> keys(const MatrixView<float>& x) const { return x; }
};

struct NoKeys : Squares {
  void keys(const MatrixView<float>&) const;
};

struct NoQueries : Squares {
  void queries(const MatrixView<float>&) const;
};

struct ChangesItself : Squares {
  Matrix<float> queries(const MatrixView<float>& x) { return x; }
};

struct TwoArguments : Squares {
  Matrix<float> backward(const MatrixView<float>& x, const MatrixView<float>&) const { return x; }
};

struct Integers : Squares {
  using Scalar = int;
};

struct NoScalar : private Squares {};

struct NoInput : Squares {
  void input_dim() const;
};

struct NoOutput : Squares {
  void output_dim() const;
};

static_assert(FeatureMap<Squares> && FeatureMap<Relaxed>);
static_assert(!FeatureMap<int> && !FeatureMap<Matrix<float>> && !FeatureMap<NoScalar>);
static_assert(!FeatureMap<NoBackward> && !FeatureMap<NoKeys> && !FeatureMap<NoQueries>);
static_assert(!FeatureMap<ChangesItself> && !FeatureMap<TwoArguments>);
static_assert(!FeatureMap<Integers>);
static_assert(!FeatureMap<NoInput> && !FeatureMap<NoOutput>);

static_assert(estimates_exp<Squares>(), "the default");
static_assert(!is_positive<Squares>(), "the default");
static_assert(!estimates_exp<Relaxed>() && is_positive<Relaxed>());

}  // namespace

TEST_CASE("the example in the comment of FeatureMap computes squares", "[feature_map]") {
  const Squares squares{3};
  const Matrix<float> x = normal<float>(4, 3, 1), g = normal<float>(4, 3, 2);
  const Matrix<float> phi = squares.queries(x);
  CHECK(phi == x.cwiseProduct(x));
  CHECK(squares.keys(x) == phi);
  CHECK(squares.backward(x, phi, g) == 2 * x.cwiseProduct(g));
}

}  // namespace nprf::test::feature_map_feature_map
