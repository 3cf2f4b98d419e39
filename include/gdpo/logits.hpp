#pragma once
/// \file
/// From the logits of a language model to log-probs, entropies and losses, and back to gradients.
///
/// **What it computes.** For a row of logits x over V tokens, temperature T and z = x / T:
///
///     logsumexp = log sum_j e^z_j             logp = z_target - logsumexp
///     p_j = e^(z_j - logsumexp)               entropy H = -sum_j p_j log p_j
///     d logp / d x_j = (one_j - p_j) / T      one_j: 1 at the target, else 0
///     d H / d x_j = -p_j (log p_j + H) / T
///
/// It gives the values (`token_logprobs`), their gradients (`token_logprobs_backward`), and both
/// with a policy loss of loss.hpp in between (`policy_loss_from_logits`). Nothing of the size of
/// the logits is held beside them, and the gradient may overwrite them. A vocabulary in shards:
/// `logit_rows` on each shard, then `merge`.
///
/// **Example.** Two completions of up to 3 tokens; the gradient is written over the logits.
///
/// <!-- build: door_logits run -->
/// ```cpp
/// const int sequences = 2, width = 4, vocabulary = 5;
/// std::vector<float> model(sequences * width * vocabulary, 0.1f);  // its logits, (B, T, V)
/// const std::vector<int> ids{1, 4, 2, 3, 1, 2, 3, 0};              // token 0 is the prompt
/// const std::vector<unsigned char> completion{0, 1, 1, 1, 0, 1, 1, 0};
/// const std::vector<float> advantages{1, -0.5f};
/// auto table = gdpo::view(model.data(), sequences, width, vocabulary);
/// const auto logits = gdpo::aligned(table, gdpo::view(ids.data(), sequences, width),
///                                   gdpo::view(completion.data(), sequences, width));
/// gdpo::TokenBatch<float> batch;  // old_logp, ref_logp, ... as for the loss; no logp
/// batch.advantages = gdpo::view(advantages);
/// table.extent[1] = width - 1;  // the last row predicts nothing
/// const auto result = gdpo::policy_loss_from_logits(gdpo::dapo_loss, logits, batch,
///                                                   gdpo::count(logits, batch), table);
/// std::printf("loss %.3f, dlogits %.3f %.3f\n", result.loss, table(0, 0, 0), table(0, 0, 4));
/// // prints loss -0.400, dlogits 0.040 -0.160
/// ```
///
/// With an execution tag first and a LogitsWorkspace last, the call keeps its memory between steps.
/// A step of several micro-batches is counted before its first forward pass, from the completion
/// masks: `normaliser += gdpo::count(gdpo::aligned(mask))`.
///
/// **Inputs.** Logits, required: (B, T, V) or packed (N, V), of float, double, bfloat16 or half,
/// with stride 1 over the vocabulary. Targets, int32 or int64: (B, T) or (N); required but for
/// entropies alone. Mask: (B, T) or (N), any scalar; rows with 0 are not read and give 0; absent:
/// all rows count. Temperature: 1 unless set. `aligned` makes targets and mask from whole
/// sequences, where row t predicts token t + 1. Log-probs and entropies are in nats.
///
/// **Cost.** Time and traffic grow with the number of unmasked logits. Forward: one read. Backward:
/// one read and one write. `policy_loss_from_logits` at level::Token: one read and one write for
/// both; at levels of sequences two reads and one write. `token_logprobs_into`,
/// `token_logprobs_backward` and `logit_rows` allocate nothing, `policy_loss_from_logits` nothing
/// with a LogitsWorkspace after the first call. Rows are shared out to the threads of the execution
/// tag; the bits do not depend on it.
///
/// **Errors.** gdpo::invalid_input for shapes, strides and temperatures that do not fit, offsets
/// that decrease, and targets outside the vocabulary in rows that count; no result is written then.
/// Logits never throw: -inf has probability 0, and a NaN or +inf makes the results of its row NaN.
///
/// **Read on.** logits/batch.hpp, aligned.hpp, token_logprobs.hpp, policy_loss.hpp and row.hpp
/// (shards); include/gdpo/loss/README.md; examples/logits_step.cpp, a whole step.
#include <gdpo/logits/aligned.hpp>
#include <gdpo/logits/policy_loss.hpp>
#include <gdpo/loss.hpp>
