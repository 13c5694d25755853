// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace nprf::ptx {

/// Without white space at both ends.
std::string_view trim(std::string_view text);
/// The parts between separators.
std::vector<std::string_view> split(std::string_view text, char separator);
/// The trimmed parts between commas that are not inside brackets; none if the text is empty.
std::vector<std::string_view> split_list(std::string_view text);
/// What is between the first and the last character: of "[x]", x.
std::string_view inside(std::string_view text);
/// The integer that a text as 12, -3 or 0x1f is, or 0.
long long integer(std::string_view text);
/// Replaces comments by spaces, so that lines keep their numbers.
void blank_comments(std::string& source);

/// An operation with its modifiers: "ld.global.v2.f32" is ld with global, v2 and f32.
struct Opcode {
  explicit Opcode(std::string_view text) : all(text), parts(split(text, '.')) {}

  std::string_view base() const { return parts.front(); }
  bool has(std::string_view modifier) const {
    return std::find(parts.begin() + 1, parts.end(), modifier) != parts.end();
  }

  std::string_view all;
  std::vector<std::string_view> parts;
};

/// An instruction as text.
struct Statement {
  Opcode opcode;
  std::vector<std::string_view> operands;
  std::string_view guard;  // the name of a predicate, or nothing
  bool guard_is_negated = false;
  std::string_view text;
};

}  // namespace nprf::ptx
