#pragma once
/// \file
/// From the logits of a language model to log-probs, entropies and losses, and back to gradients.
///
/// For a row of logits x over V tokens, temperature T and z = x / T:
///
///     logsumexp = log sum_j e^z_j             logp = z_target - logsumexp
///     p_j = e^(z_j - logsumexp)               entropy H = -sum_j p_j log p_j
///     d logp / d x_j = (one_j - p_j) / T      one_j: 1 at the target, else 0
///     d H / d x_j = -p_j (log p_j + H) / T
///
/// Two completions of up to 3 tokens; the gradient is written over the logits:
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
/// **Calls.**
///
///     aligned(logits, ids, mask)          a LogitBatch of whole sequences: row t predicts t + 1
///     count(logits, batch)                what the loss is divided by
///     policy_loss_from_logits(loss, logits, batch, n, dlogits)     loss, metrics, dlogits
///     token_logprobs(logits)              log-probs, entropies and logsumexp of all rows
///     token_logprobs_into(exec, logits, out)                       the same, into your arrays
///     token_logprobs_backward(exec, logits, grad, logsumexp, dlogits)   grad: by logp and entropy
///     logit_rows(exec, shard, out), merge(a, b)                    a vocabulary in shards
///     distillation_from_logits(loss, logits, teacher, batch, n, dlogits)   a teacher's k tokens
///     topk_logits(...), distillation_from_sums(...)                the same in shards
///
/// With an execution tag in front and a LogitsWorkspace at the end, policy_loss_from_logits keeps
/// its memory between steps. dlogits may be the logits themselves. Several micro-batches are
/// counted before the first forward pass, by `count(aligned(mask))`: "One step" in
/// include/gdpo/loss/README.md.
///
/// **Inputs.** Log-probs and entropies are in nats.
///
///     logits        (B, T, V), or packed (N, V)   float, double, bfloat16 or half; stride 1 over
///                                                 V, any strides of rows
///     targets       (B, T) or (N)                 int32 or int64; optional for entropies alone
///     mask          (B, T) or (N)                 any number; 0: row not read, results 0; absent:
///                                                 all rows count
///     offsets       (B + 1)                       of packed sequences
///     temperature                                 1 unless set
///
/// **Cost.** Time and traffic are linear in the unmasked logits:
///
///     token_logprobs                                   one read
///     token_logprobs_backward                          one read, one write
///     policy_loss_from_logits at level::Token          one read, one write in all
///     policy_loss_from_logits at levels of sequences   two reads, one write
///     distillation_from_logits                         one read, one write in all
///
/// Nothing of the size of the logits is allocated: token_logprobs_into, token_logprobs_backward and
/// logit_rows allocate nothing, policy_loss_from_logits nothing after its first call with a
/// workspace. Rows are spread over the threads of the execution tag; the bits do not depend on it.
///
/// **Errors.** gdpo::invalid_input, before any result is written, for shapes, strides and
/// temperatures that do not fit, offsets that decrease, and targets outside the vocabulary in rows
/// that count. Logits never throw: -inf has probability 0, and a NaN or +inf makes the results of
/// its row NaN.
///
/// **Read on.** "From logits" in include/gdpo/loss/README.md. logits/row.hpp: shards.
/// logits/distillation_loss.hpp and logits/distill.hpp: divergences from a teacher's k tokens.
/// examples/logits_step.cpp: a whole step.
#include <gdpo/logits/aligned.hpp>
#include <gdpo/logits/distill.hpp>
#include <gdpo/logits/loss_from_logits.hpp>
#include <gdpo/loss.hpp>
