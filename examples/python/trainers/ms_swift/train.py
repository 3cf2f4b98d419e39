"""GRPO with ms-swift on a tiny random model, on the CPU and without any download.

    python train.py

It makes a model, a tokenizer and prompts in a temporary folder, calls ms-swift as the command
`swift rlhf` does, with plugin.py for --external_plugins, and prints the numbers of its log.
"""
import json
import os
import pathlib
import string
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is looked for on the network

import tokenizers
import transformers
from swift import rlhf_main

HERE = pathlib.Path(__file__).parent


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer whose tokens are characters."""
    words = ["<pad>", "<eos>", "<unk>", *string.digits, *string.ascii_letters, *" ,.:?+=\n"]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}")


def make_inputs(folder: pathlib.Path) -> None:
    """Saves the model, its tokenizer and the prompts in the folder."""
    transformers.set_seed(0)
    tokenizer = make_tokenizer()
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None, tie_word_embeddings=False)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with open(folder / "prompts.jsonl", "w", encoding="utf-8") as file:
        for n in range(16):
            message = {"role": "user", "content": f"{n} + {n} ="}
            file.write(json.dumps({"messages": [message]}) + "\n")


def main(*options: str) -> list:
    """Trains for six steps and returns the log. options: more of the command's options."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_inputs(folder)
        rlhf_main([
            "--rlhf_type", "grpo", "--external_plugins", str(HERE / "plugin.py"),
            "--reward_funcs", "parity", "short",
            "--model", str(folder / "model"), "--model_type", "qwen2", "--template", "dummy",
            "--dataset", str(folder / "prompts.jsonl"), "--split_dataset_ratio", "0",
            "--tuner_type", "full", "--torch_dtype", "float32", "--output_dir", str(folder / "out"),
            "--num_generations", "4", "--per_device_train_batch_size", "4",
            "--gradient_accumulation_steps", "2", "--max_completion_length", "12",
            "--max_steps", "6", "--logging_steps", "1", "--learning_rate", "1e-3",
            "--save_strategy", "no", "--report_to", "none", "--dataset_num_proc", "1",
            "--check_model", "false", "--use_hf", "true",
            "--dataloader_num_workers", "0", "--beta", "0", *options])
        [log] = (folder / "out").glob("**/logging.jsonl")
        return [json.loads(line) for line in log.read_text().splitlines()]


if __name__ == "__main__":
    for step in main(*sys.argv[1:]):
        for key, value in step.items():
            if key.startswith(("gdpo/", "clip_ratio/", "rewards/", "loss")):
                print(f"{key}: {value}", end="  ")
        print()
