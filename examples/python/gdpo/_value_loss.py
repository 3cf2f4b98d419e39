"""The loss of a critic as a module."""
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import torch

from ._library import check_tensors, check_type, refuse_hidden_gradient
from ._load import ops
from ._loss_module import LossModule
from ._measured import ValueMetrics
from ._names import VALUE_ARRAYS, in_words_of, raise_ours
from ._policy_loss import check_gradient, dense_arrays
from ._rows import check_floating
from ._settings import line, takes_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import ValueLossSettings
    from ._policy_loss import typed_as


class ValueLossAndMetrics(NamedTuple):
    """What ValueLoss returns."""

    loss: torch.Tensor  #: A scalar, with the gradient of the values.
    metrics: ValueMetrics  #: What the call measured.


@takes_settings("value_loss")
class ValueLoss(LossModule):
    """The loss of a critic over tokens, with its analytic gradient and its metrics in one pass.

        value_loss = gdpo.ValueLoss("verl::value_loss", clip=0.2)
        critic = values.clone().requires_grad_()           # the critic that is trained
        loss, metrics = value_loss(critic, old_values=values, returns=returns, mask=mask,
                                   counts=gdpo.count(mask=mask))
        loss.backward()

    With the value v of a token, its value at the rollout v_old, its return R, and h = 1/2 (`half`)
    or 1,

        L    = h max((v - R)^2, (clip(v, v_old - clip, v_old + clip) - R)^2)
        loss = sum over rows of W_i sum over valid tokens of L

    W_i is the weight of a row: `aggregate` and row_weights. Where the second square is strictly
    larger, the gradient is 0; where both are equal, it is that of the first.

    name: one of `gdpo.value_losses()`, trainers' such as "verl::value_loss". It brings its
      settings; what you give replaces one of them, as a keyword or behind the name, as in
      "verl::value_loss clip=0.2".
    settings: those that `gdpo.loss_settings(name)` lists with their values; each also by its whole
      name, "aggregate.constant" or aggregate_constant. Without a clip (infinity) old_values are
      not read. aggregate is verl's loss_agg_mode.
      {settings}

    The formula stands in include/gdpo/value/value_loss.hpp. Types of numbers are those of
    PolicyLoss, and so is what it runs on.

    Errors: ValueError, as from PolicyLoss.
    """

    _what = "value_loss"

    def __init__(self, name: str = "verl::value_loss",
                 **settings: "Unpack[ValueLossSettings]") -> None:
        super().__init__(line("gdpo.ValueLoss", (name,), settings))

    def forward(self, values: torch.Tensor, *, returns: torch.Tensor, counts: torch.Tensor,
                old_values: Optional[torch.Tensor] = None, mask: Optional[torch.Tensor] = None,
                offsets: Optional[torch.Tensor] = None,
                row_weights: Optional[torch.Tensor] = None,
                group_tokens: Optional[torch.Tensor] = None) -> ValueLossAndMetrics:
        """The loss of one (micro-)batch.

        values: of the critic being trained, before each token: (rows, tokens), (prompts,
          completions, tokens), packed (tokens) with offsets, or a nested tensor of jagged layout.
          All arrays of tokens have its shape. Only it gets a gradient.
        returns: what the values are trained towards, in their unit: those of `token_advantages`.
        counts: those of the whole step, from `count(mask=...)`, as for a PolicyLoss: one count
          serves both.
        old_values: at the rollout; needed, and read, where `clip` is finite.
        mask: not 0 at the tokens of the loss; masked tokens may hold anything, even NaN.
        offsets: (rows + 1), for packed tokens.
        row_weights: (rows) factors, at least 0. group_tokens (rows): from `count_group_tokens`,
          for means over groups.

        Errors: ValueError for types, shapes, devices, counts and settings that do not fit, and for
        returns or old values that require a gradient where the values do not.
        """
        function = "gdpo::ValueLoss"
        check_type(function, "values", values)
        check_floating(function, "values", values.dtype, values.is_floating_point())
        refuse_hidden_gradient(values, "gdpo.ValueLoss")
        check_type(function, "counts", counts)
        arrays = dense_arrays(function, {
            "values": values, "old_values": old_values, "returns": returns, "mask": mask,
            "offsets": offsets, "row_weights": row_weights, "group_tokens": group_tokens})
        check_tensors(function, {"values": arrays["values"], "counts": counts})
        check_gradient(function, values, "values", arrays)
        differentiable = torch.is_grad_enabled() and values.requires_grad
        try:
            with torch.set_grad_enabled(differentiable):
                loss, _, result = ops.value_loss(self.line, counts, differentiable,
                                                 *(arrays[name] for name in VALUE_ARRAYS))
        except (RuntimeError, ValueError) as error:
            raise_ours(error, in_words_of(function))
            raise
        return ValueLossAndMetrics(loss, ValueMetrics(result))

    if TYPE_CHECKING:  # of torch.nn.Module.__call__ type checkers know nothing
        @typed_as(forward)
        def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...
