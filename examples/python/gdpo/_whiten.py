"""A second normalization over the tokens of a mask."""
from typing import TYPE_CHECKING, Any, Optional

import torch

from ._library import ops, our_errors
from ._policy_loss import dense_arrays, in_words_of
from ._running import of_all_ranks
from ._settings import line, takes_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import WhiteningSettings


@takes_settings("whitening")
def whiten(values: torch.Tensor, mask: Optional[torch.Tensor] = None, *, name: str = "tokens",
           group: Any = None, **settings: "Unpack[WhiteningSettings]") -> torch.Tensor:
    """Values minus their mean, divided by their std: over the tokens that the mask selects.

        advantages = gdpo.whiten(advantages, mask, name="verl::masked_whiten")

        out = (x - mean) / sqrt(var + eps)  where the mask is not 0,  exactly 0 elsewhere

    with the variance of samples and eps 1e-8, unless the settings say otherwise:

        mean = sum x / (n + count_eps)
        var  = sum (x - mean)^2 / (n + count_eps) n / (n - ddof)

    Everything is computed in double and rounded once. Masked places may hold anything, even NaN.
    A NaN that counts makes every value that counts NaN. Equal values, and one value alone, give
    exactly 0 unless count_eps is not 0. The places of tokens have no say, so packed tokens have
    the bits of padded ones.

    values: (rows, tokens), (prompts, completions, tokens) or packed (tokens), or a nested tensor of
      jagged layout, whose result is packed. None gets a gradient.
    mask: in the shape of the values, of any type; without it all count.
    name: one of `gdpo.whitenings()`: "tokens", or a trainer's, such as "verl::masked_whiten". It
      brings its settings; what you give replaces one of them, as a keyword or behind the name.
    group: a group of torch.distributed, over whose ranks the tokens are; the moments of all are
      merged, in the order of ranks.
    settings: `gdpo.estimator_settings(name, "whiten")` lists those of a name. With keep_mean=True
      the mean is added again (verl's shift_mean=False).
      {settings}

    Returns a new tensor in the shape of the values, on their device: float64 for float64 and
    integers, else float32. The CPU computes it, which waits for tensors of a device. Errors:
    ValueError for unknown names, and for shapes and settings that do not fit.
    """
    function = "gdpo::whiten"
    text = line(function, (name,), settings)
    arrays = dense_arrays(function, {"values": values.detach() if isinstance(
        values, torch.Tensor) else values, "mask": mask})
    dense, valid = arrays["values"], arrays["mask"]
    numbers = dense.cpu() if dense.is_floating_point() else dense.cpu().double()
    if valid is not None:
        valid = valid.cpu()
        valid = valid if valid.dtype in (torch.bool, torch.uint8) else valid != 0
    if numbers.dim() == 3 and (valid is None or valid.shape == numbers.shape):
        numbers = numbers.flatten(0, 1)
        valid = None if valid is None else valid.flatten(0, 1)

    def measure() -> torch.Tensor:
        with our_errors(in_words_of(function)):
            return ops.token_moments(numbers, valid)

    with torch.no_grad():
        moments = None if group is None else of_all_ranks(measure, group)
        with our_errors(in_words_of(function)):
            out = ops.whiten(numbers, text, valid, moments)
    return out.reshape(dense.shape).to(dense.device)
