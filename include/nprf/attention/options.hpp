// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// A std::span<const T> with the same constructors. A vector of another scalar type is rejected at compile time with a
/// readable message, and so is std::vector<bool>, which packs its elements into bits and has no array of bool.
template <class T>
class OptionSpan : public std::span<const T> {
 public:
  using std::span<const T>::span;
  constexpr OptionSpan() = default;
  constexpr OptionSpan(std::span<const T> x) : std::span<const T>(x) {}

  template <class X, class Allocator>
    requires(!std::constructible_from<std::span<const T>, const std::vector<X, Allocator>&>)
  OptionSpan(const std::vector<X, Allocator>&) {
    if constexpr (std::same_as<T, bool>)
      static_assert(!std::same_as<T, bool>,
                    "nprf: key_mask must be an array of bool, and std::vector<bool> has none: pass {data, size} of a "
                    "std::unique_ptr<bool[]> or of an Eigen::Array<bool, Eigen::Dynamic, 1>");
    else
      static_assert(std::same_as<T, bool>, "nprf: lengths must be nprf::Index: pass a std::vector<nprf::Index>");
  }
};

/// Which keys of a head are salient (AttentionOptions), by the mean nu and the covariance S of queries of a sample,
/// normalised as attention normalises them: those with nu.k + k S k / 2 > threshold. salient_rule() finds them.
struct SalientRule {
  std::vector<double> mean;        // (d)    nu
  std::vector<double> covariance;  // (d,d)  S
  double threshold = 0;
};

/// Options of an attention, fixed when it is built. Pairs with the weights of softmax, exact pairs, are those of a near
/// field, of attention sinks and of salient keys.
///
/// Near field: a query and a key less than `near` tokens apart have the weight exp(q.k + b) of softmax. The other pairs
/// have weights of features. A near field needs a map that estimates exp and has log-factors (feature_map.hpp). Its
/// time is O(n near (d + d_v)). With a near field, or with a map that is a series (feature_map.hpp), a row that has to
/// be recomputed (CallOptions) has the weights of softmax for all of its pairs. On a grid, a pair is near if its two
/// cells are less than `near` apart in each of the two dimensions; a pair with an extra token is never near. A position
/// with slots of its own must have pitch().
///
/// Attention sinks: trained models attend to their first tokens from everywhere (Xiao et al. 2023), by weights that
/// features do not represent. The first `sinks` keys of a sequence that are not padding have the weight exp(q.k + b) of
/// softmax for every query. On a grid the extra tokens are the first ones. Sinks need the same maps as a near field,
/// and a row that has to be recomputed has the weights of softmax for all pairs here, too. Time O(n sinks (d + d_v)).
///
/// Salient keys: up to `salient` other keys of a sequence have the weight of softmax for every query, too, likewise.
/// They are chosen for each head and sequence, and are those with the largest
///
///     nu.k + k S k / 2
///
/// where nu and S are the mean and the covariance of the queries: the logarithm of the mean of exp(q.k), if the queries
/// were Gaussian. A query at the position of a key that is padding does not count. Which keys are salient is a constant
/// of the gradients, and y may jump where it changes. In causal attention this choice would depend on later tokens. It
/// needs `salient_rules`, one or one for each head, with which nu and S are constants, and the first keys that exceed
/// the threshold are salient. O(n d^2 + n salient (d + d_v)).
struct AttentionOptions {
  Direction direction = Direction::bidirectional;
  Normalization normalization = Normalization::unit(1);
  Engine engine = Engine::automatic;
  Index near = 0;                               // the width of the near field; 0: none
  Index sinks = 0;                              // the number of attention sinks
  Index salient = 0;                            // the number of salient keys
  std::vector<SalientRule> salient_rules = {};  // none, one, or one for each head
};

/// A report of one call.
///
/// error_bound is relative to the largest |v| that a row attends to. It bounds the rounding errors in features, weights
/// and sums: the difference from the same formula, for the same feature map, in exact arithmetic. Features of a map
/// without relative_error() (feature_map.hpp) count as exact.
struct Report {
  Engine engine = Engine::automatic;  // of the first sequence; automatic if there was nothing to compute
  Index repaired_rows = 0;            // rows that were recomputed because they failed the engine's error bound or
                                      // underflowed, or because their terms cancel (a series, or exact pairs);
                                      // if so many rows of a sequence fail that all are recomputed, all rows that
                                      // attend to a key count
  Index indefinite_rows = 0;          // rows whose denominator is not positive, by cancellation or by underflow
  Index empty_rows = 0;               // rows that attend to no key; they are zero
  Index failing_rows = 0;             // of a step of a Decoder: rows that would be recomputed if all keys were stored
  double error_bound = 0;             // the largest bound of a row that is returned
  Index compared_rows = 0;            // rows that were compared with exact softmax (CallOptions::softmax_samples)
  // the difference of the compared rows from exact softmax, relative to exact softmax, by the Frobenius norm; NaN if no
  // row was compared
  double softmax_error = std::numeric_limits<double>::quiet_NaN();
  std::size_t workspace_bytes = 0;  // peak scratch memory of all threads, without what forward saves

  /// Adds the numbers of rows of another part of the call. error_bound becomes the larger of the two.
  void add_rows(const Report& part) {
    repaired_rows += part.repaired_rows;
    indefinite_rows += part.indefinite_rows;
    empty_rows += part.empty_rows;
    failing_rows += part.failing_rows;
    error_bound = std::max(error_bound, part.error_bound);
  }
};

/// Options of one call.
///
/// Padding: only keys can be padding; each query has a row. A key that is padding is not read, adds nothing to
/// numerators and denominators, and its gradients are zero. Packed sequences do not attend to each other, and positions
/// start at 0 in each.
///
/// Tolerance: a row of y whose bound of the engine's rounding error exceeds half of the tolerance, relative to the
/// largest |v| that the row attends to, is recomputed. This takes several times as long as the direct engine takes for
/// the row; with exact pairs or a series the row is computed by exact softmax, O(n_k (d + d_v)). If more than half of
/// the rows fail, all rows are computed by the direct engine, unless there are exact pairs. With an
/// infinite tolerance no row is recomputed for its rounding error. The other half of the tolerance is for the errors
/// that any engine has (Report::error_bound).
///
/// Approximate biases: if features are positive, Engine::automatic may change biases by up to a quarter of the
/// tolerance, but at most 0.0025, if they then admit a faster engine: because they are linear in the lag beyond some
/// lags, as in a table that holds the biases of ALiBi or T5; or because they are smooth functions of the lag far from
/// lag 0, as -log(1 + |lag|) is. If something is saved for backward, it does so for positions that are smooth
/// (is_smooth()) alone: their gradient may be that of the biases that are used. Engine::smooth changes biases for any
/// features and positions.
///
/// Comparison with softmax: the call also computes softmax_samples rows of each sequence of each head by exact softmax,
/// or all rows if there are fewer, and reports how far its own rows are from these (Report::softmax_error): the error
/// of the features. O(softmax_samples n_k (d + d_v)). The rows are drawn at random, with the seed softmax_seed; empty
/// and non-finite rows are left out. It needs a feature map that estimates exp.
///
/// Non-finite inputs propagate as in the formula: a query to its own row, a key or value only to the rows that attend
/// to it. Gradients propagate in the same way. The row of a query with a NaN or an infinity, and the rows that attend
/// to such a key, are NaN, for any feature map. A key that no query attends to has the gradient 0, even if it is
/// non-finite.
///
/// Errors: a call that throws InvalidArgument for its arguments writes nothing; y, the report and `saved` stay as they
/// were. If memory runs out, if `poll` throws, or if a user's own feature map or position throws or returns a wrong
/// shape, y may be written in part, and `saved` is invalid until the next forward.
///
/// Interruption: the calling thread calls `poll` between parts of the work, such as tiles of rows of a head, and so
/// does a later backward of what the call saved. An exception from `poll` ends the call: it is rethrown once the other
/// threads have ended the parts that they were at.
struct CallOptions {
  OptionSpan<bool> key_mask = {};  // one for each key of each sequence of the batch: false is padding; empty: all true
  OptionSpan<Index> lengths = {};  // one for each sequence of the batch: later keys are padding; empty: no padding
  OptionSpan<Index> cumulative_lengths = {};      // packed sequences: 0, n_1, n_1 + n_2, ..., n; empty: not packed
  OptionSpan<Index> key_cumulative_lengths = {};  // of the keys, for cross attention; empty: as for queries
  Index offset = 0;                               // query i has position i + offset, key j has position j
  double tolerance = 0;                           // 0: 1e-4 in float, 1e-10 in double
  bool check_finite = false;                      // throw InvalidArgument if an input is non-finite
  Report* report = nullptr;                       // is set, unless null
  Index softmax_samples = 0;                      // rows to be compared with exact softmax; needs a report
  std::uint64_t softmax_seed = 0;                 // the seed with which these rows are drawn
  void (*poll)() = nullptr;  // is called between parts of the work; an exception from it ends the call
};

}  // namespace nprf
