// SPDX-License-Identifier: MIT
#include "cuda/ptx/text.hpp"

#include <cstdlib>

namespace nprf::ptx {

std::string_view trim(std::string_view text) {
  constexpr std::string_view space = " \t\r\n";
  const std::size_t first = text.find_first_not_of(space);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t first = 0;
  int depth = 0;
  for (std::size_t k = 0; k < text.size(); ++k) {
    const char c = text[k];
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (c != ',' || depth > 0) continue;
    parts.push_back(trim(text.substr(first, k - first)));
    first = k + 1;
  }
  const std::string_view last = trim(text.substr(first));
  if (!last.empty()) parts.push_back(last);
  return parts;
}

std::string_view inside(std::string_view text) {
  return text.size() < 2 ? text : trim(text.substr(1, text.size() - 2));
}

long long integer(std::string_view text) {
  const std::string copy(trim(text));
  return copy.starts_with('-') ? std::strtoll(copy.c_str(), nullptr, 0)
                               : static_cast<long long>(std::strtoull(copy.c_str(), nullptr, 0));
}

void blank_comments(std::string& source) {
  const auto blank = [&](std::size_t first, std::size_t end) {
    for (std::size_t k = first; k < std::min(end, source.size()); ++k)
      if (source[k] != '\n') source[k] = ' ';
  };
  for (std::size_t k = 0; k + 1 < source.size(); ++k) {
    if (source[k] == '"') {
      k = std::min(source.find('"', k + 1), source.size());
    } else if (source[k] == '/' && source[k + 1] == '/') {
      const std::size_t end = std::min(source.find('\n', k), source.size());
      blank(k, end);
      k = end;
    } else if (source[k] == '/' && source[k + 1] == '*') {
      const std::size_t end = source.find("*/", k + 2);
      blank(k, end == source.npos ? source.size() : end + 2);
    }
  }
}

}  // namespace nprf::ptx
