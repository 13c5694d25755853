// SPDX-License-Identifier: MIT
//
// The extension module: nprf's classes for arrays of float and double. The Python files of the package check types,
// choose between the two, and document what users call.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.hpp"
#include "attention.hpp"
#include "call.hpp"
#include "cuda/model_capsule.hpp"
#include "models.hpp"
#include "nprf/attention/batch/check_arrays.hpp"
#include "nprf/attention/batch/find_segments.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/calibration/calibrate.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/tilt.hpp"
#include "nprf/position/resize_bias.hpp"
#include "nprf/position/spline.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "plain_attention.hpp"
#include "references.hpp"
#include "saved_call.hpp"

namespace nprf::python {

namespace {

using nb::literals::operator""_a;

using Mask = nb::ndarray<const bool, nb::c_contig, nb::device::cpu>;

Engine engine_of(const std::string& text) {
  for (const Engine each : {Engine::automatic, Engine::direct, Engine::fftw, Engine::lanes, Engine::block_causal,
                            Engine::banded, Engine::recurrence, Engine::grid, Engine::smooth})
    if (text == name(each)) return each;
  throw InvalidArgument(
      nprf::detail::sentence("engine: expected automatic, direct, lanes, block_causal, banded, "
                             "recurrence, smooth or grid, got ",
                             text));
}

AttentionOptions options_of(bool causal, double radius, const std::string& engine, Index near, Index sinks = 0,
                            Index salient = 0) {
  return {.direction = causal ? Direction::causal : Direction::bidirectional,
          .normalization = radius > 0 ? Normalization::unit(radius) : Normalization::none(),
          .engine = engine_of(engine),
          .near = near,
          .sinks = sinks,
          .salient = salient};
}

/// Options of one call, and the arrays that nprf::CallOptions refers to.
struct Call {
  std::optional<Mask> key_mask;
  std::optional<std::vector<Index>> lengths;
  std::vector<Index> cumulative_lengths, key_cumulative_lengths;
  Index offset = 0;
  double tolerance = 0;
  Index softmax_samples = 0;
  std::uint64_t softmax_seed = 0;
  bool check_finite = false;
  bool tokens_first = false;
  Index threads = 0;

  Axes axes() const { return tokens_first ? Axes::tokens_first : Axes::heads_first; }

  /// Throws InvalidArgument for no lengths of some sequences, which CallOptions takes for an absent option.
  void check_lengths(Index batch) const {
    require(!lengths || !lengths->empty() || batch == 0, "lengths: expected ", batch,
            " entries (one a sequence), got 0");
  }

  /// Throws InvalidArgument unless the mask is [batch, n_k], or [n_k] for one sequence.
  void check_key_mask(Index batch, Index n_k) const {
    if (!key_mask) return;
    std::vector<Index> shape;
    for (std::size_t axis = 0; axis < key_mask->ndim(); ++axis)
      shape.push_back(static_cast<Index>(key_mask->shape(axis)));
    if (shape == std::vector{batch, n_k} || (batch == 1 && shape == std::vector{n_k})) return;
    std::string got;
    for (const Index size : shape) got += (got.empty() ? "" : " x ") + std::to_string(size);
    throw InvalidArgument(nprf::detail::sentence("key_mask: expected ", batch, " x ", n_k, " (sequences, keys), got ",
                                                 got.empty() ? "no axes" : got));
  }

  CallOptions options(Report* report) const {
    CallOptions options{.lengths = lengths ? std::span<const Index>(*lengths) : std::span<const Index>(),
                        .cumulative_lengths = cumulative_lengths,
                        .key_cumulative_lengths = key_cumulative_lengths,
                        .offset = offset,
                        .tolerance = tolerance,
                        .check_finite = check_finite,
                        .report = report,
                        .softmax_samples = softmax_samples,
                        .softmax_seed = softmax_seed,
                        .poll = detail::poll_signals};
    if (key_mask) options.key_mask = std::span<const bool>(key_mask->data(), key_mask->size());
    return options;
  }
};

template <Real T>
Report run(const AnyAttention<T>& attention, const InputArray& q, const InputArray& k, const InputArray& v,
           const OutputArray& y, const Call& call, Saved<T>* saved) {
  const Tokens<T> queries(q, "queries", call.axes()), keys(k, "keys", call.axes()), values(v, "values", call.axes());
  const HeadsView<T> out = output_view<T>(y, "y", call.axes());
  call.check_lengths(keys.view().batch);
  call.check_key_mask(keys.view().batch, keys.view().tokens);
  Report report;
  const CallOptions options = call.options(&report);
  without_gil(call.threads, [&] { attention.run(queries.view(), keys.view(), values.view(), out, saved, options); });
  return report;
}

// dL/d(parameters) of each head, (heads,p)
template <Real T>
nb::ndarray<nb::numpy, T> by_head(const std::vector<Matrix<T>>& all) {
  const Index p = all.empty() ? 0 : all[0].size();
  Matrix<T> rows(static_cast<Index>(all.size()), p);
  for (std::size_t h = 0; h < all.size(); ++h)
    rows.row(static_cast<Index>(h)) = Eigen::Map<const Matrix<T>>(all[h].data(), 1, p);
  return numpy_array<T>(rows);
}

template <Real T>
nb::tuple backward(const SavedCall<T>& saved, const InputArray& dy, const OutputArray& dq, const OutputArray& dk,
                   const OutputArray& dv, const Call& call) {
  const Tokens<T> gradient(dy, "dy", call.axes());
  const HeadsView<T> queries = output_view<T>(dq, "dq", call.axes()), keys = output_view<T>(dk, "dk", call.axes()),
                     values = output_view<T>(dv, "dv", call.axes());
  std::vector<Matrix<T>> dbias, dextra;
  GradientReport report;
  without_gil(call.threads, [&] {
    saved.attention->backward(*saved.saved, gradient.view(), queries, keys, values, dbias, dextra, report);
  });
  return nb::make_tuple(by_head<T>(dbias), by_head<T>(dextra), report);
}

Projection projection_of(const std::string& name) {
  if (name == "gaussian") return Projection::gaussian;
  if (name == "orthogonal") return Projection::orthogonal;
  if (name == "sphere") return Projection::sphere;
  if (name == "simplex") return Projection::simplex;
  if (name == "sphere_simplex") return Projection::sphere_simplex;
  throw InvalidArgument(nprf::detail::sentence(
      "projection: expected gaussian, orthogonal, sphere, simplex or sphere_simplex, got ", name));
}

// with(map) for the class of random maps of this name
template <Real T, class From>
Features<T> random_map(const std::string& kind, const From& from) {
  if (kind == "positive") return Features<T>::one(PositiveFeatures<T>(from));
  if (kind == "hyperbolic") return Features<T>::one(HyperbolicFeatures<T>(from));
  if (kind == "trigonometric") return Features<T>::one(TrigonometricFeatures<T>(from));
  throw InvalidArgument(nprf::detail::sentence("kind: expected positive, hyperbolic or trigonometric, got ", kind));
}

template <Real T>
Features<T> joined(const std::vector<const Features<T>*>& each) {
  require(!each.empty(), "features: expected one map, or one for each head, got none");
  Features<T> all = *each[0];
  for (std::size_t h = 1; h < each.size(); ++h) {
    require(each[h]->maps.index() == all.maps.index(), "features: expected maps of one kind for all heads, got others");
    std::visit(
        [&](auto& maps) {
          const auto& more = std::get<std::remove_cvref_t<decltype(maps)>>(each[h]->maps);
          maps.insert(maps.end(), more.begin(), more.end());
        },
        all.maps);
  }
  return all;
}

// whether the numbers of a text of C++ are double, not float
bool is_of_double(const std::string& text) {
  return text.substr(0, text.find('\n')).find("double") != std::string::npos;
}

// a calibrated map from the text of either scalar
template <Real T>
Features<T> calibrated(const std::string& text) {
  std::istringstream in(text);
  return is_of_double(text) ? Features<T>::one(CalibratedFeatures<double>::load(in).template cast<T>())
                            : Features<T>::one(CalibratedFeatures<float>::load(in).template cast<T>());
}

// of queries A (q - nu) and keys A^-T (k - mu) (nprf/feature_map/centred.hpp)
template <Real T>
Features<T> centred(const Features<T>& features, const InputArray& means, const InputArray& query_axes,
                    const InputArray& key_axes) {
  const Matrix<T> rows = matrix_of<T>(means, "means");
  require(rows.rows() == 2, "means: expected 2 rows, got ", rows.rows());
  const Centring<T> constants{rows.row(0).transpose(), rows.row(1).transpose(), matrix_of<T>(query_axes, "query_axes"),
                              matrix_of<T>(key_axes, "key_axes")};
  const auto one = [&](const auto& map) -> Features<T> {
    using F = std::remove_cvref_t<decltype(map)>;
    if constexpr (std::is_same_v<F, TaylorFeatures<T>>)
      return Features<T>::one(CalibratedFeatures<T>(map, constants));
    else if constexpr (std::is_same_v<F, PositiveFeatures<T>> || std::is_same_v<F, HyperbolicFeatures<T>>)
      return Features<T>::one(Centred<F>(map, constants));
    else
      throw InvalidArgument("features: expected positive, hyperbolic or Taylor features to be centred, got others");
  };
  return std::visit([&](const auto& maps) { return one(maps[0]); }, features.maps);
}

// query_mean, key_mean, query_axes, key_axes
template <Real T>
nb::tuple arrays_of(const Centring<T>& c) {
  const auto vector = [](const Vector<T>& x) { return numpy_array<T>(x.data(), {static_cast<std::size_t>(x.size())}); };
  return nb::make_tuple(vector(c.query_mean), vector(c.key_mean), numpy_array<T>(c.query_axes),
                        numpy_array<T>(c.key_axes));
}

template <Real T>
nb::tuple centring(const Features<T>& features) {
  return std::visit(
      [](const auto& maps) -> nb::tuple {
        if constexpr (requires { maps[0].constants(); })
          return arrays_of<T>(maps[0].constants());
        else
          throw InvalidArgument("features: expected a centred map, got one without a centring");
      },
      features.maps);
}

template <Real T>
Features<T> tilted(const std::string& kind, Index d, Index m, const std::string& projection, std::uint64_t seed,
                   const InputArray& axes, const InputArray& a) {
  FeatureOptions options{.input_dim = d, .num_features = m, .projection = projection_of(projection), .seed = seed};
  options.tilt.axes = matrix_of<double>(axes, "axes");
  options.tilt.a = matrix_of<double>(a, "a").transpose();
  return random_map<T>(kind, options);
}

template <Real T>
nb::ndarray<nb::numpy, T> projection_rows(const Features<T>& features) {
  return std::visit(
      [](const auto& maps) -> nb::ndarray<nb::numpy, T> {
        if constexpr (requires { maps[0].projection(); })
          return numpy_array<T>(maps[0].projection());
        else
          throw InvalidArgument("features: expected random features, got a map without a projection");
      },
      features.maps);
}

// positions of the rows of b (h,p)
template <Real T, class Make>
Positions<T> of_rows(const InputArray& b, const char* name, Make&& make) {
  const Matrix<T> rows = matrix_of<T>(b, name);
  std::vector<SequencePosition<T>> all;
  for_each_head(rows.rows(), [&](Index h) { all.emplace_back(make(Vector<T>(rows.row(h).transpose()))); });
  return {std::move(all)};
}

SplineEnd end_of(const std::string& text) {
  if (text == "constant") return SplineEnd::constant;
  if (text == "linear") return SplineEnd::linear;
  throw InvalidArgument(nprf::detail::sentence("end: expected constant or linear, got ", text));
}

// curves of the rows (h,p). kind: log, power, alibi_sum, or spline, which has knots and an end
template <Real T>
Positions<T> curves(const std::string& kind, const InputArray& rows, Index reach, const std::vector<Index>& knots,
                    const std::string& end) {
  return of_rows<T>(rows, "parameters", [&](const Vector<T>& row) {
    const std::vector<double> p(row.begin(), row.end()), half(p.size() / 2, 0.0);
    const AnyCurve curve = kind == "log"         ? AnyCurve(KerpleLog(0, 0).with_parameters(p))
                           : kind == "power"     ? AnyCurve(KerplePower(0, 0).with_parameters(p))
                           : kind == "alibi_sum" ? AnyCurve(AlibiSum(half, half).with_parameters(p))
                                                 : AnyCurve(Spline(p, knots, end_of(end)));
    return CurvePosition<T, AnyCurve>(curve, reach);
  });
}

// the biases at the lags -reach..reach (h,2 reach + 1) of splines with the rows of values (h,p)
nb::ndarray<nb::numpy, double> spline_tables(const InputArray& values, const std::vector<Index>& knots, Index reach,
                                             const std::string& end) {
  const Matrix<double> rows = matrix_of<double>(values, "values");
  require(reach >= 1, "reach: expected at least 1, got ", reach);
  Matrix<double> tables(rows.rows(), 2 * reach + 1);
  for (Index h = 0; h < rows.rows(); ++h) {
    const Spline spline({rows.row(h).begin(), rows.row(h).end()}, knots, end_of(end));
    for (Index lag = -reach; lag <= reach; ++lag) tables(h, lag + reach) = spline.bias(lag);
  }
  return numpy_array<double>(tables);
}

// of splines that are fitted to the rows of tables (h,2R+1): the values (h,p), the largest errors and the mean ones
nb::tuple fit_splines(const InputArray& tables, const std::vector<Index>& knots, const std::string& end,
                      bool two_sides) {
  const Matrix<double> rows = matrix_of<double>(tables, "table");
  Matrix<double> values(rows.rows(), static_cast<Index>(knots.size()) * (two_sides ? 2 : 1));
  std::vector<double> largest, mean;
  for_each_head(rows.rows(), [&](Index h) {
    const SplineFit fit = fit_spline<double>(Vector<double>(rows.row(h).transpose()), knots, end_of(end), two_sides);
    values.row(h) = Eigen::Map<const Vector<double>>(fit.spline.values().data(), values.cols()).transpose();
    largest.push_back(fit.largest_error), mean.push_back(fit.mean_error);
  });
  return nb::make_tuple(numpy_array<double>(values), largest, mean);
}

template <Real T>
Positions<T> grids(Index height, Index width, const InputArray& b, const InputArray& extra, Index extra_tokens) {
  const Matrix<T> tables = matrix_of<T>(b, "b"), borders = matrix_of<T>(extra, "extra");
  require(height >= 1 && width >= 1 && height <= tables.cols() && width <= tables.cols() &&
              tables.cols() == (2 * height - 1) * (2 * width - 1),
          "b: expected ", 2 * height - 1, " x ", 2 * width - 1, " (2H-1 x 2W-1 for a grid of ", height, " x ", width,
          "), got ", tables.cols(), " numbers");
  std::vector<GridPosition<T>> all;
  for_each_head(tables.rows(), [&](Index h) {
    const Matrix<T> table = Eigen::Map<const Matrix<T>>(tables.row(h).data(), 2 * height - 1, 2 * width - 1);
    Matrix<T> border(extra_tokens, extra_tokens + 2);
    if (extra_tokens > 0) border = Eigen::Map<const Matrix<T>>(borders.row(h).data(), extra_tokens, extra_tokens + 2);
    all.emplace_back(height, width, table, std::move(border));
  });
  return {std::move(all)};
}

// Sets the rows of y, for each packed sequence of each head, to reference(h, q, k, v, kept) of its arrays.
// heads_of_model: the number of feature maps or positions. rank: that of their vectors of lags.
template <Real T, class Reference>
void for_each_sequence(const InputArray& q, const InputArray& k, const InputArray& v, const OutputArray& y,
                       const Call& call, Index heads_of_model, Index rank, Reference&& reference) {
  const Tokens<T> queries(q, "queries", call.axes()), keys(k, "keys", call.axes()), values(v, "values", call.axes());
  const HeadsView<T> out = output_view<T>(y, "y", call.axes());
  const HeadsView<const T> a = queries.view(), b = keys.view(), c = values.view();
  check_head_counts(a.heads, b.heads, heads_of_model);
  check_heads(b, "keys", a.batch, b.heads, b.tokens, a.channels - rank);
  check_heads(c, "values", a.batch, b.heads, b.tokens, c.channels);
  call.check_lengths(b.batch);
  call.check_key_mask(b.batch, b.tokens);
  const CallOptions options = call.options(nullptr);
  std::vector<Segment> segments;
  find_segments(options, b.batch, a.tokens, b.tokens, segments);
  const Index group = a.heads / std::max<Index>(b.heads, 1);
  without_gil(call.threads, [&] {
    for (Index s = 0; s < a.batch; ++s)
      for (const Segment& x : segments) {
        KeptKeys kept{{}, options.lengths.empty() ? x.n_k : options.lengths[static_cast<std::size_t>(s)]};
        if (!options.key_mask.empty())
          kept.mask = options.key_mask.subspan(static_cast<std::size_t>(s * b.tokens + x.k_begin),
                                               static_cast<std::size_t>(x.n_k));
        for (Index h = 0; h < a.heads; ++h)
          out(s, h).middleRows(x.q_begin, x.n_q) =
              reference(h, a(s, h).middleRows(x.q_begin, x.n_q), b(s, h / group).middleRows(x.k_begin, x.n_k),
                        c(s, h / group).middleRows(x.k_begin, x.n_k), kept);
      }
  });
}

template <Real T>
void softmax_attention(const InputArray& q, const InputArray& k, const InputArray& v, const OutputArray& y,
                       const Positions<T>& positions, bool causal, double radius, const Call& call) {
  const AttentionOptions options = options_of(causal, radius, "automatic", 0);
  std::visit(
      [&](const auto& all) {
        for_each_sequence<T>(q, k, v, y, call, static_cast<Index>(all.size()), PositionView<T>(all[0]).rank(),
                             [&](Index h, const MatrixView<T>& queries, const MatrixView<T>& keys,
                                 const MatrixView<T>& values, const KeptKeys& kept) {
                               const auto& position = all[all.size() == 1 ? 0 : static_cast<std::size_t>(h)];
                               const KeyMask mask(kept, keys.rows());
                               return nprf::reference::softmax_attention<T>(
                                   queries, keys, values, position, options.direction, options.normalization,
                                   detail::poll_signals, mask.span(), call.offset);
                             });
      },
      positions.positions);
}

template <Real T>
void kernelized_attention(const AnyAttention<T>& attention, const InputArray& q, const InputArray& k,
                          const InputArray& v, const OutputArray& y, const Call& call) {
  for_each_sequence<T>(
      q, k, v, y, call, attention.heads_of_model(), attention.rank(),
      [&](Index h, const MatrixView<T>& queries, const MatrixView<T>& keys, const MatrixView<T>& values,
          const KeptKeys& kept) { return attention.reference(h, queries, keys, values, call.offset, kept); });
}

// the text of each head's map, the error, that of each head, and the candidates
template <Real T>
nb::tuple parts_of(const HeadsCalibration<T>& calibration) {
  nb::list texts, candidates;
  for (const CalibratedFeatures<T>& each : calibration.features) {
    std::ostringstream text;
    each.save(text);
    texts.append(text.str());
  }
  for (const CalibrationCandidate& each : calibration.candidates)
    candidates.append(nb::make_tuple(each.first, each.second, each.error));
  return nb::make_tuple(texts, calibration.softmax_error, calibration.head_errors, candidates);
}

template <Real T>
nb::tuple calibrate(const InputArray& q, const InputArray& k, const InputArray& v, const Positions<T>& positions,
                    bool causal, double radius, Index num_features, Index near, Index sinks, std::uint64_t seed,
                    double target_error, double shrinkage, Index max_queries) {
  const Tokens<T> queries(q, "queries", Axes::heads_first), keys(k, "keys", Axes::heads_first),
      values(v, "values", Axes::heads_first);
  const AttentionOptions of_attention = options_of(causal, radius, "automatic", near);
  const CalibrationOptions options{.num_features = num_features,
                                   .near = near,
                                   .sinks = sinks,
                                   .direction = of_attention.direction,
                                   .normalization = of_attention.normalization,
                                   .seed = seed,
                                   .target_error = target_error,
                                   .shrinkage = shrinkage,
                                   .max_queries = max_queries,
                                   .poll = detail::poll_signals};
  HeadsCalibration<T> result;
  without_gil(0, [&] {
    result = std::visit(
        [&](const auto& all) {
          return calibrate_heads<T>(queries.view(), keys.view(), values.view(), std::span(all), options);
        },
        positions.positions);
  });
  return parts_of(result);
}

// a HeadsCalibration, and what parts_of returned, as text in the form of C++
template <Real T>
std::string calibration_text(const std::vector<std::string>& texts, double softmax_error,
                             const std::vector<double>& head_errors,
                             const std::vector<std::tuple<Index, Index, double>>& candidates) {
  HeadsCalibration<T> calibration{{}, softmax_error, head_errors, {}};
  for (const std::string& text : texts) {
    std::istringstream in(text);
    calibration.features.push_back(CalibratedFeatures<T>::load(in));
  }
  for (const auto& [first, second, error] : candidates) calibration.candidates.push_back({first, second, error});
  std::ostringstream out;
  calibration.save(out);
  return out.str();
}

template <Real T>
nb::tuple parts_of_text(const std::string& text) {
  std::istringstream in(text);
  return parts_of(HeadsCalibration<T>::load(in));
}

template <Real T>
void bind_features(nb::module_& m, const char* name) {
  nb::class_<Features<T>>(m, name)
      .def_static(
          "random",
          [](const std::string& kind, Index d, Index features, const std::string& projection, std::uint64_t seed) {
            return random_map<T>(
                kind,
                FeatureOptions{
                    .input_dim = d, .num_features = features, .projection = projection_of(projection), .seed = seed});
          })
      .def_static("tilted", &tilted<T>)
      .def_static("of_rows", [](const std::string& kind,
                                const InputArray& rows) { return random_map<T>(kind, matrix_of<T>(rows, "rows")); })
      .def_static("elu", [](Index d) { return Features<T>::one(EluFeatures<T>(d)); })
      .def_static("taylor",
                  [](Index d, Index directions) {
                    return Features<T>::one(TaylorFeatures<T>({.input_dim = d, .directions = directions}));
                  })
      .def_static("calibrated", &calibrated<T>)
      .def_static("joined", &joined<T>)
      .def_prop_ro(
          "input_dim",
          [](const Features<T>& f) { return std::visit([](const auto& maps) { return maps[0].input_dim(); }, f.maps); })
      .def_prop_ro("output_dim",
                   [](const Features<T>& f) {
                     return std::visit([](const auto& maps) { return maps[0].output_dim(); }, f.maps);
                   })
      .def_static("centred", &centred<T>)
      .def("centring", &centring<T>)
      .def("projection", &projection_rows<T>);
}

template <Real T>
void bind_positions(nb::module_& m, const char* name) {
  nb::class_<Positions<T>>(m, name)
      .def_static("none", [] { return Positions<T>{std::vector{SequencePosition<T>(NoPosition<T>())}}; })
      .def_static("relative",
                  [](const InputArray& b, bool is_smooth) {
                    return of_rows<T>(b, "b",
                                      [&](Vector<T> row) { return RelativePosition<T>(std::move(row), is_smooth); });
                  })
      .def_static("t5",
                  [](const InputArray& weights, bool causal, Index max_distance) {
                    const Direction direction = causal ? Direction::causal : Direction::bidirectional;
                    return of_rows<T>(weights, "weights", [&](Vector<T> row) {
                      return T5Position<T>(std::move(row), direction, max_distance);
                    });
                  })
      .def_static("alibi",
                  [](const InputArray& slopes) {
                    return of_rows<T>(slopes, "slope", [](Vector<T> row) {
                      require(row.size() == 1, "slope: expected one number, got ", row.size());
                      return AlibiPosition<T>(row[0]);
                    });
                  })
      .def_static("curve", &curves<T>)
      .def_static("grid", &grids<T>)
      .def("with_parameters",
           [](const Positions<T>& positions, const InputArray& rows) {
             return with_parameters<T>(positions, matrix_of<T>(rows, "bias"));
           })
      .def("with_lag_vectors", [](const Positions<T>& positions, const InputArray& rows, Index rank) {
        return with_lag_vectors<T>(positions, matrix_of<T>(rows, "lag_vectors"), rank);
      });
}

template <Real T>
void bind_attention(nb::module_& m, const char* name, const char* saved_name) {
  using Attention = AnyAttention<T>;
  nb::class_<SavedCall<T>>(m, saved_name, nb::is_weak_referenceable())
      .def("backward", &backward<T>)
      .def_prop_ro("address", [](SavedCall<T>& x) { return reinterpret_cast<std::uintptr_t>(&x.token); })
      .def("token", [](nb::handle self) {
        auto* x = nb::cast<SavedCall<T>*>(self);
        return nb::ndarray<std::uint8_t, nb::device::cpu>(&x->token, {1}, self);
      });
  nb::class_<Attention>(m, name)
      .def_static("make",
                  [](const Features<T>& features, const Positions<T>& positions, bool causal, double radius,
                     const std::string& engine, Index near, Index sinks, Index salient) {
                    return std::const_pointer_cast<Attention>(make_attention<T>(
                        features, positions, options_of(causal, radius, engine, near, sinks, salient)));
                  })
      .def("__call__", [](const Attention& self, const InputArray& q, const InputArray& k, const InputArray& v,
                          const OutputArray& y, const Call& call) { return run<T>(self, q, k, v, y, call, nullptr); })
      .def("forward",
           [](const std::shared_ptr<Attention>& self, const InputArray& q, const InputArray& k, const InputArray& v,
              const OutputArray& y, const Call& call) {
             auto saved = std::make_unique<SavedCall<T>>();
             saved->attention = self;
             const Report report = run<T>(*self, q, k, v, y, call, saved->saved.get());
             return nb::make_tuple(nb::cast(saved.release(), nb::rv_policy::take_ownership), report);
           })
      .def("kernelized_attention", &kernelized_attention<T>)
      .def("cuda_model", [](const Attention& self) {
        auto model = std::make_unique<cuda::AttentionModel>(self.cuda_model());
        const nb::capsule capsule(model.get(), cuda_model_name,
                                  [](void* p) noexcept { delete static_cast<cuda::AttentionModel*>(p); });
        model.release();
        return capsule;
      });
}

template <Real T>
void bind_plain_attention(nb::module_& m, const char* name) {
  using Plain = PlainAttentionOf<T>;
  nb::class_<Plain>(m, name)
      .def("__init__",
           [](Plain* self, const Features<T>& features, const Positions<T>& positions, bool causal, double radius,
              const std::string& engine,
              Index near) { new (self) Plain(features, positions, options_of(causal, radius, engine, near)); })
      .def_prop_ro("address", [](const Plain& self) {
        return reinterpret_cast<std::intptr_t>(static_cast<const PlainAttention*>(&self));
      });
}

// the tokens of one call: prefill or step
template <Real T>
Report append(Decoder<T>& decoder, const InputArray& q, const InputArray& k, const InputArray& v, const OutputArray& y,
              const Call& call, bool prefill) {
  const Tokens<T> queries(q, "queries", call.axes()), keys(k, "keys", call.axes()), values(v, "values", call.axes());
  const HeadsView<T> out = output_view<T>(y, "y", call.axes());
  Report report;
  call.check_lengths(queries.view().batch);
  const CallOptions options = call.options(&report);
  without_gil(call.threads, [&] {
    if (prefill)
      decoder.prefill(queries.view(), keys.view(), values.view(), out, options);
    else
      decoder.step(queries.view(), keys.view(), values.view(), out, options);
  });
  return report;
}

template <Real T>
void bind_decoder(nb::module_& m, const char* name) {
  nb::class_<Decoder<T>>(m, name)
      .def_static("make",
                  [](const AnyAttention<T>& attention, Index batch, Index rollback, Index most_tokens) {
                    return attention.decoder({.batch = batch, .rollback = rollback, .most_tokens = most_tokens});
                  })
      .def("append", &append<T>)
      .def("rollback", &Decoder<T>::rollback)
      .def("reorder", [](Decoder<T>& self, const std::vector<Index>& from) { self.reorder(from); })
      .def("fork", &Decoder<T>::fork)
      .def("reset", [](Decoder<T>& self, Index sequence) { self.reset(sequence); })
      .def("tokens", &Decoder<T>::tokens)
      .def("nbytes", &Decoder<T>::bytes)
      .def("save",
           [](const Decoder<T>& self) {
             std::ostringstream stream;
             self.save(stream);
             const std::string state = stream.str();
             return nb::bytes(state.data(), state.size());
           })
      .def("load", [](Decoder<T>& self, const nb::bytes& state) {
        std::istringstream stream(std::string(state.c_str(), state.size()));
        self.load(stream);
      });
}

template <Real T>
void bind_functions(nb::module_& m, const std::string& suffix) {
  const auto name = [&](const char* base) { return base + suffix; };
  m.def(name("softmax_attention_").c_str(), &softmax_attention<T>);
  m.def(name("calibrate_").c_str(), &calibrate<T>);
  m.def(name("sderf_tilt_").c_str(), [](const InputArray& q, const InputArray& k) {
    const Tilt tilt = sderf_tilt<T>(matrix_of<T>(q, "queries"), matrix_of<T>(k, "keys"));
    return nb::make_tuple(numpy_array<double>(tilt.axes),
                          numpy_array<double>(tilt.a.data(), {static_cast<std::size_t>(tilt.a.size())}));
  });
  m.def(name("free_memory_").c_str(), [] {
    SavedMemory<T>::free();
    scratch_memory<T>().free_scratch_memory();
  });
}

nb::tuple fields_of(const Report& r) {
  return nb::make_tuple(std::string(name(r.engine)), r.repaired_rows, r.indefinite_rows, r.empty_rows, r.failing_rows,
                        r.error_bound, r.compared_rows, r.softmax_error, r.workspace_bytes);
}
nb::tuple fields_of(const GradientReport& r) {
  return nb::make_tuple(std::string(name(r.engine)), r.recomputed_queries, r.recomputed_keys, r.recomputed_lags,
                        r.error_bound, r.workspace_bytes);
}

// whether numbers are equal, or both NaN
bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool are_equal(const Report& a, const Report& b) {
  return a.engine == b.engine && a.repaired_rows == b.repaired_rows && a.indefinite_rows == b.indefinite_rows &&
         a.empty_rows == b.empty_rows && a.failing_rows == b.failing_rows && is_same(a.error_bound, b.error_bound) &&
         a.compared_rows == b.compared_rows && is_same(a.softmax_error, b.softmax_error) &&
         a.workspace_bytes == b.workspace_bytes;
}
bool are_equal(const GradientReport& a, const GradientReport& b) {
  return a.engine == b.engine && a.recomputed_queries == b.recomputed_queries &&
         a.recomputed_keys == b.recomputed_keys && a.recomputed_lags == b.recomputed_lags &&
         is_same(a.error_bound, b.error_bound) && a.workspace_bytes == b.workspace_bytes;
}

// equality, a hash of what is never NaN, and the arguments of the constructor
template <class R>
void bind_as_value(nb::class_<R>& report) {
  report
      .def(
          "__eq__",
          [](const R& self, nb::handle other) {
            return nb::isinstance<R>(other) && are_equal(self, nb::cast<const R&>(other));
          },
          nb::arg().none())
      .def("__hash__",
           [](const R& self) { return nb::hash(nb::make_tuple(std::string(name(self.engine)), self.workspace_bytes)); })
      .def("_fields", [](const R& self) { return fields_of(self); });
}

void bind_report(nb::module_& m) {
  nb::class_<Report> report(m, "Report", "What one call reports. Reports are values: they are compared and pickled.");
  report
      .def(
          "__init__",
          [](Report* self, const std::string& engine, Index repaired_rows, Index indefinite_rows, Index empty_rows,
             Index failing_rows, double error_bound, Index compared_rows, double softmax_error,
             std::size_t workspace_bytes) {
            new (self) Report{engine_of(engine), repaired_rows, indefinite_rows, empty_rows,     failing_rows,
                              error_bound,       compared_rows, softmax_error,   workspace_bytes};
          },
          "engine"_a, "repaired_rows"_a, "indefinite_rows"_a, "empty_rows"_a, "failing_rows"_a, "error_bound"_a,
          "compared_rows"_a, "softmax_error"_a, "workspace_bytes"_a)
      .def_prop_ro(
          "engine", [](const Report& r) { return std::string(name(r.engine)); },
          "The engine of the first sequence; \"automatic\" if there was nothing to compute.")
      .def_ro("repaired_rows", &Report::repaired_rows,
              "Rows that failed the engine's error bound, underflowed, or whose terms cancel, and were recomputed.")
      .def_ro("indefinite_rows", &Report::indefinite_rows,
              "Rows whose denominator is not positive, by cancellation or by underflow.")
      .def_ro("empty_rows", &Report::empty_rows, "Rows that attend to no key; they are zero.")
      .def_ro("failing_rows", &Report::failing_rows,
              "Of a step of a Decoder: rows that would be recomputed if all keys were stored.")
      .def_ro(
          "error_bound", &Report::error_bound,
          "The bound of the rounding errors of the returned rows, relative to the largest |v| that a row attends to.")
      .def_ro("compared_rows", &Report::compared_rows, "Rows that were compared with exact softmax (softmax_samples).")
      .def_ro("softmax_error", &Report::softmax_error,
              "The difference of these rows from exact softmax, relative by the Frobenius norm; NaN if there are none.")
      .def_ro("workspace_bytes", &Report::workspace_bytes,
              "The peak scratch memory of all threads, without what forward saves.")
      .def("__repr__", [](const Report& r) {
        return nprf::detail::sentence("Report(engine='", name(r.engine), "', repaired_rows=", r.repaired_rows,
                                      ", indefinite_rows=", r.indefinite_rows, ", empty_rows=", r.empty_rows,
                                      ", failing_rows=", r.failing_rows, ", error_bound=", r.error_bound,
                                      ", compared_rows=", r.compared_rows, ", softmax_error=", r.softmax_error,
                                      ", workspace_bytes=", r.workspace_bytes, ")");
      });
  bind_as_value(report);
}

void bind_gradient_report(nb::module_& m) {
  nb::class_<GradientReport> report(m, "GradientReport",
                                    "What one backward reports. Reports are values: they are compared and pickled.");
  report
      .def(
          "__init__",
          [](GradientReport* self, const std::string& engine, Index recomputed_queries, Index recomputed_keys,
             Index recomputed_lags, double error_bound, std::size_t workspace_bytes) {
            new (self) GradientReport{engine_of(engine), recomputed_queries, recomputed_keys,
                                      recomputed_lags,   error_bound,        workspace_bytes};
          },
          "engine"_a, "recomputed_queries"_a, "recomputed_keys"_a, "recomputed_lags"_a, "error_bound"_a,
          "workspace_bytes"_a)
      .def_prop_ro(
          "engine", [](const GradientReport& r) { return std::string(name(r.engine)); },
          "The engine of the first sequence; \"automatic\" if there was nothing to compute.")
      .def_ro("recomputed_queries", &GradientReport::recomputed_queries,
              "Gradients of queries that failed their error bound, and were recomputed.")
      .def_ro("recomputed_keys", &GradientReport::recomputed_keys, "The same of keys.")
      .def_ro("recomputed_lags", &GradientReport::recomputed_lags, "The same of biases, by lag.")
      .def_ro("error_bound", &GradientReport::error_bound,
              "The bound of the rounding errors of the returned gradients, each relative to a magnitude of its own.")
      .def_ro("workspace_bytes", &GradientReport::workspace_bytes, "The peak scratch memory of all threads.")
      .def("__repr__", [](const GradientReport& r) {
        return nprf::detail::sentence("GradientReport(engine='", name(r.engine),
                                      "', recomputed_queries=", r.recomputed_queries,
                                      ", recomputed_keys=", r.recomputed_keys, ", recomputed_lags=", r.recomputed_lags,
                                      ", error_bound=", r.error_bound, ", workspace_bytes=", r.workspace_bytes, ")");
      });
  bind_as_value(report);
}

void bind_calls(nb::module_& m) {
  nb::class_<Call>(m, "Call").def(
      "__init__",
      [](Call* self, std::optional<Mask> key_mask, std::optional<std::vector<Index>> lengths,
         std::vector<Index> cumulative, std::vector<Index> key_cumulative, Index offset, double tolerance,
         Index softmax_samples, std::uint64_t softmax_seed, bool check_finite, bool tokens_first, Index threads) {
        new (self) Call{std::move(key_mask),
                        std::move(lengths),
                        std::move(cumulative),
                        std::move(key_cumulative),
                        offset,
                        tolerance,
                        softmax_samples,
                        softmax_seed,
                        check_finite,
                        tokens_first,
                        threads};
      },
      nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
      nb::arg(), nb::arg());
  bind_report(m);
  bind_gradient_report(m);
}

template <Real T>
void bind(nb::module_& m, const std::string& suffix) {
  bind_features<T>(m, ("Features_" + suffix).c_str());
  bind_positions<T>(m, ("Positions_" + suffix).c_str());
  bind_attention<T>(m, ("Attention_" + suffix).c_str(), ("Saved_" + suffix).c_str());
  bind_plain_attention<T>(m, ("PlainAttention_" + suffix).c_str());
  bind_decoder<T>(m, ("Decoder_" + suffix).c_str());
  bind_functions<T>(m, suffix);
}

}  // namespace

}  // namespace nprf::python

NB_MODULE(NPRF_MODULE, m) {
  using namespace nprf;
  using namespace nprf::python;
  nb::set_leak_warnings(false);  // objects that globals of Python keep
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const InvalidArgument& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  bind_calls(m);
  bind<float>(m, "float32");
  bind<double>(m, "float64");
  m.def("balance", [](const InputArray& q, const InputArray& k, double shrinkage) {
    const Balance<double> found =
        balance<double>(matrix_of<double>(q, "queries"), matrix_of<double>(k, "keys"), shrinkage);
    return nb::make_tuple(
        arrays_of<double>(found.constants),
        numpy_array<double>(found.variances.data(), {static_cast<std::size_t>(found.variances.size())}));
  });
  m.def("calibration_text",
        [](const std::vector<std::string>& texts, double softmax_error, const std::vector<double>& head_errors,
           const std::vector<std::tuple<Index, Index, double>>& candidates) {
          const bool of_double = !texts.empty() && is_of_double(texts[0]);
          return (of_double ? &calibration_text<double> : &calibration_text<float>)(texts, softmax_error, head_errors,
                                                                                    candidates);
        });
  m.def("parts_of_calibration", [](const std::string& text) {
    return is_of_double(text) ? parts_of_text<double>(text) : parts_of_text<float>(text);
  });
  m.def("resize_bias", [](const InputArray& b, Index size) {
    const Matrix<double> table = matrix_of<double>(b, "b");
    const Vector<double> resized = nprf::resize_bias<double>(Vector<double>(table.transpose()), size);
    return numpy_array<double>(resized.data(), {static_cast<std::size_t>(resized.size())});
  });
  m.def("resize_grid", [](const InputArray& b, Index height, Index width) {
    return numpy_array<double>(nprf::resize_bias<double>(matrix_of<double>(b, "b"), height, width));
  });
  m.def("log_spaced_knots", &log_spaced_knots);
  m.def("spline_tables", &spline_tables);
  m.def("fit_spline", &fit_splines);
  m.def("t5_bucket", [](Index lag, Index num_buckets, bool causal, Index max_distance) {
    return t5_bucket(lag, num_buckets, causal ? Direction::causal : Direction::bidirectional, max_distance);
  });
  m.def("best_tilt", &best_tilt);
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads);
  m.def("after_fork", [] {
    nprf::python::detail::is_forked = true;
    set_num_threads(1);
  });
  m.attr("version") = nprf::detail::sentence(NPRF_VERSION_MAJOR, '.', NPRF_VERSION_MINOR, '.', NPRF_VERSION_PATCH);
}
