"""Twenty steps of a real run, ours beside TRL's own trainer from the same seed.

Both sample by themselves, from weights that agree up to the rounding of the steps before. The tests
hold that all completions are the same, so that each step compares the same batch. The optimizer is
SGD, because the first step of Adam makes a whole step of a gradient that is only rounding.
"""
import pytest
import torch
import transformers
import trl
from gdpo.integrations.trl import GRPOTrainer
from transformers import TrainerCallback, set_seed

STEPS = 20
# What the clock says.
NOT_COMPARED = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
RUNS = {
    "dapo": {},
    "grpo with two accumulation steps": dict(
        loss_type="grpo", gradient_accumulation_steps=2, per_device_train_batch_size=8),
    "dapo with two steps on a rollout of four micro-batches": dict(
        gradient_accumulation_steps=2, steps_per_generation=4, per_device_train_batch_size=8),
    "cispo with two steps on a rollout": dict(
        loss_type="cispo", epsilon_high=1.05, num_iterations=2, gradient_accumulation_steps=2,
        per_device_train_batch_size=8),
    "sapo with two steps on a rollout": dict(
        loss_type="sapo", num_iterations=2, sapo_temperature_neg=2.0),
    "vespo with two steps on a rollout": dict(
        # GDPO makes advantages that are only rounding, and their sign chooses the logged weight.
        loss_type="vespo", num_iterations=2, gradient_accumulation_steps=2,
        per_device_train_batch_size=8, multi_objective_aggregation="sum_then_normalize"),
    "dapo with the entropy bonus": dict(entropy_coef=0.1),
    "grpo with adaptive entropy of the tokens of high entropy, and two accumulation steps": dict(
        loss_type="grpo", use_adaptive_entropy=True, entropy_coef=0.05, entropy_coef_delta=0.05,
        entropy_target=2.37, top_entropy_quantile=0.5, gradient_accumulation_steps=2,
        per_device_train_batch_size=8),
    "bnpo with a KL term, GRPO": dict(
        loss_type="bnpo", beta=0.1, num_iterations=2,
        multi_objective_aggregation="sum_then_normalize"),
}


class Gradients(TrainerCallback):
    """Keeps the gradients of every step."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.steps.append(torch.cat([p.grad.reshape(-1).clone() for p in model.parameters()]))


def run(cls, train, folder, settings):
    """The log, the gradients and the completions of a run."""
    set_seed(1)
    kept = Gradients()
    seen = []

    def even(completions, **kwargs):
        seen.extend(completions)
        return train.even(completions)

    # From a folder, because TRL loads the reference model from where the model came.
    train.model().save_pretrained(folder / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    trainer = cls(model=model, processing_class=train.tokenizer(),
                  train_dataset=train.dataset(), reward_funcs=[even, train.short], callbacks=[kept],
                  args=train.configuration(str(folder), max_steps=STEPS, logging_steps=1,
                                           max_grad_norm=1e9, optim="sgd",
                                           learning_rate=0.1, **{"num_iterations": 1, **settings}))
    trainer.train()
    return trainer.state.log_history, kept.steps, seen


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_twenty_steps(helpers, record, train, tmp_path, settings):
    preset = f"trl::{settings.get('loss_type', 'dapo')} (loss), trl::" + (
        "grpo" if "multi_objective_aggregation" in settings else "gdpo")
    if "entropy_coef" in settings:
        preset = preset.replace(" (loss)", " (loss), entropy bonus")
    about = (helpers.TRL, "GRPOTrainer.train, 20 steps", preset)
    ours, our_gradients, our_completions = run(GRPOTrainer, train, tmp_path / "a", settings)
    theirs, gradients, completions = run(trl.GRPOTrainer, train, tmp_path / "b", settings)
    assert our_completions == completions
    assert len(our_gradients) == len(gradients) == STEPS
    for step, (a, b) in enumerate(zip(our_gradients, gradients)):
        record.batch(*about)
        record.close(*about, "gradient", a, b, 1e-5, f"step {step}")
    for a, b in zip(ours, theirs):
        for key, value in b.items():
            if key in NOT_COMPARED or value is a[key] is None:  # None: a std of one number
                continue
            record.close(*about, "metrics", a[key], value, 1e-5, f"{key} of step {b['step']}")
    assert {key for key in ours[0] if key not in theirs[0]} == {
        "gdpo/ratio", "gdpo/approx_kl_k1", "gdpo/approx_kl_k3", "gdpo/zero_advantage_rows",
        "gdpo/findings"}
