"""A training run of TRL with the advantages and the loss of this library, on the CPU.

    python train.py [steps]

Nothing is downloaded: the model has two layers of random weights, and the tokenizer knows twelve
words. Completions are to be of even numbers, and nine in ten of them are to be short.
"""
import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback,
                          set_seed)
from trl import GRPOConfig

from gdpo.integrations.trl import GRPOTrainer

WORDS = ["<pad>", "<eos>"] + [str(number) for number in range(10)]


def tokenizer():
    """A tokenizer of words that blanks separate."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>",
                                   padding_side="left")


def model():
    """A language model of two layers, with random weights."""
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0,
        bos_token_id=None, eos_token_id=1))


def even(completions, **kwargs):
    """The share of even numbers in each completion; missing (None) where it is empty."""
    words = [completion.split() for completion in completions]
    return [sum(int(w) % 2 == 0 for w in ws) / len(ws) if ws else None for ws in words]


def short(completions, **kwargs):
    """1 for each completion of at most five words."""
    return [float(len(completion.split()) <= 5) for completion in completions]


def dataset():
    """Prompts of two numbers."""
    return Dataset.from_dict({"prompt": [f"{i % 10} {i % 7}" for i in range(64)]})


def configuration(folder, **settings):
    """Steps of GDPO on eight completions of each prompt, two on each rollout."""
    return GRPOConfig(**{**dict(
        output_dir=folder, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        disable_tqdm=True, logging_steps=2, seed=1, max_steps=40, learning_rate=3e-3,
        per_device_train_batch_size=16, num_generations=8, num_iterations=2,
        max_completion_length=8,
        multi_objective_aggregation="normalize_then_sum"), **settings})


def main(steps):
    torch.set_num_threads(1)  # the model is too small for more
    set_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model(), processing_class=tokenizer(), train_dataset=dataset(),
            reward_funcs=[even, short], args=configuration(folder, max_steps=steps),
            constraints=["short>=0.9 scale=0.3"])
        trainer.remove_callback(PrinterCallback)  # the table below is shorter
        trainer.train()
    names = ["rewards/even/mean", "rewards/short/mean", "gdpo/constraint/short/multiplier",
             "clip_ratio/region_mean", "gdpo/approx_kl_k3", "gdpo/ratio"]
    print("step", *names, sep="  ")
    for line in trainer.state.log_history[:-1]:
        print(f"{line['step']:4d}", *(f"{line[name]:{len(name)}.4f}" for name in names), sep="  ")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
