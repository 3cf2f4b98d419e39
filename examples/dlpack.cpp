// Advantages of rewards that another library hands over as a DLManagedTensor, which go back to it
// as one: no copy on either side, and each library frees its own memory. An extension module gets
// the first from Python (`tensor.__dlpack__()`) and returns the second. Here the program plays both
// parts. Read quickstart.cpp first.
//
// Build and run, from the root of the repository (dlpack/dlpack.h is in Debian's libdlpack-dev):
//   g++ -std=c++17 -I include examples/dlpack.cpp -o dlpack
//   ./dlpack
#include <cstdio>
#include <gdpo/advantages.hpp>
#include <gdpo/with/dlpack.hpp>

// What the other library has: rewards of eight completions, four for each of two prompts, two
// rewards each. The tensor lies column by column, as a transposed one does.
struct Rewards {
  float values[16] = {1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1};
  std::int64_t shape[2] = {8, 2}, strides[2] = {1, 8};
  DLManagedTensor managed{};
};

DLManagedTensor* rewards_of_another_library() {
  auto* rewards = new Rewards;
  DLTensor& tensor = rewards->managed.dl_tensor;
  tensor.data = rewards->values, tensor.device = {kDLCPU, 0};
  tensor.ndim = 2, tensor.dtype = {kDLFloat, 32, 1};
  tensor.shape = rewards->shape, tensor.strides = rewards->strides;
  rewards->managed.manager_ctx = rewards;
  rewards->managed.deleter = [](DLManagedTensor* self) {
    std::puts("the rewards are freed");
    delete static_cast<Rewards*>(self->manager_ctx);
  };
  return &rewards->managed;
}

// What the extension module does. The rewards are of float or double, and so is the result.
DLManagedTensor* advantages(DLManagedTensor* managed) {
  const gdpo::DlpackTensor rewards(managed);  // calls the deleter at the end of this function
  return gdpo::visit_view<2, const float, const double>(
      rewards,
      [](auto table) {
        return gdpo::to_dlpack_managed<DLManagedTensor>(
            gdpo::advantages(table, gdpo::groups_of(4)));
      },
      "rewards");
}

int main() {
  // The other library reads the result, and calls its deleter in turn.
  const gdpo::DlpackTensor result(advantages(rewards_of_another_library()));
  const auto a = gdpo::view<const float, 1>(result, "advantages");
  for (gdpo::index_t i = 0; i < a.extent[0]; ++i) std::printf("%.3f ", static_cast<double>(a(i)));
  std::puts("");
  // A tensor that does not fit is refused by its name.
  try {
    gdpo::view<const double, 2>(result, "log-probs");
  } catch (const gdpo::invalid_input& e) {
    std::puts(e.what());
  }
}
