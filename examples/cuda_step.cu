// The training step of trainer_step.cpp on a GPU: rewards to advantages, counts over two
// micro-batches, loss, gradient by the logits (written over them), gradient descent. Read
// trainer_step.cpp first; this program prints the same losses, without report and diagnosis.
//
// Everything is enqueued on one stream and no call waits. The whole step can therefore be captured
// into a CUDA graph: the program runs the step once directly, then captures it and replays the
// graph.
//
// Build and run, from the root of the repository, with CUDA 12 or 13:
//   nvcc -std=c++17 -I include examples/cuda_step.cu -o cuda_step
//   ./cuda_step
// The exit status is 77 where there is no GPU.
#include <algorithm>
#include <cstdio>
#include <gdpo/cuda.hpp>
#include <gdpo/presets/textbook.hpp>
#include <initializer_list>

using gdpo::cuda::check;

constexpr int completions = 4, width = 3, vocabulary = 3;
constexpr int of_micro_batch = completions / 2, numbers = completions * width * vocabulary;

/// An array on the device, freed at the end of its scope.
template <class T>
class Array {
 public:
  explicit Array(std::size_t n) { check("cudaMalloc", cudaMalloc(&data_, n * sizeof(T))); }
  Array(std::initializer_list<T> values) : Array(values.size()) {
    check("cudaMemcpy",
          cudaMemcpy(data_, values.begin(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

/// Adds the counts of the two micro-batches: what the loss is divided by belongs to the whole step.
/// With several ranks, an all-reduce of this sum would follow.
__global__ void sum_counts(gdpo::Normalizer* of_micro_batches) {
  of_micro_batches[0] += of_micro_batches[1];
}

/// Gradient descent with learning rate 0.5.
__global__ void descend(float* parameters, const float* gradient) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < numbers) parameters[i] -= 0.5f * gradient[i];
}

static int run() {
  // Inputs of the step, as in trainer_step.cpp. Completion 0 has three tokens; the others have two,
  // and their third token is padding.
  const Array<double> rewards{0.9, 0.3, -0.1, 0.7};
  const Array<float> parameters{1.1f,  -0.2f, 0.3f, -0.4f, 0.8f,  1.6f, 0.1f, 1.4f, 0.2f,  //
                                -0.2f, 1.1f,  0.4f, 0.9f,  -0.3f, 0.1f, 0,    0,    0,     //
                                0.1f,  0.2f,  1.3f, -0.1f, 0.4f,  1.5f, 0,    0,    0,     //
                                1.2f,  -0.4f, 0.1f, -0.3f, 1.5f,  0.2f, 0,    0,    0};
  const Array<int> actions{0, 2, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0};
  const Array<float> old_logp{-0.5f,  -0.61f, -0.92f, -1.2f,  -0.41f, 0,
                              -0.81f, -0.69f, 0,      -0.51f, -1.1f,  0};
  const Array<float> ref_logp{-0.6f,  -0.71f, -0.82f, -1.1f,  -0.51f, 0,
                              -0.91f, -0.79f, 0,      -0.41f, -1,     0};
  const Array<bool> mask{true, true, true, true, true, false, true, true, false, true, true, false};
  const Array<float> logits(numbers);
  const Array<double> advantages(completions);
  // Counts and results, one per micro-batch. sum_counts() replaces the first count by the sum.
  const Array<gdpo::Normalizer> counts(2);
  const Array<gdpo::LossResult> results(2);
  // Pinned host memory, so that copying the results to it does not wait.
  gdpo::LossResult* results_on_host = nullptr;
  check("cudaMallocHost", cudaMallocHost(&results_on_host, 2 * sizeof(gdpo::LossResult)));

  // The estimator: all four completions are one group, and the textbook's NumPy code divides by the
  // population std (divisor n) + 1e-8.
  const auto estimator = gdpo::textbook::grpo_numpy;
  const gdpo::RewardBatch group{gdpo::view(rewards.data(), completions, 1),
                                gdpo::groups_of(completions)};
  // GRPO's loss: clip range 0.2, KL weight beta 0.04, the mean over completions of their means over
  // tokens.
  const auto loss = gdpo::grpo_loss;
  struct MicroBatch {
    gdpo::LogitBatch<float, 3> logits;
    gdpo::View<float, 3> dlogits;  // the memory of `logits`: the gradient is written over them
    gdpo::TokenBatch<float> tokens;
  } micro_batches[2];
  for (int m = 0; m < 2; ++m) {
    const int first = m * of_micro_batch;
    const auto rows = [first](const auto& all) {
      return gdpo::view(all.data() + first * width, of_micro_batch, width);
    };
    auto& [batch, dlogits, tokens] = micro_batches[m];
    dlogits =
        gdpo::view(logits.data() + first * width * vocabulary, of_micro_batch, width, vocabulary);
    batch.logits = dlogits;
    batch.targets = rows(actions);
    batch.mask = rows(mask);
    tokens.old_logp = rows(old_logp);
    tokens.ref_logp = rows(ref_logp);
    tokens.advantages = gdpo::view(advantages.data() + first, of_micro_batch);
  }

  // Scratch memory for the largest call. One piece serves all calls, because calls on one stream
  // run one after the other.
  const std::size_t bytes =
      (std::max)(gdpo::cuda::scratch_bytes(estimator, group),
                 gdpo::cuda::scratch_bytes(micro_batches[0].logits, micro_batches[0].tokens));
  const Array<unsigned char> memory(bytes);
  const gdpo::cuda::Scratch scratch{memory.data(), bytes};
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const gdpo::cuda::On on{stream};
  // The arrays were copied on the default stream, with which a non-blocking stream does not
  // synchronize; wait for them.
  check("arrays", cudaDeviceSynchronize());

  const auto enqueue_step = [&] {
    // Rewards to advantages.
    gdpo::advantages_into(on, group, estimator, gdpo::view(advantages.data(), completions),
                          scratch);
    // Counts of the step: those of both micro-batches, added on the device.
    for (int m = 0; m < 2; ++m) {
      const auto& [batch, dlogits, tokens] = micro_batches[m];
      gdpo::cuda::count_into(on, batch, tokens, counts.data() + m, scratch);
    }
    sum_counts<<<1, 1, 0, stream>>>(counts.data());
    // Forward pass. The model is a table of logits, so its forward pass is a copy.
    check("forward", cudaMemcpyAsync(logits.data(), parameters.data(), numbers * sizeof(float),
                                     cudaMemcpyDeviceToDevice, stream));
    // Log-probs, loss and gradient by the logits of each micro-batch, in one call.
    for (int m = 0; m < 2; ++m) {
      const auto& [batch, dlogits, tokens] = micro_batches[m];
      gdpo::policy_loss_from_logits(on, loss, batch, tokens, counts.data(), dlogits,
                                    results.data() + m, scratch);
    }
    // Gradient descent; then the results go to the host.
    descend<<<1, 64, 0, stream>>>(parameters.data(), logits.data());
    check("step", cudaGetLastError());
    check("results", cudaMemcpyAsync(results_on_host, results.data(), 2 * sizeof(gdpo::LossResult),
                                     cudaMemcpyDeviceToHost, stream));
  };
  // Waits for the step and prints the sum of its losses and its merged metrics.
  const auto print = [&](const char* when) {
    check("step", cudaStreamSynchronize(stream));
    const gdpo::LossMetrics metrics =
        gdpo::merge(results_on_host[0].metrics, results_on_host[1].metrics);
    std::printf("%-6s loss %7.4f  kl %.4f  clipped %.3f  ratio %.3f..%.3f\n", when,
                results_on_host[0].loss + results_on_host[1].loss, metrics.kl.mean(),
                metrics.clip_fraction.mean(), metrics.ratio.min, metrics.ratio.max);
  };

  // The first step runs directly. It also loads the kernels: drivers before CUDA 12.3 cannot load
  // them while a graph is being captured.
  enqueue_step();
  print("before");

  // The second step is captured into a graph, which is then launched.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  check("capture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue_step();
  check("capture", cudaStreamEndCapture(stream, &graph));
  check("capture", cudaGraphInstantiate(&step, graph, 0));
  check("step", cudaGraphLaunch(step, stream));
  print("after");

  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaFreeHost(results_on_host);
  return 0;
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device: nothing is run");
    return 77;
  }
  try {
    return run();
  } catch (const std::exception& e) {  // gdpo::cuda::error or gdpo::invalid_input
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
