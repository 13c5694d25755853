// SPDX-License-Identifier: MIT
#include "nprf/calibration/number_text.hpp"

#include <limits>
#include <locale>
#include <sstream>
#include <string>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_number_text {

using detail::NumberReader, detail::NumberWriter;

namespace {

template <class Read>
void check_refused(const std::string& text, std::initializer_list<std::string_view> pieces, Read&& read) {
  std::istringstream in(text);
  NumberReader reader(in);
  check_invalid([&] { read(reader); }, pieces);
}

struct CommaForDecimals : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

}  // namespace

TEMPLATE_TEST_CASE("numbers that are written are read with the same bits, in any locale", "[calibration]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using limits = std::numeric_limits<T>;
  Vector<T> x = T(1000) * normal_vector<T>(60, 1);
  x.tail(8) << T(0), -T(0), limits::min(), limits::denorm_min(), limits::max(), limits::lowest(), limits::infinity(),
      T(1) / 3;
  std::stringstream stream;
  stream.imbue(std::locale(std::locale::classic(), new CommaForDecimals));
  NumberWriter writer(stream);
  writer.header<T>("sample", 3);
  writer.numbers("x", x.data(), x.size());
  writer.numbers("none", x.data(), 0);
  writer.number("tokens", Index{1234567});
  writer.finish();
  NumberReader reader(stream);
  reader.header<T>("sample", 3);
  CHECK(same_bits<T>(reader.numbers<T>("x", x.size()), x));
  CHECK(reader.numbers<T>("none", 0).size() == 0);
  CHECK(reader.index("tokens", 0, 1234567) == 1234567);
}

TEST_CASE("text that is not what was written is refused", "[calibration]") {
  const auto header = [](NumberReader& reader) { reader.header<float>("sample", 3); };
  check_refused("", {"expected sample, but the text ends"}, header);
  check_refused("simple 3 float", {"begins with 'sample'", "got 'simple'"}, header);
  check_refused("sample 4 float", {"sample: expected version 3, got 4"}, header);
  check_refused("sample x float", {"version: expected a number, got 'x'"}, header);
  check_refused("sample 3 double", {"sample: expected scalar float, got double"}, header);
  check_refused("sample 3", {"a scalar, but the text ends"}, header);
  const auto numbers = [](NumberReader& reader) { reader.numbers<float>("x", 2); };
  check_refused("y 2 1 2", {"expected 'x', got 'y'"}, numbers);
  check_refused("x 3 1 2 3", {"x: expected 2 numbers, got 3"}, numbers);
  check_refused("x 2 1", {"expected x, but the text ends"}, numbers);
  check_refused("x 2 1 2e", {"x: expected a number, got '2e'"}, numbers);
  check_refused("x 2 1 1e99", {"x: expected a number, got '1e99'"}, numbers);
  const auto index = [](NumberReader& reader) { reader.index("rows", 1, 5); };
  check_refused("rows 1 6", {"rows: expected 1 to 5, got 6"}, index);
  check_refused("rows 1 0", {"rows: expected 1 to 5, got 0"}, index);
  check_refused("rows 1 2.5", {"rows: expected a number, got '2.5'"}, index);
}

TEST_CASE("a stream that cannot be written to is refused", "[calibration]") {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  NumberWriter writer(out);
  writer.number("x", 1.0);
  check_invalid([&] { writer.finish(); }, {"stream: expected one that can be written to"});
}

}  // namespace nprf::test::calibration_number_text
