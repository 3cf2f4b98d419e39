// What losses of tensors, of logits too, and counts refuse: the tables of tests/refusals.
#include "support/refusals.hpp"

#include <ATen/ATen.h>

#include <gdpo/with/torch/logits.hpp>

namespace {

using refusals::json;

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "complex64") return at::kComplexFloat;
  if (name == "int64") return at::kLong;
  if (name != "float64") throw std::invalid_argument("no dtype " + name);
  return at::kDouble;
}
at::Tensor tensor(const json& a) {
  const at::ScalarType dtype = dtype_of(a.value("dtype", "float64"));
  std::vector<double> values;
  for (const json& x : a.value("values", json::array())) values.push_back(refusals::number(x));
  const auto shape =
      a.value("shape", std::vector<std::int64_t>{static_cast<std::int64_t>(values.size())});
  if (a.contains("values")) return at::tensor(values, at::kDouble).view(shape).to(dtype);
  const double fill = a.contains("fill") ? refusals::number(a["fill"]) : 0;
  return at::full(shape, fill, at::kDouble).to(dtype);
}

/// The tensor of a batch by its name.
at::Tensor& tensor_of(gdpo::TorchBatch& batch, const std::string& name) {
  if (name == "offsets") return batch.offsets;
#define GDPO_X(in_batch, ...) \
  if (name == #in_batch) return batch.in_batch;
  GDPO_TOKEN_ARRAYS(GDPO_X)
  GDPO_TOKEN_MARKS(GDPO_X)
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  throw std::invalid_argument("a batch has no " + name);
}

/// A call of a table with its arrays as tensors. What is written is the library's own.
struct TensorCall {
  json values;
  gdpo::TorchBatch batch;
  gdpo::TorchLogits logits;

  explicit TensorCall(const json& described) : values(described) {
    for (const auto& [name, a] : values.at("arrays").items()) {
      if (a.is_null()) continue;
      (name == "logits"    ? logits.logits
       : name == "targets" ? logits.targets
                           : tensor_of(batch, name)) = tensor(a);
    }
    logits.temperature = refusals::number(values.value("temperature", json(1)));
  }
  bool nothing_written() const { return true; }
};

/// A message in the name of the library. What is wrong with a tensor by itself is said in that of
/// the adapter.
std::string renamed(const std::string& message, const std::string& adapter,
                    const std::string& function) {
  return message.rfind(adapter + ":", 0) == 0 ? function + message.substr(adapter.size()) : message;
}

}  // namespace

TEST_CASE("what a loss of tensors refuses: the table", "[torch]") {
  refusals::check<TensorCall>("policy_loss", "torch", "gdpo::PolicyLoss", [](TensorCall& call) {
    const std::string message = refusals::with_loss(call, [&](const auto& loss) {
      gdpo::torch_loss(loss, call.batch, refusals::counts_of(call));
    });
    return renamed(message, "gdpo::torch_loss", "gdpo::PolicyLoss");
  });
}

TEST_CASE("what counts of tensors refuse: the table", "[torch]") {
  refusals::check<TensorCall>("count", "torch", "gdpo::count", [](TensorCall& call) {
    return message_of([&] { gdpo::count(call.batch); });
  });
}

TEST_CASE("what losses from logits in tensors refuse: the table", "[torch]") {
  const std::string function = "gdpo::policy_loss_from_logits";
  refusals::check<TensorCall>("policy_loss_from_logits", "torch", function, [&](TensorCall& call) {
    call.logits.logits.set_requires_grad(call.logits.logits.is_floating_point());
    const std::string message = refusals::with_loss(call, [&](const auto& loss) {
      gdpo::torch_loss_from_logits(loss, call.logits, call.batch, refusals::counts_of(call));
    });
    return renamed(message, "gdpo::torch_loss_from_logits", function);
  });
}
