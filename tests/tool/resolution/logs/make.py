"""Remakes the rollout logs of this folder by running the trainers' own logging code.

    pip install numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1
    python3.11 make.py [--packages FOLDER] [--open-instruct CHECKOUT]

The functions are cut out of the released packages by name and run on stand-ins for the trainer,
so torch and ray are not needed; README.md says which functions. FOLDER holds the unpacked wheels
(verl/, swift/, trl/); without it pip fetches them. CHECKOUT is a copy of allenai/open-instruct,
of which one file is read. The same versions give the same bytes. data.py holds the rollouts,
cut.py the running of single functions.
"""
import argparse, ast, collections, concurrent.futures, copy, csv, dataclasses, datetime, json
import logging, math, os, pathlib, queue, shutil, subprocess, sys, tempfile, threading, typing
import zipfile, zlib
from types import SimpleNamespace as Thing

import numpy as np
import pandas as pd

sys.dont_write_bytecode = True
from cut import Tensor, find, nothing, run, tensor, trainer_of  # noqa: E402  after the line above
from data import NAMES, STEPS, rows_of  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
WHEELS = ["verl==0.9.1", "ms-swift==4.6.0", "trl==1.16.0"]


def verl(source, out, file, owner):
    space = {"os": os, "json": json, "np": np, "marked_timer": nothing,
             "ThreadPoolExecutor": concurrent.futures.ThreadPoolExecutor}
    trainer = trainer_of(source / "verl/trainer/ppo" / file, owner, [
        "_write_generations", "_dump_generations", "_init_dump_executor",
        "_shutdown_dump_executor", "_log_rollout_data"], space)
    trainer.tokenizer = Thing(batch_decode=lambda texts, **_: list(texts), pad_token_id=0,
                              decode=lambda text, **_: text)
    trainer._init_dump_executor()
    for trainer.global_steps in STEPS:
        rows = rows_of(trainer.global_steps)
        if owner == "RayPPOTrainer":
            rows.sort(key=lambda row: row.k)  # trainer.balance_batch mixes the groups
        truths = [{"ground_truth": row.truth} for row in rows]
        batch = {"prompts": tensor([row.prompt for row in rows], object),
                 "responses": tensor([row.answer for row in rows], object)}
        scores = tensor([[0, row.total] for row in rows])
        if owner == "PPOTrainer":
            batch.update(uid=tensor([str(row.uid) for row in rows], object), rm_scores=scores,
                         reward_model=tensor(truths, object))
            space["tq"] = Thing(kv_batch_get=lambda **_: batch)
            keys = [f"{row.uid}_{row.k}_0" for row in rows]
            trainer._log_rollout_data(Thing(keys=keys, partition_id="train"), {}, str(out))
            continue
        extra = {"score": np.array([float(row.total) for row in rows]),
                 **dict(zip(NAMES, map(np.array, zip(*(row.rewards for row in rows))))),
                 "acc": np.array([row.rewards[0] == 1 for row in rows]),
                 "pred": np.array([row.answer[-9:] for row in rows]),
                 "sample": np.array([row.id for row in rows]),
                 "log_odds": np.array([[-math.inf, 0.0, 0.5, math.inf][row.k] for row in rows])}
        Batch = type("Batch", (Thing,), {"__iter__": lambda self: (
            Thing(non_tensor_batch={"reward_model": truth}) for truth in truths)})
        data = Batch(batch={**batch, "token_level_scores": scores},
                     non_tensor_batch={"request_id": np.array([row.uid.hex for row in rows])})
        trainer._log_rollout_data(data, extra, {}, str(out))
    trainer._shutdown_dump_executor()


def ms_swift(source, out):
    path = source / "swift/rlhf_trainers/grpo_trainer.py"
    space = {"os": os, "json": json, "deque": collections.deque, "deepcopy": copy.deepcopy,
             "defaultdict": collections.defaultdict, "profiling_context": nothing,
             "version": Thing(parse=str), "transformers": Thing(__version__="5"),
             "Queue": queue.Queue, "Thread": threading.Thread, "is_master": lambda: True,
             "logger": logging.getLogger(), "torch": Thing(dtype=Tensor, device=Tensor),
             **vars(typing)}
    run([find(source / "swift/utils/utils.py", "check_json_format")], path, space)
    run([find(source / "swift/utils/io_utils.py", "JsonlWriter")], path, space)
    trainer = trainer_of(path, "GRPOTrainer", ["_prepare_metrics", "_log_rollout", "log"], space)
    trainer.args = Thing(log_completions=True, wandb_log_unique_prompts=False, report_to=[],
                         num_completions_to_print=None, output_dir=str(out), log_entropy=False,
                         generation_batch_size=12)
    trainer.top_entropy_quantile, trainer.model = 1.0, Thing(training=True)
    trainer.accelerator = Thing(is_main_process=True)
    trainer.reward_func_names = NAMES
    trainer._gather_and_flatten = lambda values, **_: values
    trainer._apply_chat_template_to_messages_list = lambda chats: [
        "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat)
        + "<|im_start|>assistant\n" for chat in chats]
    trainer._prepare_metrics()
    space["self"] = trainer
    run([find(path, "GRPOTrainer._compute_advantages.log_rewards_all")], path, space)
    for step in STEPS:
        rows, trainer.state = rows_of(step), Thing(global_step=step)
        trainer._log_rollout([Thing(
            messages=[{"role": "user", "content": row.prompt},
                      {"role": "assistant", "content": row.answer}],
            extra={"solution": row.truth}, rollout_infos={}) for row in rows])
        space["log_rewards_all"](tensor([row.rewards for row in rows]))
        trainer._logs["advantages"].extend(tensor([row.advantage for row in rows]).tolist())
        trainer.log({})
    shutil.copy(out / "completions.jsonl", out / "with_last_log" / "completions.jsonl")
    trainer.jsonl_writer.fpath = str(out / "with_last_log" / "completions.jsonl")
    trainer.log({})  # transformers' Trainer logs once more when the training ends


def trl(source, out):
    path = source / "trl/trainer/grpo_trainer.py"
    space = {"os": os, "math": math, "pd": pd, "deque": collections.deque, "images": None,
             "defaultdict": collections.defaultdict, "is_rich_available": lambda: False,
             "gather_object": list}
    run([find(source / "trl/trainer/utils.py", "strip_images_from_messages")], path, space)
    self = trainer_of(path, "GRPOTrainer", ["_log_completion_extra", "log"], space)
    self.args = Thing(output_dir=str(out), report_to=[], generation_batch_size=12)
    self.model, self.accelerator = Thing(training=True), Thing(is_main_process=True)
    self.log_completions, self.reward_func_names = True, NAMES
    space.update(self=self, args=self.args)

    def statements(method, words):  # those statements of a long method that deal with the logs
        body = find(path, f"GRPOTrainer.{method}").body
        return [node for node in body if any(word in ast.unparse(node) for word in words)]
    run(statements("__init__", ["self._logs =", "self._pending_extra_logs =", "self._metrics ="]),
        path, space)
    for step in STEPS:
        rows, self.state = rows_of(step), Thing(global_step=step)
        self._log_completion_extra("sample", [row.id for row in rows])
        space.update(
            prompts=[[{"role": "user", "content": row.prompt}] for row in rows],
            completions=[[{"role": "assistant", "content": row.answer}] for row in rows],
            rewards_per_func=tensor([row.rewards for row in rows]),
            all_process_advantages=tensor([row.advantage for row in rows]))
        run(statements("_generate_and_score_completions",
                       ["self._logs[", "self._pending_extra_logs.clear"]), path, space)
        self.log({})


def open_instruct(checkout, out):
    path = checkout / "open_instruct/rl_utils.py"
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
    space = {"__name__": "rl_utils", "os": os, "json": json, "dataclass": dataclasses.dataclass,
             "asdict": dataclasses.asdict, "logger": logging.getLogger(), "_json_default": str,
             "_rollout_save_lock": threading.Lock(),
             "utils": Thing(get_git_commit=lambda: "0" * 40),
             "datetime": Thing(datetime=Thing(now=lambda zone: noon), timezone=datetime.timezone)}
    sys.modules["rl_utils"] = Thing(__dict__=space)
    for name in ["RolloutMetadata", "RolloutRecord", "save_rollout_metadata",
                 "_get_request_info_for_sample", "_save_rollouts"]:
        run([find(path, name)], path, space)
    space["save_rollout_metadata"](str(out), "grpo__1__1767225600", "é/model")
    words = lambda text: [zlib.crc32(word.encode()) % 150000 for word in text.split()]
    for step in STEPS:
        rows = rows_of(step)
        each = lambda value: [value] * len(rows)
        calls = Thing(num_calls=each(1), timeouts=each(0), tool_errors=each(""),
                      tool_outputs=[row.answer for row in rows], tool_runtimes=each(0.5),
                      tool_calleds=each(True), tool_call_stats=each([]), rollout_states=each({}))
        batch = Thing(queries=[words(row.prompt) for row in rows], datasets=each(["math"]),
                      ground_truths=[[row.truth] for row in rows],
                      scores=[row.total for row in rows])
        tokens = [words(row.answer) for row in rows]
        result = Thing(responses=tokens, finish_reasons=each("stop"), request_info=calls,
                       logprobs=[[-0.5] * len(ids) for ids in tokens])
        space["_save_rollouts"](str(out), "grpo__1__1767225600", step, batch, result,
                                np.array([row.centered for row in rows]), 4, 0)


def expected(name, columns, values):
    with open(HERE / name, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "prompt_index", "completion_index", *columns])
        writer.writerows([step, row.group, row.k, *values(row)] for step in STEPS
                         for row in rows_of(step))


def fresh(name, *inside):
    shutil.rmtree(HERE / name, ignore_errors=True)
    HERE.joinpath(name, *inside).mkdir(parents=True)
    return HERE / name


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--packages", type=pathlib.Path)
    options.add_argument("--open-instruct", type=pathlib.Path)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.packages:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                            "-d", folder, *WHEELS], check=True)
            for wheel in pathlib.Path(folder).glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(folder)
        source = options.packages or pathlib.Path(folder)
        verl(source, fresh("verl"), "ray_trainer.py", "RayPPOTrainer")
        verl(source, fresh("verl_v1"), "v1/trainer_base.py", "PPOTrainer")
        ms_swift(source, fresh("ms_swift", "with_last_log"))
        trl(source, fresh("trl", "completions"))
    if options.open_instruct:
        open_instruct(options.open_instruct, fresh("open_instruct"))
    else:
        print("open_instruct is left as it is: no --open-instruct CHECKOUT was given.")
    expected("expected.csv", NAMES, lambda row: ["" if r != r else r for r in row.rewards])
    expected("expected_total.csv", ["total"], lambda row: [row.total])


main()
