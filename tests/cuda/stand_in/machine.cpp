// SPDX-License-Identifier: MIT
#include "cuda/stand_in/machine.hpp"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "cuda/stand_in/cuda_runtime.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define STAND_IN_ASAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define STAND_IN_ASAN
#endif
#ifdef STAND_IN_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// the shared memory of all blocks; device code declares it (device/launch.cuh)
namespace nprf::cuda {
constexpr std::size_t max_shared = 256 * 1024;
extern unsigned char shared_bytes[];
alignas(128) unsigned char shared_bytes[max_shared];
}  // namespace nprf::cuda

namespace stand_in {

namespace {

using nprf::cuda::max_shared;
using nprf::cuda::shared_bytes;

constexpr int warp = 32, max_threads = 1024;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "stand-in for CUDA: %s\n", what);
  std::abort();
}

// a stack, as described to AddressSanitizer
struct Stack {
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* fake = nullptr;
};

// every switch calls leave() on the old stack, and then arrive() on the new one
void leave([[maybe_unused]] Stack& from, [[maybe_unused]] const Stack& to) {
#ifdef STAND_IN_ASAN
  __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.size);
#endif
}
void arrive([[maybe_unused]] const Stack& on, [[maybe_unused]] Stack& from) {
#ifdef STAND_IN_ASAN
  __sanitizer_finish_switch_fiber(on.fake, &from.bottom, &from.size);
#endif
}

enum class State { runs, at_block, at_warp, done };

// A stack on which threads run one after another. If a thread waits, the fibre belongs to it until it has finished, and
// another one continues.
struct Fibre {
  Stack stack;
  boost::context::fiber context;
};

struct Machine {
  Fibre scheduler;  // continues when no thread can
  std::vector<std::unique_ptr<Fibre>> fibres;
  std::vector<Fibre*> idle;
  Fibre *fibre = &scheduler, *last = nullptr;  // the one that runs, and the one that ran before
  std::vector<int> order;                      // thread indices, in the order in which they run
  const std::function<void()>* body = nullptr;
  int running = 0;             // the index of the running thread
  int started = 0, tried = 0;  // of the threads in order: those that have started, and continued since a release
  State states[max_threads];
  Fibre* waiting[max_threads];
  Coordinates thread{}, block{}, blocks{}, block_size{};
  std::vector<Coordinates> threads;  // of a block
  alignas(16) unsigned char slots[max_threads / warp][2][warp * slot_bytes];
  bool second_slots[max_threads];  // which of a warp's two sets of slots is in use; they alternate
  bool predicates[max_threads];
  std::map<const void*, std::size_t> allowed;  // maximum shared memory of kernels
  std::set<const void*> loaded;                // kernels
};

[[gnu::always_inline]] inline Machine& machine() {
  static Machine& one = *new Machine;  // never destroyed, since that would unwind the fibres
  return one;
}

void become(int t) {
  Machine& m = machine();
  m.running = t;
  m.thread = m.threads[static_cast<std::size_t>(t)];
}

void arrive_from_last(boost::context::fiber last) {
  Machine& m = machine();
  m.last->context = std::move(last);
  arrive(m.fibre->stack, m.last->stack);
}
// returns when this fibre continues
void continue_with(Fibre& to) {
  Machine& m = machine();
  m.last = std::exchange(m.fibre, &to);
  leave(m.last->stack, to.stack);
  arrive_from_last(std::move(to.context).resume());
}

[[noreturn]] void run_threads() {
  Machine& m = machine();
  Fibre& self = *m.fibre;
  for (;;) {
    while (m.started < static_cast<int>(m.order.size())) {
      const int t = m.order[static_cast<std::size_t>(m.started++)];
      become(t);
      m.states[t] = State::runs;
      (*m.body)();
      m.states[m.running] = State::done;
    }
    m.idle.push_back(&self);
    continue_with(m.scheduler);
  }
}

Fibre& idle_fibre() {
  namespace context = boost::context;
  Machine& m = machine();
  if (m.idle.empty()) {
    Fibre& fibre = *m.fibres.emplace_back(std::make_unique<Fibre>());
    context::protected_fixedsize_stack stacks(256 * 1024);
    const context::stack_context stack = stacks.allocate();
    fibre.stack.bottom = static_cast<unsigned char*>(stack.sp) - stack.size;
    fibre.stack.size = stack.size;
    fibre.context = context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack), stacks,
                                   [](context::fiber&& last) -> context::fiber {
                                     arrive_from_last(std::move(last));
                                     run_threads();
                                   });
    return fibre;
  }
  Fibre& fibre = *m.idle.back();
  m.idle.pop_back();
  return fibre;
}

// releases the threads of each barrier that all threads have reached; false if there is none
bool release() {
  Machine& m = machine();
  const int count = static_cast<int>(m.order.size());
  const auto all = [&](int begin, int end, State s) {
    if (!std::all_of(m.states + begin, m.states + end, [s](State state) { return state == s; })) return false;
    std::fill(m.states + begin, m.states + end, State::runs);
    return true;
  };
  bool released = all(0, count, State::at_block);
  if (settings().order == Settings::Order::backward) {
    // only the last warp that can continue does so, ahead of the others
    for (int begin = (count - 1) / warp * warp; begin >= 0 && !released; begin -= warp)
      released = all(begin, std::min(begin + warp, count), State::at_warp);
    return released;
  }
  for (int begin = 0; begin < count; begin += warp)
    released |= all(begin, std::min(begin + warp, count), State::at_warp);
  return released;
}

// where the next thread starts, or else the next that can continue; null: there is none
Fibre* next_fibre() {
  Machine& m = machine();
  const int count = static_cast<int>(m.order.size());
  if (m.started < count) return &idle_fibre();
  while (m.tried < count) {
    const int t = m.order[static_cast<std::size_t>(m.tried++)];
    if (m.states[t] == State::runs) {
      become(t);
      return m.waiting[t];
    }
  }
  return nullptr;
}

void run_block() {
  Machine& m = machine();
  const int count = static_cast<int>(m.order.size());
  m.started = 0, m.tried = count;
  std::fill(m.second_slots, m.second_slots + count, false);
  for (;;) {
    while (Fibre* const next = next_fibre()) continue_with(*next);
    if (std::all_of(m.states, m.states + count, [](State s) { return s == State::done; })) return;
    if (!release()) fail("some threads wait at a barrier that the others do not come to");
    m.tried = 0;
  }
}

void set_order(int count) {
  static std::mt19937 shuffle(1);
  std::vector<int>& order = machine().order;
  order.resize(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (settings().order == Settings::Order::backward) std::reverse(order.begin(), order.end());
  if (settings().order == Settings::Order::shuffled) std::shuffle(order.begin(), order.end(), shuffle);
}

std::map<void*, std::size_t>& allocations() {
  static std::map<void*, std::size_t> all;
  return all;
}

std::size_t allocated() {
  std::size_t bytes = 0;
  for (const auto& [pointer, size] : allocations()) bytes += size;
  return bytes;
}

cudaError_t last_error = cudaSuccess;
int current = 0;  // device

cudaError_t allocate_bytes(void** pointer, std::size_t bytes) {
  if (bytes > settings().memory_bytes - std::min(settings().memory_bytes, allocated()))
    return cudaErrorMemoryAllocation;
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*pointer, 0xff, bytes);
#ifdef STAND_IN_ASAN
  ASAN_POISON_MEMORY_REGION(static_cast<unsigned char*>(*pointer) + bytes, (bytes + 255) / 256 * 256 - bytes);
#endif
  allocations()[*pointer] = bytes;
  return cudaSuccess;
}
cudaError_t free_bytes(void* pointer) {
  const auto at = allocations().find(pointer);
  if (at == allocations().end()) return cudaErrorInvalidValue;
#ifdef STAND_IN_ASAN
  ASAN_UNPOISON_MEMORY_REGION(pointer, (at->second + 255) / 256 * 256);
#endif
  allocations().erase(at);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t with_device(cudaError_t error = cudaSuccess) {
  return returned(settings().devices == 0 ? cudaErrorNoDevice : error);
}

}  // namespace

Settings& settings() {
  static Settings one;
  return one;
}
Counts& counts() {
  static Counts one;
  return one;
}

const Coordinates& thread() { return machine().thread; }
const Coordinates& block() { return machine().block; }
const Coordinates& blocks() { return machine().blocks; }
const Coordinates& threads() { return machine().block_size; }
int lane() { return machine().running % warp; }
unsigned char* next_warp_slots() {
  Machine& m = machine();
  bool& second_slots = m.second_slots[m.running];
  second_slots = !second_slots;
  return m.slots[m.running / warp][second_slots];
}

void wait(Scope scope) {
  Machine& m = machine();
  m.states[m.running] = scope == Scope::block ? State::at_block : State::at_warp;
  m.waiting[m.running] = m.fibre;
  Fibre* const next = next_fibre();
  continue_with(next ? *next : m.scheduler);
}

bool any_of_block(bool predicate) {
  Machine& m = machine();
  m.predicates[m.running] = predicate;
  wait(Scope::block);
  const bool any = std::any_of(m.predicates, m.predicates + m.block_size.x * m.block_size.y * m.block_size.z,
                               [](bool b) { return b; });
  wait(Scope::block);
  return any;
}

void load(const void* kernel) { machine().loaded.insert(kernel); }
void unload_all_kernels() { machine().loaded.clear(); }

int allow_shared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<std::size_t>(bytes) > settings().shared_bytes) return returned(cudaErrorInvalidValue);
  machine().allowed[kernel] = static_cast<std::size_t>(bytes);
  return with_device();
}

int launch(Coordinates grid, Coordinates block, std::size_t shared, const Stream* stream, const void* kernel,
           const std::function<void()>& body) {
  if (settings().devices == 0) return with_device();
  if (stream && stream->device != current) return returned(cudaErrorInvalidResourceHandle);
  Machine& m = machine();
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const auto allowed = m.allowed.find(kernel);
  const std::size_t limit = allowed == m.allowed.end() ? 48 * 1024 : std::max<std::size_t>(allowed->second, 48 * 1024);
  if (threads == 0 || threads > max_threads || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff ||
      grid.y > 65535 || grid.z > 65535 || block.z > 64)
    return returned(cudaErrorInvalidConfiguration);
  if (shared > limit) return returned(cudaErrorInvalidValue);
  ++counts().launches;
  if (m.loaded.insert(kernel).second) ++counts().loading_launches;
  m.body = &body;
  m.blocks = grid;
  m.block_size = block;
  m.threads.clear();
  for (Coordinates t{}; t.z < block.z; ++t.z)
    for (t.y = 0; t.y < block.y; ++t.y)
      for (t.x = 0; t.x < block.x; ++t.x) m.threads.push_back(t);
#ifdef STAND_IN_ASAN
  ASAN_POISON_MEMORY_REGION(shared_bytes + shared, max_shared - shared);
#endif
  for (m.block.z = 0; m.block.z < grid.z; ++m.block.z)
    for (m.block.y = 0; m.block.y < grid.y; ++m.block.y)
      for (m.block.x = 0; m.block.x < grid.x; ++m.block.x) {
        std::memset(shared_bytes, 0xff, shared);  // NaN
        set_order(static_cast<int>(threads));
        run_block();
      }
#ifdef STAND_IN_ASAN
  ASAN_UNPOISON_MEMORY_REGION(shared_bytes, max_shared);
#endif
  return cudaSuccess;
}

}  // namespace stand_in

using namespace stand_in;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (settings().devices > 0) *count = settings().devices;
  return with_device();
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return with_device();
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= settings().devices) return with_device(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= settings().devices) return with_device(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = settings().multiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = settings().capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = settings().capability % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(settings().shared_bytes); break;
    case cudaDevAttrMemoryPoolsSupported: *value = settings().memory_pools; break;
  }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (settings().devices == 0) return with_device();
  const cudaError_t status = allocate_bytes(pointer, bytes);
  counts().allocations += status == cudaSuccess;
  return returned(status);
}
cudaError_t cudaFree(void* pointer) {
  if (!pointer) return with_device();
  const cudaError_t status = free_bytes(pointer);
  counts().frees += status == cudaSuccess;
  return with_device(status);
}
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
  if (settings().devices == 0) return with_device();
  if (stream && stream->device != current) return returned(cudaErrorInvalidResourceHandle);
  const cudaError_t status = allocate_bytes(pointer, bytes);
  counts().stream_allocations += status == cudaSuccess;
  return returned(status);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  const cudaError_t status = free_bytes(pointer);
  counts().stream_frees += status == cudaSuccess;
  return with_device(status);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  ++counts().copies;
  if (settings().devices > 0) std::memcpy(to, from, bytes);
  return with_device();
}
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t) {
  if (settings().devices > 0) std::memset(to, byte, bytes);
  return with_device();
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  if (settings().devices > 0) *stream = new Stream{current};
  return with_device();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return with_device();
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++counts().synchronizations;
  return with_device();
}
