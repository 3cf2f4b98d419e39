"""A loss as a module of PyTorch."""
import torch

from ._measured import LossLine


class LossModule(LossLine, torch.nn.Module):
    """A loss whose settings are those of a line, as a module."""
