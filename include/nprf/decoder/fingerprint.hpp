// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/state_stream.hpp"

namespace nprf {

/// What distinguishes the models of two heads: the sizes and biases by a hash, and the feature map by the features of
/// one query and one key. Other processors may round features differently, so these are compared with a tolerance.
template <Real T>
class Fingerprint {
 public:
  explicit Fingerprint(const StepModel<T>& model) {
    const FeatureMapView<T>& map = model.features.map();
    Checksum sum;
    for (const Index size : {map.input_dim(), map.output_dim(), model.near, model.sinks, model.rollback,
                             model.most_tokens, model.bias.table()})
      sum.add(size);
    sum.add(model.bias.has_tail()), sum.add(model.bias.slope()), sum.add(model.features.normalization().radius());
    for (Index age = 0; age <= model.bias.table(); ++age) sum.add(model.bias(age));
    m_hash = sum.value();

    Workspace scratch;
    const Index d = map.input_dim(), r = map.output_dim();
    T* x = scratch.take<T>(d);
    for (Index l = 0; l < d; ++l) x[l] = static_cast<T>(std::sin(static_cast<double>(l + 1)));
    const TokenRows<T> one{x, 1, d};
    const FeatureRows<T> key_and_query = model.features(one, one, scratch);
    for (const bool is_query : {true, false}) {
      const FeatureRow<T> row = key_and_query(is_query ? 1 : 0);
      double of_features = 0;
      for (Index k = 0; k < r; ++k)
        of_features += std::cos(static_cast<double>(k + 1)) * static_cast<double>(row.phi[k]);
      m_values[is_query ? 0 : 2] = row.log_factor, m_values[is_query ? 1 : 3] = of_features;
    }
    m_tolerance = 1e3 * static_cast<double>(std::numeric_limits<T>::epsilon()) * std::sqrt(static_cast<double>(r));
  }

  void save(StateWriter& out) const {
    out(m_hash);
    out(m_values);
  }
  /// Throws InvalidArgument if the saved model is another one.
  void require_same(StateReader& in) const {
    require(in.next<std::uint64_t>() == m_hash,
            "state: expected one of this attention, got one of other sizes, biases or options");
    for (const double value : m_values) {
      const double saved = in.next<double>();
      require(std::abs(saved - value) <= m_tolerance * (1 + std::abs(value)),
              "state: expected one of this attention, got one of another feature map");
    }
  }

 private:
  std::uint64_t m_hash = 0;
  std::array<double, 4> m_values{};  // log-factors, and sums of features, of a query and of a key
  double m_tolerance = 0;
};

}  // namespace nprf
