// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "nprf/core/types.hpp"

namespace nprf::bench {

/// A ratio that has a target: our time over a rival's.
struct Row {
  std::string ours, rival;
  Index n = 0, m = 0;  // n = 0: the worst of many
  double ours_ms = 0, rival_ms = 0, ratio = 0;
  bool extrapolated = false;
  std::optional<double> at_most = {}, stretch = {};

  /// How the ratio stands to its targets.
  const char* mark() const {
    if (!at_most) return "";
    if (!(ratio <= *at_most)) return "**missed**";
    return stretch && ratio <= *stretch ? "stretch" : "met";
  }
};

inline nlohmann::json to_json(const std::optional<double>& x) { return x ? nlohmann::json(*x) : nlohmann::json(); }

inline nlohmann::json to_json(const Row& row) {
  return {{"ours", row.ours},
          {"rival", row.rival},
          {"n", row.n},
          {"m", row.m},
          {"ours_ms", row.ours_ms},
          {"rival_ms", row.rival_ms},
          {"ratio", row.ratio},
          {"extrapolated", row.extrapolated},
          {"at_most", to_json(row.at_most)},
          {"stretch", to_json(row.stretch)}};
}

inline Row row_from(const nlohmann::json& x) {
  const auto limit = [&](const char* key) {
    return x.at(key).is_null() ? std::nullopt : std::optional<double>(x.at(key));
  };
  return {x.at("ours"),  x.at("rival"),        x.at("n"),        x.at("m"),       x.at("ours_ms"), x.at("rival_ms"),
          x.at("ratio"), x.at("extrapolated"), limit("at_most"), limit("stretch")};
}

inline nlohmann::json to_json(const std::vector<Row>& rows) {
  nlohmann::json array = nlohmann::json::array();
  for (const Row& row : rows) array.push_back(to_json(row));
  return array;
}

/// Throws std::runtime_error, as the next.
inline nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(in);
}

inline void write_json(const std::string& path, const nlohmann::json& x) {
  std::ofstream out(path);
  out << x.dump(1) << '\n';
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

/// 0.82, or 1/31 if it is below 0.2.
inline std::string format_ratio(double x) {
  char text[32];
  if (x > 0 && x < 0.2)
    std::snprintf(text, sizeof(text), "1/%.3g", 1 / x);
  else
    std::snprintf(text, sizeof(text), "%.2f", x);
  return text;
}

/// 12.345, or ~12.345 where it is extrapolated.
inline std::string format_ms(double ms, bool extrapolated) {
  char text[32];
  std::snprintf(text, sizeof(text), "%s%.3f", extrapolated ? "~" : "", ms);
  return text;
}

/// A Markdown table; ~ marks what was extrapolated.
inline void print_rows(const std::vector<Row>& rows) {
  const auto limit = [](const std::optional<double>& x) { return x ? format_ratio(*x) : std::string(); };
  std::size_t ours = 4, rival = 5;
  for (const Row& row : rows) ours = std::max(ours, row.ours.size()), rival = std::max(rival, row.rival.size());
  const auto width = [](std::size_t x) { return static_cast<int>(x); };
  std::printf("| %-*s | %-*s | %7s | %3s | %9s | %9s | %8s | %7s | %7s | %-10s |\n", width(ours), "ours", width(rival),
              "rival", "n", "m", "ms", "rival ms", "ratio", "at most", "stretch", "");
  std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    const std::string n = row.n > 0 ? std::to_string(row.n) : "", m = row.m > 0 ? std::to_string(row.m) : "";
    std::printf("| %-*s | %-*s | %7s | %3s | %9.3f | %9.3f | %8s | %7s | %7s | %-10s |\n", width(ours),
                row.ours.c_str(), width(rival), row.rival.c_str(), n.c_str(), m.c_str(), row.ours_ms, row.rival_ms,
                (std::string(row.extrapolated ? "~" : "") + format_ratio(row.ratio)).c_str(),
                limit(row.at_most).c_str(), limit(row.stretch).c_str(), row.mark());
  }
  std::fflush(stdout);
}

}  // namespace nprf::bench
