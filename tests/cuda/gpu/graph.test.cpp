// SPDX-License-Identifier: MIT
#include "cuda/device_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

/// Calls that are captured in a graph, which a stand-in does not have.
namespace nprf::test::cuda_device_graph {

namespace {

/// What `queue` queues, to be launched again and again.
class Graph {
 public:
  template <class Queue>
  Graph(const Stream& stream, Queue&& queue) {
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capturing");
    queue();
    cuda::check(cudaStreamEndCapture(stream, &m_graph), "capturing");
    cuda::check(cudaGraphInstantiate(&m_ready, m_graph, 0), "making a graph");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    cudaGraphExecDestroy(m_ready);
    cudaGraphDestroy(m_graph);
  }

  void launch(const Stream& stream) const { cuda::check(cudaGraphLaunch(m_ready, stream), "launching a graph"); }

 private:
  cudaGraph_t m_graph = nullptr;
  cudaGraphExec_t m_ready = nullptr;
};

}  // namespace

TEST_CASE("a call that is captured in a graph computes the same, of whatever its arrays hold", "[cuda]") {
  const Attention attention(orf<float>(16, 32, 7), RelativePosition<float>(normal_vector<float>(41, 5)));
  const Stream stream;
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 64}, {.engine = engine}, 16};
    const auto plan = x.plan(attention);
    const DeviceCase<float> on_device(x);
    const Graph graph(stream, [&] { on_device.queue(*plan, stream); });
    INFO(name(engine));
    CHECK(on_device.y(stream).array().isNaN().all());  // captured, not run
    for (int repeat = 0; repeat < 3; ++repeat) {
      graph.launch(stream);
      CHECK(same_bits(on_device.y(stream), x.result(*plan)));
      x.q = normal<float>(300, 16, 40 + static_cast<std::uint64_t>(repeat));
      on_device.set_q(x.q, stream);
    }
  }
}

}  // namespace nprf::test::cuda_device_graph
