// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

/// The machine under the stand-in: one device, whose blocks run one after another, and whose threads are fibres that
/// take turns at barriers.
///
/// It is stricter than a GPU. A barrier that not all threads of a block, or of a warp, come to ends the program, as
/// does a launch that no device could make. Shared memory is filled with NaN for each block, and what lies beyond the
/// bytes of the launch is poisoned where the program is compiled with AddressSanitizer. Threads run in an order that is
/// asked for, and in the backward one warps run ahead of each other, so that a missing barrier shows as another result.
namespace stand_in {

struct Place {
  unsigned x, y, z;
};

/// What a test may set.
struct Settings {
  enum class Order { forward, backward, shuffled };
  Order order = Order::forward;
  int devices = 1;
  int capability = 90;  // ten times the version
  int multiprocessors = 132;
  std::size_t shared_bytes = 227 * 1024;  // that a block may be allowed
  std::size_t memory_bytes = std::size_t{1} << 40;
};
Settings& settings();

/// What was asked of the device since the program began.
struct Counts {
  long launches = 0, allocations = 0, frees = 0, copies = 0, synchronizations = 0;
};
Counts& counts();

struct Stream {
  int device;
};

// for cuda_runtime.h

const Place& thread();
const Place& block();
const Place& blocks();
const Place& threads();
int lane();

enum class For { block, warp };
void wait(For whom);
bool any_of_block(bool mine);

/// 32 slots of a warp, one a lane, which are the warp's until its next exchange but one.
unsigned char* next_warp_slots();
constexpr std::size_t slot_bytes = 32;

/// What the lanes of a warp have brought, once all of them have.
template <class T>
class Exchange {
 public:
  explicit Exchange(const T& value) : m_slots(next_warp_slots()) {
    static_assert(sizeof(T) <= slot_bytes);
    std::memcpy(m_slots + static_cast<std::size_t>(lane()) * slot_bytes, &value, sizeof(T));
    wait(For::warp);
  }
  T from(int other) const {
    T value;
    std::memcpy(&value, m_slots + static_cast<std::size_t>(other) * slot_bytes, sizeof(T));
    return value;
  }

 private:
  unsigned char* m_slots;
};

int launch(Place grid, Place block, std::size_t shared, const Stream* stream, const void* kernel,
           const std::function<void()>& body);
int allow_shared(const void* kernel, int bytes);

/// By threads and shared memory alone.
inline int most_blocks(int threads, std::size_t shared) {
  return std::min(2048 / threads, static_cast<int>(settings().shared_bytes / std::max<std::size_t>(shared, 1)));
}

}  // namespace stand_in
