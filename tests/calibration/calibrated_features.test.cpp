// SPDX-License-Identifier: MIT
#include "nprf/calibration/calibrated_features.hpp"

#include <limits>
#include <sstream>
#include <string>

#include "nprf/attention/attention.hpp"
#include "nprf/calibration/calibrate_definition.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_calibrated_features {

static_assert(FeatureMap<CalibratedFeatures<float>> && estimates_exp<CalibratedFeatures<double>>());
static_assert(!is_positive<CalibratedFeatures<float>>());
static_assert(detail::HasKeyFactors<CalibratedFeatures<float>, float> &&
              detail::HasKeyBackward<CalibratedFeatures<float>, float>);

namespace {

constexpr Index n = 40, d = 4;

CalibratedFeatures<double> features(Index second = 2) {
  const Matrix<double> q = 0.7 * normal<double>(n, d, 1), k = 0.5 * normal<double>(n, d, 2);
  return hermite_features(balance<double>(q, k), d, second);
}

template <class T>
std::string saved(const CalibratedFeatures<T>& map) {
  std::ostringstream out;
  map.save(out);
  return out.str();
}

template <class T>
CalibratedFeatures<T> loaded(const std::string& text) {
  std::istringstream in(text);
  return CalibratedFeatures<T>::load(in);
}

// the saved map with the first `from` replaced by `to`
std::string changed(const std::string& from, const std::string& to) {
  std::string text = saved(features());
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEMPLATE_TEST_CASE("a calibrated map that is saved and loaded has the same bits", "[calibration]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index second : {0, 1, 4}) {
    const CalibratedFeatures<T> map = features(second).cast<T>();
    const CalibratedFeatures<T> again = loaded<T>(saved(map));
    const Matrix<T> x = normal<T>(n, d, 3);
    Vector<T> factor, factor_again;
    CHECK(same_bits<T>(map.queries(x, {}, &factor), again.queries(x, {}, &factor_again)));
    CHECK(same_bits<T>(factor, factor_again));
    CHECK(same_bits<T>(map.keys(x), again.keys(x)));
    CHECK(saved(again) == saved(map));
  }
}

TEST_CASE("a map without curvature is saved too", "[calibration]") {
  const Matrix<double> one = Matrix<double>::Identity(d, d);
  const CalibratedFeatures<double> map(QuadraticFeatures<double>(d, {2, 0, {}, {}}),
                                       {Vector<double>::Zero(d), Vector<double>::Zero(d), one, one});
  CHECK(saved(loaded<double>(saved(map))) == saved(map));
}

TEST_CASE("several maps can be read from one stream", "[calibration]") {
  std::stringstream stream;
  features(1).save(stream);
  features(3).save(stream);
  CHECK(CalibratedFeatures<double>::load(stream).output_dim() == features(1).output_dim());
  CHECK(CalibratedFeatures<double>::load(stream).output_dim() == features(3).output_dim());
}

TEST_CASE("a cast rounds each constant", "[calibration]") {
  const CalibratedFeatures<double> map = features();
  const CalibratedFeatures<float> rounded = map.cast<float>();
  CHECK(same_bits<float>(rounded.constants().query_axes, map.constants().query_axes.cast<float>()));
  CHECK(same_bits<float>(rounded.constants().key_mean, map.constants().key_mean.cast<float>()));
  CHECK(same_bits<float>(rounded.features().terms().curvature, map.features().terms().curvature.cast<float>()));
  CHECK(rounded.features().terms().log_scale == static_cast<float>(map.features().terms().log_scale));
  CHECK(saved(rounded.cast<double>().cast<float>()) == saved(rounded));
  const Matrix<double> large = 1e200 * Matrix<double>::Identity(d, d);
  const CalibratedFeatures<double> overflows(map.features(),
                                             {Vector<double>::Zero(d), Vector<double>::Zero(d), large, large});
  check_invalid([&] { overflows.cast<float>(); }, {"constants: expected finite scalars"});
}

TEST_CASE("text that is no calibrated map is refused", "[calibration]") {
  const auto check = [](const std::string& text, std::initializer_list<std::string_view> pieces) {
    check_invalid([&] { loaded<double>(text); }, pieces);
  };
  check("", {"but the text ends"});
  check("something else", {"begins with 'nprf-calibrated-features'", "got 'something'"});
  check(changed("features 1", "features 2"), {"expected version 1, got 2"});
  check_invalid([] { loaded<float>(saved(features())); }, {"expected scalar float, got double"});
  check(changed("input_dim 1 4", "input_dim 1 0"), {"input_dim: expected 1 to", "got 0"});
  check(changed("input_dim 1 4", "input_dim 1 9999999999"), {"input_dim: expected 1 to", "got 9999999999"});
  check(changed("input_dim 1 4", "input_dim 1 5"), {"query_mean: expected 5 numbers, got 4"});
  check(changed("first 1 4", "first 1 5"), {"first: expected 0 to 4, got 5"});
  check(changed("second 1 2", "second 1 3"), {"mean_square: expected 3 numbers, got 2"});
  check(changed("curvatures 1 4", "curvatures 1 3"), {"curvature: expected 3 numbers, got 4"});
  check(changed("log_scale 1 ", "log_scale 1 x"), {"log_scale: expected a number"});
  check(changed("query_axes 16 ", "query_axes 16 inf "), {});
  const std::string text = saved(features());
  for (std::size_t length = 0; length + 20 < text.size(); length += 7) check(text.substr(0, length), {"expected"});
}

TEST_CASE("a constant factor of all features cancels in attention", "[calibration]") {
  const CalibratedFeatures<double> map = features();
  QuadraticTerms<double> terms = map.features().terms();
  terms.log_scale = 3;
  const CalibratedFeatures<double> scaled(QuadraticFeatures<double>(d, terms), map.constants());
  const Matrix<double> q = normal<double>(n, d, 4), k = normal<double>(n, d, 5), v = normal<double>(n, 3, 6);
  const AlibiPosition<double> position(0.1);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const AttentionOptions options{.direction = direction};
    const Matrix<double> y = Attention(map, position, options)(q, k, v);
    CHECK((Attention(scaled, position, options)(q, k, v) - y).cwiseAbs().maxCoeff() <= 1e-12 * v.cwiseAbs().maxCoeff());
  }
}

}  // namespace nprf::test::calibration_calibrated_features
