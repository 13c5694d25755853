// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "examples/support/speed.hpp"

extern char** environ;

namespace demo {

/// A gnuplot script that carries its data and writes an SVG to its standard output.
inline std::string gnuplot_script(const std::vector<SpeedRow>& rows, const SpeedPlan& plan, Index d) {
  std::string script = "# gnuplot THIS_FILE > picture.svg\n\n";
  for (const std::string position : {"t5", "dense"}) {
    script += fmt::format("$data_{} << end\n# n  softmax ms  nprf ms\n", position);
    for (const SpeedRow& row : rows)
      if (row.position == position) script += fmt::format("{} {:.4g} {:.4g}\n", row.n, row.softmax_ms, row.ours_ms);
    script += "end\n\n";
  }
  const SpeedRow& last = rows.back();
  const auto n = static_cast<double>(last.n);
  return script +
         fmt::format(R"(set terminal svg size 1080,560 dynamic background rgb 'white' font 'sans-serif,15' name 'nprf'
set title "Attention with a bias for distance, one head, one thread: d = {}, m = {}, float"
set xlabel "tokens n"
set ylabel "milliseconds a call"
set logscale x 2
set logscale y 10
set xrange [{}:{}]
set xtics (128, 256, 512, '1k' 1024, '2k' 2048, '4k' 4096, '8k' 8192, '16k' 16384, '32k' 32768)
set format y "%g"
set grid xtics ytics lc rgb '#dddddd' lw 1 lt 1
set border 3 lc rgb '#444444'
set tics nomirror
set key outside right top reverse Left samplen 3 spacing 1.2

plot $data_dense using 1:2 with linespoints lw 2.5 pt 7 ps 0.7      lc rgb '#222222' title 'exact softmax', \
     $data_t5    using 1:3 with linespoints lw 2.5 pt 7 ps 0.7      lc rgb '#0072b2' title 'nprf, T5 bias', \
     $data_dense using 1:3 with linespoints lw 2   pt 6 ps 1.1 dt 2 lc rgb '#d55e00' title 'nprf, a bias for every lag', \
     {:.3g}*x**2 with lines lw 1 dt 3 lc rgb '#888888' title 'slope 2', {:.3g}*x with lines lw 1 dt 2 lc rgb '#888888' title 'slope 1'
)",
                     d, plan.num_features, 0.8 * static_cast<double>(plan.lengths.front()),
                     1.25 * static_cast<double>(plan.lengths.back()), 2 * last.softmax_ms / (n * n),
                     last.ours_ms / (2 * n));
}

/// Runs gnuplot on a script, its standard output into a file; false if there is no gnuplot.
inline bool run_gnuplot(const std::filesystem::path& script, const std::filesystem::path& output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  std::string program = "gnuplot", argument = script.string();
  char* const arguments[] = {program.data(), argument.data(), nullptr};
  pid_t child = 0;
  const int refusal = posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (refusal == ENOENT) return false;
  int status = -1;
  if (refusal != 0 || waitpid(child, &status, 0) != child || status != 0)
    throw std::runtime_error(fmt::format("gnuplot: expected a picture from {}, got a failure", script.string()));
  return true;
}

/// Draws time over n to an SVG file, by way of a gnuplot script that stays beside it.
inline void draw_picture(const std::filesystem::path& picture, const std::vector<SpeedRow>& rows, const SpeedPlan& plan,
                         Index d) {
  const std::filesystem::path target = std::filesystem::absolute(picture);
  const std::filesystem::path script = target.string() + ".gp", unfinished = target.string() + ".tmp";
  std::ofstream file(script);
  file << gnuplot_script(rows, plan, d);
  file.close();
  require(file.good(), "--picture: expected to write ", script.string(), ", got a refusal");

  std::error_code ignored;
  try {
    if (run_gnuplot(script, unfinished)) {
      std::filesystem::rename(unfinished, target);
      fmt::print("Picture: {}\n", target.string());
      fmt::print("Script and data: {}\n", script.string());
    } else {
      std::filesystem::remove(unfinished, ignored);
      fmt::print("No picture: there is no gnuplot here (Debian: gnuplot-nox).\n");
      fmt::print("Script and data: {0}; elsewhere, gnuplot {0} > picture.svg\n", script.string());
    }
  } catch (...) {
    std::filesystem::remove(unfinished, ignored);
    throw;
  }
}

}  // namespace demo
