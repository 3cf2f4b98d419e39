"""The losses that a trainer's configuration means: modules, or without PyTorch those for NumPy."""
from typing import TYPE_CHECKING

from ._load import torch

if TYPE_CHECKING or torch is not None:
    from ._contrastive import ContrastiveLoss
    from ._policy_loss import PolicyLoss
else:
    from .numpy import ContrastiveLoss, PolicyLoss

__all__ = ["ContrastiveLoss", "PolicyLoss"]
