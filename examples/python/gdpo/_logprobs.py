"""From logits to log-probs and entropies, without an array of the size of the logits."""
from typing import NamedTuple, Optional

import torch

from ._library import check_tensors, refuse_transforms
from ._load import ops
from ._names import our_errors


class TokenLogprobs(NamedTuple):
    """What token_logprobs returns, in nats; masked tokens have 0.

        logp, entropy, logsumexp = gdpo.token_logprobs(logits, tokens, mask=mask)
    """

    logp: torch.Tensor  #: Log-prob of the target, float32.
    entropy: torch.Tensor  #: Entropy of the distribution, float32.
    logsumexp: torch.Tensor  #: log sum e^(logit / temperature), float64, without a gradient.


def token_logprobs(logits: torch.Tensor, targets: torch.Tensor, *,
                   mask: Optional[torch.Tensor] = None,
                   temperature: float = 1.0) -> TokenLogprobs:
    """Log-probs of the targets and entropies, with their gradients by the logits.

        output = gdpo.token_logprobs(logits, tokens, mask=mask, temperature=0.7)
        output.logp.sum().backward()

    logits: (rows, tokens, vocabulary) or (tokens, vocabulary), float64, float32, bfloat16 or
      float16, with stride 1 over the vocabulary. They are read once, and once more by backward,
      which writes one array of their size and type, the gradient.
    targets: (rows, tokens) or (tokens), int32 or int64: what each row of logits predicts, so for
      logits of whole sequences logits[:, :-1] and input_ids[:, 1:].
    mask: as targets; rows of logits with 0 are not read.
    temperature: the logits are divided by it.

    The formulas and their accuracy: include/gdpo/logits/token_logprobs.hpp of the C++ library.
    Errors: ValueError for types, shapes and targets that do not fit.
    """
    check_tensors("gdpo::token_logprobs", {"logits": logits, "targets": targets, "mask": mask})
    refuse_transforms(logits, "gdpo.token_logprobs", "Grad")
    with our_errors():
        return TokenLogprobs(*ops.token_logprobs(logits, targets, mask, temperature))
