// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "nprf/attention/head_models.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

template <Real T>
class BatchPool;

/// What attentions of all feature maps and positions have in common: the checks of a call, scratch memory, and the
/// work. Copies share the scratch memory and the identity, by which check_saved() recognises what forward has saved.
template <Real T>
class AttentionCore {
 public:
  explicit AttentionCore(CompiledFlags<T> = {});

  /// Throws InvalidArgument unless all of this holds: there is one feature map or one for each head; there is one
  /// position or one for each head; all maps have the same dimensions; the maps support the options.
  static void check(const HeadModels<T>& heads);

  /// Computes y as MultiHeadAttention::operator() does; if `saved` is not null, it also saves, as
  /// MultiHeadAttention::forward does.
  void forward(const HeadModels<T>& heads, const HeadsView<const T>& q, const HeadsView<const T>& k,
               const HeadsView<const T>& v, const HeadsView<T>& y, const CallOptions& call, Saved<T>* saved,
               Lengths lengths = Lengths::of_keys) const;
  /// Computes the gradients as MultiHeadAttention::backward does.
  void backward(const HeadModels<T>& heads, const Saved<T>& saved, const HeadsView<const T>& dy, const HeadsView<T>& dq,
                const HeadsView<T>& dk, const HeadsView<T>& dv, std::vector<Matrix<T>>& dbias,
                std::vector<Matrix<T>>* dextra, GradientReport* report) const;
  /// Throws InvalidArgument unless forward of this attention filled `saved`.
  void check_saved(const Saved<T>& saved) const;

  /// Normalises the queries, or the keys, x (n,d) of the first head and returns their features phi (n,r).
  static Matrix<T> query_features(const HeadModels<T>& heads, const MatrixView<T>& x);
  static Matrix<T> key_features(const HeadModels<T>& heads, const MatrixView<T>& x);

  void share_scratch_memory(const AttentionCore& other) { m_pool = other.m_pool; }
  void free_scratch_memory() const;

 private:
  std::shared_ptr<BatchPool<T>> m_pool;
  std::shared_ptr<const char> m_identity = std::make_shared<const char>();
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/attention/batch/attention_core_definition.hpp"
#endif
