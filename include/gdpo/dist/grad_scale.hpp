#pragma once
// The factor of a gradient whose framework averages over ranks or micro-batches.
#include <gdpo/math/check_fields.hpp>

GDPO_BEGIN_NAMESPACE
namespace dist {

/// What runs backward and makes one gradient of those of all ranks and micro-batches, told apart by
/// what it divides by on its own.
///
/// R and A below are the arguments `world` and `accumulation` of grad_scale(). Each sentence ends
/// with the release that was read; include/gdpo/dist/README.md names files and functions.
enum class Engine {
  /// Divides by nothing: a loop that sums gradients itself, or FSDP2 after
  /// set_gradient_divide_factor(1), as torchtitan sets it (torch 2.15.0).
  Sum,
  /// Divides by R: DistributedDataParallel averages over its process group, with or without
  /// no_sync() (torch 2.15.0).
  Ddp,
  /// Divides by R: FullyShardedDataParallel and fully_shard average over all ranks that shard or
  /// replicate (torch 2.15.0).
  Fsdp,
  /// Divides by A and by R: Accelerator.backward divides the loss by its
  /// gradient_accumulation_steps, and DDP or FSDP averages (accelerate 1.15.0).
  Accelerate,
  /// Divides by A and by R: engine.backward divides the loss by gradient_accumulation_steps, and
  /// all ZeRO stages average (deepspeed 0.19.8).
  DeepSpeed,
  /// Divides by R: engine.backward with scale_wrt_gas=False (deepspeed 0.19.8).
  DeepSpeedUnscaled,
  /// Divides by A: the setting "gradient_allreduce_op": "sum", which ZeRO stages 0 to 2 have
  /// (deepspeed 0.19.8).
  DeepSpeedSum,
  /// Divides by A and by R: a Trainer whose loss_is_scaled_for_ga is False, or None without a loss
  /// function or model that takes num_items_in_batch, such as TRL's RLOOTrainer (transformers
  /// 5.23.0).
  HuggingFace,
  /// Divides by R: a Trainer whose own compute_loss has loss_is_scaled_for_ga True, such as TRL's
  /// GRPOTrainer (transformers 5.23.0, trl 1.16.0).
  HuggingFaceScaled,
  /// Divides by nothing in the end: a Trainer with a compute_loss_func and num_items_in_batch
  /// multiplies the loss by R, under average_tokens_across_devices (transformers 5.23.0).
  HuggingFaceItems,
  /// Divides by A and by R: the schedule divides the loss of a loss function that returns two
  /// values, and DistributedDataParallel averages (megatron-core 0.16.1).
  Megatron,
  /// Divides by A and by R: the same for a loss function that returns three values, the second of
  /// them 1 (megatron-core 0.16.1).
  MegatronTokens,
  /// Divides by A and by R: under calculate_per_token_loss, finalize_model_grads divides the summed
  /// gradient by the sum of the second values, each of them 1 (megatron-core 0.16.1).
  MegatronPerToken,
  /// Divides by R: a policy loss of verl, which undoes the schedule of Megatron itself and asks for
  /// dp_size on every backend (verl 0.9.1).
  Verl
};
/// The enumerators of Engine with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Engine) {
  using E = Enumerator<Engine>;
  return std::array{E{"sum", Engine::Sum},
                    E{"ddp", Engine::Ddp},
                    E{"fsdp", Engine::Fsdp},
                    E{"accelerate", Engine::Accelerate},
                    E{"deepspeed", Engine::DeepSpeed},
                    E{"deepspeed_unscaled", Engine::DeepSpeedUnscaled},
                    E{"deepspeed_sum", Engine::DeepSpeedSum},
                    E{"huggingface", Engine::HuggingFace},
                    E{"huggingface_scaled", Engine::HuggingFaceScaled},
                    E{"huggingface_items", Engine::HuggingFaceItems},
                    E{"megatron", Engine::Megatron},
                    E{"megatron_tokens", Engine::MegatronTokens},
                    E{"megatron_per_token", Engine::MegatronPerToken},
                    E{"verl", Engine::Verl}};
}

/// The factor that makes the engine's gradient the plain sum over all ranks and micro-batches,
/// except for roundings.
///
/// A loss call divides by the counts of the whole step (`Normalizer`), so the gradients of the
/// calls only have to be added. An engine that averages divides once more; the factor takes that
/// back. Apply it once: in `aggregate.scale`, to the loss before backward, or to its gradient.
///
///     loss.aggregate.scale = gdpo::dist::grad_scale(world, accumulation, engine);
///
/// With `aggregate.scale` the reported loss is multiplied as well. Losses that the engine adds by
/// itself (router losses of a mixture of experts) are means already and need no factor.
///
/// world: the ranks that the engine averages over, at least 1. They are the data-parallel ranks,
/// which have different rows; ranks of tensor and pipeline parallelism never count. Where the
/// tokens of a row are spread over context-parallel ranks, each with the loss of its own tokens,
/// these count as well, with three exceptions: `Megatron`, `Verl`, and ZeRO stages 0 to 2 of
/// DeepSpeed multiply by their number on their own, so there they do not count.
///
/// accumulation: the number of micro-batches that the engine divides by, at least 1: those of the
/// step on one rank. `Accelerate` and DeepSpeed divide by the number that they were configured with
/// even in a shorter last step of an epoch; give that number.
///
/// In `MegatronTokens` and `MegatronPerToken` the loss function returns 1 as its number of tokens.
/// If it returns true counts, as router losses need under calculate_per_token_loss, the factor of
/// `MegatronPerToken` is instead the sum of all returned counts of the step, and that of
/// `MegatronTokens` has to be multiplied by the count of the call.
///
/// Errors: `invalid_input` for a world or an accumulation below 1, also where the engine does not
/// divide by it, and for a number that is no Engine.
inline double grad_scale(index_t world, index_t accumulation, Engine engine) {
  constexpr const char* function = "gdpo::dist::grad_scale";
  if (world < 1) {
    contract::fail(function, "world", contract::text(world), "a number of ranks of at least 1");
  }
  if (accumulation < 1) {
    contract::fail(function, "accumulation", contract::text(accumulation),
                   "a number of micro-batches of at least 1");
  }
  gdpo::detail::check_fields(function, "engine", engine);
  const auto ranks = static_cast<double>(world), steps = static_cast<double>(accumulation);
  switch (engine) {
    case Engine::Sum:
    case Engine::HuggingFaceItems:
      return 1;
    case Engine::DeepSpeedSum:
      return steps;
    case Engine::Ddp:
    case Engine::Fsdp:
    case Engine::DeepSpeedUnscaled:
    case Engine::HuggingFaceScaled:
    case Engine::Verl:
      return ranks;
    case Engine::Accelerate:
    case Engine::DeepSpeed:
    case Engine::HuggingFace:
    case Engine::Megatron:
    case Engine::MegatronTokens:
    case Engine::MegatronPerToken:
      break;
  }
  return ranks * steps;
}

}  // namespace dist
GDPO_END_NAMESPACE
