"""What the tests of TRL share: stand-ins for a whole trainer, and the module train.py."""
import collections
import importlib.util
import pathlib
import types

import pytest
import torch
import trl

#: The name and the release of the trainer, as the record has them.
TRL = "trl 1.16.0"


class Processes:
    """Stands for accelerate.Accelerator on one process; num_processes only divides."""

    device = torch.device("cpu")
    process_index = 0
    is_main_process = True
    sync_gradients = True

    def __init__(self, num_processes=1):
        self.num_processes = num_processes

    @staticmethod
    def gather(tensor):
        return tensor

    gather_for_metrics = gather

    @staticmethod
    def reduce(tensor, reduction):
        return tensor

    @staticmethod
    def pad_across_processes(tensor, dim, pad_index):
        return tensor


class Model:
    """Stands for a model that no method of a stand-in calls."""

    is_gradient_checkpointing = False

    def __init__(self, training):
        self.training = training


class Helpers:
    """Stand-ins for trainers, which have the methods of their class and the given attributes."""

    TRL = TRL

    @staticmethod
    def trainer(cls, training=True, processes=1, **attributes):
        """An object of a trainer's class that was never initialized, for its own methods."""
        made = object.__new__(cls)
        made.model = Model(training)
        made.accelerator = Processes(processes)
        made.state = types.SimpleNamespace(global_step=0)
        made._metrics = {"train": collections.defaultdict(list),
                         "eval": collections.defaultdict(list)}
        if cls is not trl.GRPOTrainer:
            from gdpo.integrations._constraints import Constraints
            made._gdpo_loss = made._gdpo_estimator = None
            made._gdpo_losses = made._gdpo_scores = True
            made._gdpo_constraints, made._gdpo_told = Constraints([]), []
        made.__dict__.update(attributes)
        return made

    @staticmethod
    def metrics(trainer):
        """The last values of what a stand-in has logged."""
        mode = "train" if trainer.model.training else "eval"
        return {key: values[-1] for key, values in trainer._metrics[mode].items()}


@pytest.fixture(scope="session")
def helpers():
    return Helpers


@pytest.fixture(scope="session")
def train():
    """The module train.py."""
    path = pathlib.Path(__file__).with_name("train.py")
    spec = importlib.util.spec_from_file_location("gdpo_trl_train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
