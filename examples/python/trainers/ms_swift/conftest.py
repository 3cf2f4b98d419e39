"""What the tests of ms-swift share: stand-ins for a whole trainer, and the module train.py."""
import collections
import importlib.util
import pathlib
import runpy
import types

import pytest
import torch
from swift.rlhf_trainers import grpo_trainer

from gdpo.integrations import ms_swift

HERE = pathlib.Path(__file__).parent
NO_CHOICES = ms_swift.Choices()


class Processes:
    """Stands for accelerate.Accelerator on one process; num_processes only divides."""

    device = torch.device("cpu")
    process_index = 0
    is_main_process = False  # which would write to trackers

    def __init__(self, num_processes):
        self.num_processes = num_processes

    @staticmethod
    def gather_for_metrics(tensor):
        return tensor


def make_trainer(choices=NO_CHOICES, training=True, processes=1, **attributes):
    """A trainer of our class that was never initialized, with ms-swift's defaults as attributes.

    The methods of ms-swift's own class are called on it as super() would. args: attributes of the
    training arguments. attributes: others of the trainer.
    """
    trainer = object.__new__(ms_swift.GRPOTrainer)
    defaults = {
        "loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04,
        "importance_sampling_level": "token", "max_completion_length": 10,
        "advantage_estimator": "grpo", "scale_rewards": "group", "kl_in_reward": False,
        "overlong_filter": False, "top_entropy_quantile": 1.0, "compute_entropy": False,
        "rollout_importance_sampling_mode": None, "rollout_importance_sampling_threshold": 2.0,
        "log_rollout_offpolicy_metrics": False, "disable_rollout_importance_sampling": False,
        "off_policy_sequence_mask_delta": None, "sdar_loss_coef": 0.0, "chord_sft_iterator": None,
        "use_liger_loss": False, "_has_teacher": False, "dynamic_num_samples": False,
        "model_accepts_loss_kwargs": False, "compute_loss_func": None,
        "current_gradient_accumulation_steps": 1, "num_generations": 4, "num_generations_eval": 4,
        "tau_pos": 1.0, "tau_neg": 1.05, "sdar_gate_beta": 5.0, "fipo_gamma": 2**(-1 / 32),
        "fipo_clip_range": 0.2, "fipo_clip_high_only": True, "fipo_safety_threshold": 4.0,
        "reward_func_names": ["a"],
        "reward_weights": torch.ones(1)}
    trainer.__dict__.update(defaults)
    trainer.model = types.SimpleNamespace(training=training)
    trainer.accelerator = Processes(processes)
    trainer.template = types.SimpleNamespace(sequence_parallel_size=1)
    trainer.args = types.SimpleNamespace(
        delta=None, log_entropy=False, steps_per_generation=1, gradient_accumulation_steps=1)
    trainer._logs = {"rewards": collections.defaultdict(list), "entropy": []}
    trainer._metrics = {"train": collections.defaultdict(list),
                        "eval": collections.defaultdict(list)}
    trainer.callbacks = []
    trainer.add_callback = trainer.callbacks.append
    trainer.args.__dict__.update(attributes.pop("args", {}))
    trainer.__dict__.update(attributes)
    trainer.args.top_entropy_quantile = trainer.top_entropy_quantile
    trainer.prepare_gdpo(choices)
    return trainer


def take_metrics(trainer):
    """The values that a stand-in has logged, which it then forgets; ours are left out."""
    log = trainer._metrics["train" if trainer.model.training else "eval"]
    values = {key: float(values[-1]) for key, values in log.items()
              if not key.startswith("gdpo/")}
    log.clear()
    return values


class Helpers:
    """What the tests import."""

    SWIFT = "ms_swift 4.6.0"
    own = grpo_trainer.GRPOTrainer
    trainer = staticmethod(make_trainer)
    metrics = staticmethod(take_metrics)


@pytest.fixture(scope="session")
def helpers():
    return Helpers


@pytest.fixture(scope="session")
def train():
    """The module train.py."""
    spec = importlib.util.spec_from_file_location("gdpo_ms_swift_train", HERE / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def megatron():
    """The module of ms-swift's Megatron trainer, with the packages of stubs.py."""
    runpy.run_path(str(HERE / "stubs.py"))
    from swift.megatron.trainers import grpo_trainer as module
    module.mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: 2,
                                       get_data_parallel_group=lambda **_: None)
    module.gather = lambda tensor, group=None: tensor
    return module
