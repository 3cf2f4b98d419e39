"""A second normalization over the tokens of a mask."""
from typing import TYPE_CHECKING, Optional, Tuple

import torch

from ._load import ops
from ._names import in_words_of, our_errors
from ._policy_loss import dense_arrays
from ._ranks import over
from ._settings import line, settings_of, takes_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import WhiteningSettings
    from ._ranks import Ranks

_FUNCTION = "gdpo::whiten"


def _counted(values: torch.Tensor, mask: Optional[torch.Tensor]) -> Tuple[
        torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
    """The values as they were given; and the two as the operator takes them, on the CPU."""
    arrays = dense_arrays(_FUNCTION, {"values": values.detach() if isinstance(
        values, torch.Tensor) else values, "mask": mask})
    dense, valid = arrays["values"], arrays["mask"]
    assert dense is not None
    integers = not (dense.is_floating_point() or dense.is_complex())
    numbers = dense.cpu().double() if integers else dense.cpu()
    if valid is not None:
        valid = valid.cpu()
        valid = valid if valid.dtype in (torch.bool, torch.uint8) else valid != 0
    if numbers.dim() == 3 and (valid is None or valid.shape == numbers.shape):
        numbers = numbers.flatten(0, 1)
        valid = None if valid is None else valid.flatten(0, 1)
    return dense, numbers, valid


@takes_settings("whitening")
def whiten(values: torch.Tensor, mask: Optional[torch.Tensor] = None, *, name: str = "tokens",
           ranks: Optional["Ranks"] = None,
           **settings: "Unpack[WhiteningSettings]") -> torch.Tensor:
    """Values minus their mean, divided by their std: over the tokens that the mask selects.

        whitened = gdpo.whiten(returns - values, mask, name="verl::masked_whiten")

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
    ranks: a `gdpo.Ranks`; the tokens are then those of this rank, and mean and variance those of
      all ranks, whose moments are merged.
    settings: `gdpo.estimator_settings(name, "whiten")` lists those of a name. With keep_mean=True
      the mean is added again (verl's shift_mean=False).
      {settings}

    Returns a new tensor in the shape of the values, on their device: float64 for float64 and
    integers, else float32. The CPU computes it, which waits for tensors of a device. Errors:
    ValueError for unknown names, and for shapes and settings that do not fit.
    """
    if ranks is not None:
        over(_FUNCTION, ranks)
    moments = error = found = None
    text = ""
    with torch.no_grad():
        try:
            text = line(_FUNCTION, (name,), settings)
            found = _counted(values, mask)
            if ranks is not None:
                settings_of("whitening", text)
                with our_errors(in_words_of(_FUNCTION)):
                    moments = ops.token_moments(*found[1:])
        except Exception as own:
            if ranks is None:
                raise
            error = own
        if ranks is not None:
            moments = ranks._moments(moments, _FUNCTION, text, error)
        assert found is not None
        dense, numbers, valid = found
        with our_errors(in_words_of(_FUNCTION)):
            out = ops.whiten(numbers, text, valid, moments)
    return out.reshape(dense.shape).to(dense.device)
