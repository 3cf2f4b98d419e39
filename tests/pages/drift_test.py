#!/usr/bin/env python3
"""Tests of cmake/drift.py on a made-up trainer: what counts as a change, and what it names."""
import contextlib
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # drift.py lies in the source tree
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("drift", ROOT / "cmake/drift.py")
drift = importlib.util.module_from_spec(spec)
spec.loader.exec_module(drift)

TRAINER = '''
class Trainer:
    @cached
    def loss(self, x, eps=1e-8):
        """Returns the loss."""
        if self.loss_type == "sum":
            value = x.sum()  # over tokens
        elif self.loss_type in ["mean", "median"]:
            if self.level == "token":
                value = x.mean()
            else:
                value = x.mean(0).mean()
        else:
            value = x.max()
        return value / (1 + eps)
'''


class Drift(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        drift.PRESETS, drift.RECORD = self.folder, self.folder / "drift.json"
        self.put(TRAINER)
        (self.folder / "toy.hpp").write_text('constexpr const char* release = "toy 1.0";\n')
        (self.folder / "toy-1.0.dist-info").mkdir()
        of = {name: {"presets": [f"toy::{name}"]} for name in ("sum", "mean", "token")}
        branches = {"loss_type=sum": of["sum"], "loss_type=mean": of["mean"],
                    "level=token": of["token"]}
        drift.RECORD.write_text(json.dumps({"toy": {"package": "toy", "functions": [
            {"file": "toy.py", "function": "Trainer.loss", "presets": ["toy::all"],
             "by": ["loss_type", "level"], "branches": branches}]}}))
        drift.record("toy", self.folder)

    def put(self, text):
        (self.folder / "toy.py").write_text(text)

    def changed(self, *pairs):
        """What is said, and the presets that are named, when the text is changed."""
        text = TRAINER
        for before, after in pairs:
            self.assertIn(before, text)
            text = text.replace(before, after)
        self.put(text)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            presets = drift.check("toy", self.folder)
        return said.getvalue(), presets

    def test_layout_comments_and_docstrings_do_not_count(self):
        said, presets = self.changed(("# over tokens", "# of all"), ("the loss.", "it."),
                                     ("x, eps", "x,\n             eps"))
        self.assertEqual(presets, [])
        self.assertIn("are those of toy 1.0", said)

    def test_a_branch_names_its_own_presets(self):
        self.assertEqual(self.changed(("x.sum()", "2 * x.sum()"))[1], ["toy::sum"])
        self.assertEqual(self.changed(("x.mean()", "x.mean(1)"))[1], ["toy::token"])
        self.assertEqual(self.changed(("x.mean(0)", "x.mean(1)"))[1], ["toy::mean"])

    def test_the_rest_names_those_of_the_function(self):
        for pair in (("x.max()", "x.min()"), ("1 + eps", "2 + eps"), ("1e-8", "1e-6"),
                     ("@cached", "@slow"), ("def loss(self, x", "def loss(self, y")):
            self.assertEqual(self.changed(pair)[1], ["toy::all"], pair)

    def test_what_is_gone_or_new_is_said(self):
        self.assertIn("is gone", self.changed(("def loss", "def policy_loss"))[0])
        said, presets = self.changed(('["mean", "median"]', '["median", "mode"]'))
        self.assertIn("is gone where loss_type=mean", said)
        self.assertIn("has a new branch, where loss_type=mode", said)
        self.assertEqual(presets, ["toy::mean"])
        (self.folder / "toy.py").unlink()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.assertEqual(drift.check("toy", self.folder), ["toy::all"])
        self.assertIn("Trainer.loss is gone", said.getvalue())


if __name__ == "__main__":
    unittest.main()
