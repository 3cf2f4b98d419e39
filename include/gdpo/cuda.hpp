#pragma once
/// Front door: estimators, losses and logits on a CUDA device, compiled by nvcc. The calls are those of the host with
/// cuda::On{stream} first, pointers of the device in every view, and memory of the caller last:
///
///   advantages_into                 estimators over rewards of the device             cuda/advantage/advantages.hpp, cuda/advantage/groups.hpp
///   loss(on, batch, ...)            any PolicyLoss: loss, gradient and metrics        cuda/loss/policy_loss.hpp
///   token_logprobs_into, _backward  log-probs from logits and their gradient          cuda/logits/token_logprobs.hpp
///   policy_loss_from_logits         both with the loss between, in place if wanted    cuda/logits/policy_loss.hpp
///
///   gdpo::cuda::Scratch scratch{memory, gdpo::cuda::scratch_bytes(loss, batch)};   // once
///   loss(gdpo::cuda::On{stream}, batch, normaliser, gradient, result, scratch);   // result: of the device
///
/// Counts, results and gradients stay on the device; to_host(on, result) waits and copies one (cuda/device/on.hpp).
///
/// No call allocates, waits or leaves its stream, so each can be captured into a CUDA graph; the same data give the same bits on
/// every run and tuning. Mistakes throw gdpo::invalid_input as on the host, launches that fail gdpo::cuda::error.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantage/advantages.hpp>
#include <gdpo/cuda/device/on.hpp>
#include <gdpo/cuda/logits/policy_loss.hpp>
#include <gdpo/cuda/logits/token_logprobs.hpp>
#include <gdpo/cuda/loss/policy_loss.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/loss.hpp>
