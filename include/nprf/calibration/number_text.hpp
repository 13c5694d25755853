// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <charconv>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf::detail {

template <Real T>
constexpr std::string_view scalar_name = std::is_same_v<T, float> ? "float" : "double";

/// Writes numbers as text that NumberReader reads back with the same bits, on any platform and in any locale: a name,
/// the count of numbers, and the numbers, each in the fewest digits that determine it.
class NumberWriter {
 public:
  explicit NumberWriter(std::ostream& out) : m_out(out) {}

  /// Writes the first line: the name `what` of the contents, the version of their format, and their scalar type.
  template <Real T>
  void header(std::string_view what, int version) {
    m_out << what << ' ';
    write(version);
    m_out << ' ' << scalar_name<T> << '\n';
  }

  template <class T>
  void numbers(std::string_view name, const T* x, Index count) {
    m_out << name << ' ';
    write(count);
    for (Index l = 0; l < count; ++l) {
      m_out << ' ';
      write(x[l]);
    }
    m_out << '\n';
  }
  template <class T>
  void number(std::string_view name, T x) {
    numbers(name, &x, 1);
  }

  /// Throws InvalidArgument if the stream has failed.
  void finish() {
    m_out.flush();
    require(m_out.good(), "stream: expected one that can be written to, but writing failed");
  }

 private:
  template <class T>
  void write(T x) {
    std::array<char, 32> text;
    const char* end = std::to_chars(text.data(), text.data() + text.size(), x).ptr;
    m_out << std::string_view(text.data(), static_cast<std::size_t>(end - text.data()));
  }

  std::ostream& m_out;
};

/// Reads what NumberWriter wrote. All functions throw InvalidArgument if the text is not what they expect.
class NumberReader {
 public:
  explicit NumberReader(std::istream& in) : m_in(in) {}

  template <Real T>
  void header(std::string_view what, int version) {
    const std::string kind = word(what);
    require(kind == what, "stream: expected text that begins with '", what, "', got '", kind, "'");
    const int found = parse<int>(word("a version"), "version");
    require(found == version, what, ": expected version ", version, ", got ", found);
    const std::string scalar = word("a scalar");
    require(scalar == scalar_name<T>, what, ": expected scalar ", scalar_name<T>, ", got ", scalar);
  }

  /// Memory grows with the numbers that were read, not with the count that the text states.
  template <class T>
  Vector<T> numbers(std::string_view name, Index count) {
    const std::vector<T> all = read<T>(name, count);
    return Eigen::Map<const Vector<T>>(all.data(), count);
  }
  template <class T>
  T number(std::string_view name) {
    return read<T>(name, 1)[0];
  }
  Index index(std::string_view name, Index least, Index most) {
    const Index x = number<Index>(name);
    require(x >= least && x <= most, name, ": expected ", least, " to ", most, ", got ", x);
    return x;
  }

 private:
  template <class T>
  std::vector<T> read(std::string_view name, Index count) {
    const std::string found = word(name);
    require(found == name, "stream: expected '", name, "', got '", found, "'");
    const Index stated = parse<Index>(word("a count"), name);
    require(stated == count, name, ": expected ", count, " numbers, got ", stated);
    std::vector<T> all;
    while (static_cast<Index>(all.size()) < count) all.push_back(parse<T>(word(name), name));
    return all;
  }

  std::string word(std::string_view expected) {
    std::string text;
    require(static_cast<bool>(m_in >> text), "stream: expected ", expected, ", but the text ends");
    return text;
  }

  template <class T>
  static T parse(const std::string& text, std::string_view name) {
    T x{};
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, x);
    require(error == std::errc() && stopped == end, name, ": expected a number, got '", text.substr(0, 40), "'");
    return x;
  }

  std::istream& m_in;
};

}  // namespace nprf::detail
