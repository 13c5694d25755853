// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "nprf/attention/saved.hpp"

namespace nprf::python {

/// What forward saved in calls whose gradients nobody needs any more: the next calls write to the same memory, since
/// the operating system takes as long to provide new memory as some calls take. For any threads: take() and keep()
/// do not wait for another thread, but allocate or free memory then.
template <Real T>
class SavedMemory {
 public:
  static std::unique_ptr<Saved<T>> take() {
    const std::unique_lock lock(kept().mutex, std::try_to_lock);
    auto& all = kept().all;
    if (!lock || all.empty()) return std::make_unique<Saved<T>>();
    std::unique_ptr<Saved<T>> saved = std::move(all.back());
    all.pop_back();
    return saved;
  }
  static void keep(std::unique_ptr<Saved<T>> saved) noexcept {
    const std::unique_lock lock(kept().mutex, std::try_to_lock);
    try {
      if (lock) kept().all.push_back(std::move(saved));
    } catch (const std::bad_alloc&) {  // then it is freed
    }
  }
  static void free() {
    std::vector<std::unique_ptr<Saved<T>>> all;
    const std::lock_guard lock(kept().mutex);
    all.swap(kept().all);  // destroyed after the lock
  }

 private:
  struct Kept {
    std::mutex mutex;
    std::vector<std::unique_ptr<Saved<T>>> all;
  };
  static Kept& kept() {
    static auto& kept = *new Kept();  // some calls end after the program's statics
    return kept;
  }
};

/// What forward saved, and the attention that it belongs to (null: the caller keeps it). `token` is what a tensor
/// refers to that keeps it alive.
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
