#pragma once
/// Front door: from the logits of a language model to log-probs, entropies and losses, and back to gradients by the logits: one
/// read a pass, nothing of the size of the logits in memory beside them. Needs no Eigen.
///
///   token_logprobs            log-prob of each target, entropy and logsumexp
///   token_logprobs_backward   dlogits, in place if wanted
///   policy_loss_from_logits   both with a policy loss in between
///   aligned                   from logits and ids of whole sequences: row t predicts token t + 1
///   logit_rows, merge         a vocabulary in shards
#include <gdpo/logits/aligned.hpp>
#include <gdpo/logits/policy_loss.hpp>
#include <gdpo/loss.hpp>
