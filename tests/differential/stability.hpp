// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "differential/check.hpp"
#include "differential/inputs.hpp"
#include "differential/run.hpp"
#include "nprf/nprf.hpp"

namespace nprf::test::differential {

namespace detail {

// a NaN may have any sign
template <class T>
bool same_bits(const T* a, const T* b, Index n) {
  for (Index i = 0; i < n; ++i)
    if (std::memcmp(a + i, b + i, sizeof(T)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), static_cast<Index>(a.size()));
}

template <Real T>
void check_repeat(const Inputs<T>& x, const Runner<T>& runner, const Result<T>& first, std::vector<Failure>& failures) {
  const Index threads = num_threads();
  set_num_threads(threads == 1 ? 2 : 1);
  const Result<T> second = runner.run(x);
  set_num_threads(threads);
  bool same = same_bits(first.y, second.y) && same_bits(first.saved_y, second.saved_y) &&
              same_bits(first.dq, second.dq) && same_bits(first.dk, second.dk) && same_bits(first.dv, second.dv);
  for (std::size_t h = 0; h < first.db.size(); ++h) same = same && same_bits(first.db[h], second.db[h]);
  if (!same) failures.push_back({Kind::repeat, 1, 0, "a second call"});
}

/// Checks the rows up to `now` of each sequence, with other keys and values after it.
template <Real T>
void check_later(const Inputs<T>& x, const Runner<T>& runner, const std::vector<T>& y, std::vector<Failure>& failures) {
  const Case& c = x.c;
  const Problem problem = x.problem();
  Draw draw(c.seed + 77);
  const Index now = draw.below(c.n_q);
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T by_key = draw.one_of({T(-1), T(0), T(1e-3), T(0.5), T(3), nan});
  const T by_value = draw.one_of({T(-1), T(0), T(1e-6), T(1e6), nan});
  Inputs<T> other = x;
  for (Index item = 0; item < c.batch * c.heads; ++item)
    for (const Packed& s : problem.sequences)
      for (Index j = std::max<Index>(now + c.offset + 1, 0); j < s.keys; ++j) {
        const Index row = item * c.n_k + s.first_key + j;
        for (Index i = row * c.d; i < (row + 1) * c.d; ++i) other.k[static_cast<std::size_t>(i)] *= by_key;
        for (Index i = row * c.d_v; i < (row + 1) * c.d_v; ++i) other.v[static_cast<std::size_t>(i)] *= by_value;
      }
  Report report;
  const std::vector<T> changed = runner.forward(other, report);
  for (Index item = 0; item < c.batch * c.heads; ++item)
    for (const Packed& s : problem.sequences) {
      const Index first = (item * c.n_q + s.first_query) * c.d_v, count = std::min(now + 1, s.queries) * c.d_v;
      if (same_bits(y.data() + first, changed.data() + first, count)) continue;
      failures.push_back({Kind::later, 1, 0,
                          "a row up to " + std::to_string(now) + " with later keys x " + std::to_string(by_key) +
                              " and values x " + std::to_string(by_value)});
      return;
    }
}

}  // namespace detail

/// Checks that results do not depend on the number of threads, nor causal rows on later tokens: see tests/accuracy.md.
template <Real T>
void check_stability(const Inputs<T>& x, const Runner<T>& runner, Engine engine, const Result<T>& result,
                     std::vector<Failure>& failures) {
  const Case& c = x.c;
  if (c.seed % 8 == 0) detail::check_repeat(x, runner, result, failures);
  if (c.causal && engine == Engine::block_causal && c.biases[0].extra_tokens == 0)
    detail::check_later(x, runner, result.y, failures);
}

}  // namespace nprf::test::differential
