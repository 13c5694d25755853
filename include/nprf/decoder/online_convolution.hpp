// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/far_window.hpp"
#include "nprf/decoder/step_bias.hpp"
#include "nprf/decoder/token_ring.hpp"
#include "nprf/decoder/window_kernels.hpp"

namespace nprf {

/// The windows of a model, and their weights.
template <Real T>
struct WindowModel {
  WindowModel() = default;
  /// The weights of a window are 0 from the reach of the bias on. Tokens in the running sums are always at least that
  /// old, also after a rollback, so that no key is summed twice.
  WindowModel(const WindowPlan& of_plan, const FarSignals<T>& of_signals, const StepBias<T>& bias)
      : plan(of_plan), signals(of_signals) {
    for (Index size = 1; size <= plan.largest(); size *= 2)
      if (plan.has(size)) kernels.emplace_back(size, bias, bias.reach());
  }

  const WindowKernels<T>& kernels_of(const Window& window) const {
    return *std::find_if(kernels.begin(), kernels.end(), [&](const auto& each) { return each.size() == window.size; });
  }
  /// Computes the weights that sequences of `tokens` tokens need.
  void reserve(const StepBias<T>& bias, Index tokens) {
    if (!plan.any()) return;
    const Index largest = plan.after(tokens).size;
    for (WindowKernels<T>& each : kernels)
      if (each.size() <= largest) each.reserve(bias, tokens + 2 * each.size());
  }

  WindowPlan plan;
  FarSignals<T> signals{{}, false};
  std::vector<WindowKernels<T>> kernels;  // by size
};

/// The sums over far keys for the queries of a state, by online convolution. There is memory for two windows: the
/// present one, and the next one, which the steps before it compute in equal parts. Until the work on the next window
/// begins, its memory has the window before the present one, so that tokens can be taken back. After a rollback to a
/// window that is no longer in memory, and for a state that was read from a file, a window is computed at once when it
/// is needed.
template <Real T>
class OnlineConvolution {
 public:
  /// Allocates memory for sequences of `tokens` tokens. Throws std::bad_alloc, and then keeps its windows.
  void reserve(const WindowModel<T>& model, Index tokens) {
    if (!model.plan.any() || tokens <= model.plan.begin_of_work(model.plan.after(0), 0)) return;
    const Index size = model.plan.after(tokens).size;
    m_present.reserve(model.signals, size), m_next.reserve(model.signals, size);
    enlarge(m_sums, 4 * size * fft::lane_count<T>);
  }

  /// Completes the window of the last of `tokens` tokens, and computes the part of the next window that is due.
  void advance(const WindowModel<T>& model, const TokenRing<T>& ring, Index tokens, Index rollback,
               Workspace& scratch) {
    if (!model.plan.any() || tokens == 0) return;
    const Window now = model.plan.at(tokens - 1), next = model.plan.after(tokens - 1);
    if (now.size > 0 && m_present.window() != now) std::swap(m_present, m_next);
    if (now.size > 0 && (m_present.window() != now || m_present.done() < units(model, now))) {
      if (m_present.window() != now) m_present.start(now);
      work(model, ring, m_present, units(model, now), scratch);
    }
    const Index begin = model.plan.begin_of_work(next, rollback);
    if (tokens <= begin) return;
    if (m_next.window() != next) m_next.start(next);
    const Index all = units(model, next), steps = next.first - begin,
                due = (all * (tokens - begin) + steps - 1) / steps;
    work(model, ring, m_next, std::min(all, due), scratch);
  }

  /// To be called after advance(): the window that the last of `tokens` tokens uses, or null if it uses none.
  const FarWindow<T>* window(const WindowModel<T>& model, Index tokens) const {
    return model.plan.at(tokens - 1).size > 0 ? &m_present : nullptr;
  }

  /// Must be called after a rollback to `tokens` tokens: drops windows whose sums contain tokens that were taken back.
  void roll_back(Index tokens) {
    for (FarWindow<T>* each : {&m_present, &m_next})
      if (each->window().far_end() > tokens) each->clear();
  }
  void clear() { m_present.clear(), m_next.clear(); }

  /// The number of units of work (far_window.hpp) that are done for the next window.
  Index units_done() const { return m_next.done(); }

  std::size_t bytes() const {
    return m_present.bytes() + m_next.bytes() + static_cast<std::size_t>(m_sums.size()) * sizeof(T);
  }

 private:
  static Index units(const WindowModel<T>& model, const Window& window) {
    return FarWindow<T>::units(model.signals, model.kernels_of(window).blocks(window));
  }
  void work(const WindowModel<T>& model, const TokenRing<T>& ring, FarWindow<T>& window, Index until,
            Workspace& scratch) {
    window.advance(model.kernels_of(window.window()), model.signals, ring, until, m_sums.data(), scratch);
  }
  FarWindow<T> m_present, m_next;
  Vector<T> m_sums;  // the spectra of the signals that are being transformed, summed over blocks
};

}  // namespace nprf
