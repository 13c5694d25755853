// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>

/// The simulated machine behind the stand-in for the CUDA runtime: one device, which runs the blocks of a kernel one
/// after another. The threads of a block are fibres, which switch at barriers.
///
/// It is stricter than a GPU. The program aborts if not all threads of a block, or of a warp, reach a barrier. A launch
/// that no device supports is refused. Shared memory is filled with NaN for each block, and memory beyond the bytes of
/// the launch is poisoned if the program is compiled with AddressSanitizer. The order of the threads can be set. In
/// backward order warps run ahead of each other, so that a missing barrier changes the result.
namespace stand_in {

struct Coordinates {
  unsigned x, y, z;
};

/// Settings that a test may change.
struct Settings {
  enum class Order { forward, backward, shuffled };
  Order order = Order::forward;
  int devices = 1;
  int capability = 90;    // ten times the version
  int compiled_for = 90;  // of kernels, likewise
  int multiprocessors = 132;
  std::size_t shared_bytes = 227 * 1024;  // maximum that a block may be allowed
  std::size_t memory_bytes = std::size_t{1} << 40;
  bool memory_pools = true;
};
Settings& settings();

/// Numbers of operations since the program started.
struct Counts {
  long launches = 0, allocations = 0, frees = 0, copies = 0, synchronizations = 0;
  long stream_allocations = 0, stream_frees = 0;  // from memory pools, not counted above
  long loading_launches = 0;                      // of kernels that had not been loaded
};
Counts& counts();

/// Kernels are loaded when their attributes are queried, and by their first launch.
void load(const void* kernel);
void unload_all_kernels();

struct Stream {
  int device;
};

// used by cuda_runtime.h

const Coordinates& thread();
const Coordinates& block();
const Coordinates& blocks();
const Coordinates& threads();
int lane();

enum class Scope { block, warp };
void wait(Scope scope);
bool any_of_block(bool predicate);

/// 32 slots for this warp, one per lane. They stay valid until the second exchange after this one.
unsigned char* next_warp_slots();
constexpr std::size_t slot_bytes = 48;

/// The values that all lanes of a warp contribute. The constructor waits for all lanes.
template <class T>
class Exchange {
 public:
  explicit Exchange(const T& value) : m_slots(next_warp_slots()) {
    static_assert(sizeof(T) <= slot_bytes && alignof(T) <= 16 && std::is_trivially_destructible_v<T>);
    ::new (slot(lane())) T(value);
    wait(Scope::warp);
  }
  const T& from(int other) const { return *std::launder(reinterpret_cast<const T*>(slot(other))); }

 private:
  unsigned char* slot(int of_lane) const { return m_slots + static_cast<std::size_t>(of_lane) * slot_bytes; }

  unsigned char* m_slots;
};

int launch(Coordinates grid, Coordinates block, std::size_t shared, const Stream* stream, const void* kernel,
           const std::function<void()>& body);
int allow_shared(const void* kernel, int bytes);

/// The occupancy, limited only by threads and shared memory.
inline int max_blocks(int threads, std::size_t shared) {
  return std::min(2048 / threads, static_cast<int>(settings().shared_bytes / std::max<std::size_t>(shared, 1)));
}

}  // namespace stand_in
