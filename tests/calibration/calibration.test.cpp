// SPDX-License-Identifier: MIT
#include "nprf/calibration/calibration.hpp"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "nprf/calibration/calibrate_definition.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_calibration {

namespace {

CalibratedFeatures<float> features(std::uint64_t seed) {
  return hermite_features(balance<double>(normal<double>(20, 3, seed), normal<double>(20, 3, seed + 1)), 3, 1)
      .cast<float>();
}

HeadsCalibration<float> two_heads() {
  return {{features(1), features(3)},
          0.1,
          {1.0 / 3, std::numeric_limits<double>::infinity()},
          {{0, 0, 0.5}, {3, 1, 1.0 / 7}}};
}

template <class Saved>
std::string text_of(const Saved& all) {
  std::ostringstream out;
  all.save(out);
  return out.str();
}

}  // namespace

TEST_CASE("a calibration that is saved and loaded has the same bits", "[calibration]") {
  std::stringstream stream(text_of(two_heads()));
  const auto all = HeadsCalibration<float>::load(stream);
  REQUIRE(all.features.size() == 2);
  CHECK(all.softmax_error == 0.1);
  CHECK(all.head_errors == two_heads().head_errors);
  REQUIRE(all.candidates.size() == 2);
  CHECK(all.candidates[1].num_features() == 5);
  CHECK(all.candidates[1].error == 1.0 / 7);
  CHECK(text_of(all) == text_of(two_heads()));

  const Calibration<float> one{features(5), 0.25, {{1, 0, 0.3}}};
  std::stringstream of_one(text_of(one));
  CHECK(text_of(Calibration<float>::load(of_one)) == text_of(one));
}

TEST_CASE("text that is no calibration is refused", "[calibration]") {
  const std::string text = text_of(two_heads());
  const auto check = [](const std::string& wrong, std::initializer_list<std::string_view> pieces) {
    std::istringstream in(wrong);
    check_invalid([&] { HeadsCalibration<float>::load(in); }, pieces);
  };
  check("", {"but the text ends"});
  check("nprf-calibrated-features 1 float", {"begins with 'nprf-calibration'"});
  check("nprf-calibration 1 float\nheads 1 0", {"heads: expected 1 to", "got 0"});
  check("nprf-calibration 1 float\nheads 1 2\nsoftmax_error 1 0\nhead_errors 1 0", {"head_errors: expected 2 numbers"});
  for (std::size_t length = 0; length + 20 < text.size(); length += 11) check(text.substr(0, length), {"expected"});
  std::istringstream two(text);
  check_invalid([&] { Calibration<float>::load(two); }, {"heads: expected 1, got 2"});
  std::istringstream other_scalar(text);
  check_invalid([&] { HeadsCalibration<double>::load(other_scalar); }, {"expected scalar double, got float"});
}

}  // namespace nprf::test::calibration_calibration
