// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "nprf/attention/saved.hpp"

namespace nprf::python {

/// What forward saved in calls whose gradients nobody needs any more: the next calls write to the same memory, since
/// the operating system takes as long to provide new memory as some calls take. Only for threads that hold the GIL.
template <Real T>
class SavedMemory {
 public:
  static std::unique_ptr<Saved<T>> take() {
    if (kept().empty()) return std::make_unique<Saved<T>>();
    std::unique_ptr<Saved<T>> saved = std::move(kept().back());
    kept().pop_back();
    return saved;
  }
  static void keep(std::unique_ptr<Saved<T>> saved) noexcept {
    try {
      kept().push_back(std::move(saved));
    } catch (const std::bad_alloc&) {  // then it is freed
    }
  }
  static void free() { kept().clear(); }

 private:
  static std::vector<std::unique_ptr<Saved<T>>>& kept() {
    static auto& all = *new std::vector<std::unique_ptr<Saved<T>>>();  // some calls end after the program's statics
    return all;
  }
};

/// What forward saved, and the attention that it belongs to. `token` is what a tensor refers to that keeps it alive.
template <Real T>
struct SavedCall {
  std::unique_ptr<Saved<T>> saved = SavedMemory<T>::take();
  std::shared_ptr<const AnyAttention<T>> attention;
  std::uint8_t token = 0;

  SavedCall() = default;
  SavedCall(const SavedCall&) = delete;
  SavedCall& operator=(const SavedCall&) = delete;
  ~SavedCall() { SavedMemory<T>::keep(std::move(saved)); }
};

}  // namespace nprf::python
