#!/usr/bin/env python3
"""Tests of workflows.py: a made-up workflow, a form and versions pass, and each slip is found."""
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True  # workflows.py lies in the source tree
import workflows  # noqa: E402  after the line above

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ACTION = "actions/checkout@" + 40 * "a"
FLOW = f"""
name: Toy
on:
  push:
permissions: {{}}
concurrency:
  group: toy
jobs:
  toy:
    runs-on: ubuntu-24.04
    timeout-minutes: 5
    permissions:
      contents: read
    env:
      CXX: g++
    steps:
      - uses: {ACTION} # v1.2.3
        with:
          persist-credentials: false
      - run: cmake/dev test dev -R groups
      - run: |
          cmake/dev demo
          cmake/dev python trainer verl
"""
FORM = """
name: Toy
description: A toy.
body:
  - type: markdown
    attributes:
      value: Hello.
  - type: input
    id: version
    attributes:
      label: Version
  - type: textarea
    id: wrong
    attributes:
      label: What is wrong
"""
CITATION = """
cff-version: 1.2.0
message: Please.
title: toy
version: 1.2.3
authors:
  - name: toys
"""
VERSION = ("#define GDPO_VERSION_MAJOR 1\n#define GDPO_VERSION_MINOR 2\n"
           "#define GDPO_VERSION_PATCH 3\n")
HOOKS = """
repos:
  - repo: local
    hooks:
      - id: ruff
        additional_dependencies: [ruff==1.2.3]
"""


class Slips(unittest.TestCase):
    def finds(self, complaints_of, text, slips):
        """Nothing in the text, and each of (what stands there, what replaces it, complaint)."""
        self.assertEqual(list(complaints_of(text)), [])
        for before, after, wanted in slips:
            self.assertIn(before, text)
            found = list(complaints_of(text.replace(before, after)))
            self.assertEqual(len(found), 1, (after, found))
            self.assertIn(wanted, found[0])

    def test_workflows(self):
        commands = workflows.Commands(ROOT)
        self.finds(
            lambda text: workflows.workflow_complaints(text, commands, {"CXX"}), FLOW,
            [("cmake/dev demo", "cmake/dev dmeo", "names no command dmeo"),
             ("cmake/dev demo", "cmake/dev lint all", "lint takes no argument"),
             ("cmake/dev demo", "cmake/dev demo && true", "not a plain call"),
             ("cmake/dev demo", "CXX=g++ cmake/dev demo", "not a plain call"),
             ("cmake/dev demo", "cmake/dev test ${{ github.head_ref }}", "not a plain call"),
             ("cmake/dev demo", "sh cmake/dev demo", "not a plain call"),
             ("test dev", "test develop", "given test develop; needed: one of"),
             ("trainer verl", "trainer", "needed: one of"),
             ("trainer verl", "trainer toy", "needed: one of"),
             ("trainer verl", "trainers verl", "given python trainers; needed: one of"),
             ("CXX: g++", "CXXX: g++", "reads CXXX"),
             (ACTION, "actions/checkout@v1", "needed: the commit"),
             (" # v1.2.3", "", "and its version"),
             ("credentials: false", "credentials: true", "persist-credentials: false"),
             ("permissions: {}\n", "", "needed: `permissions: {}`"),
             ("    permissions:\n      contents: read\n", "", "toy: needed: permissions"),
             ("concurrency:\n  group: toy\n", "", "needed: concurrency"),
             ("    timeout-minutes: 5\n", "", "toy: needed: timeout-minutes")])

    def test_other_files(self):
        self.finds(workflows.form_complaints, FORM, [
            ("description: A toy.\n", "", "needed: description"),
            ("type: input", "type: inputs", "given type inputs"),
            ("id: wrong", "id: version", "that no other item has"),
            ("    id: wrong\n", "", "that no other item has"),
            ("label: Version", "value: Version", "needed: a label")])
        self.finds(lambda text: workflows.citation_complaints(text, VERSION), CITATION, [
            ("version: 1.2.3", "version: 1.2.4", "core/version.hpp has 1.2.3"),
            ("title: toy\n", "", "needed: title")])
        self.finds(lambda text: workflows.hook_complaints(text, "ruff==1.2.3\n"), HOOKS, [
            ("ruff==1.2.3", "ruff==1.2.4", "is not the version")])

    def test_calls_on_pages(self):
        page = ["```sh", "cmake/dev demo    # quick", "CXX=g++ cmake/dev test dev -R a | tee log",
                "cmake/dev", "cd gdpo", "```", "cmake/dev no", "```cpp", "cmake/dev no", "```"]
        self.assertEqual(list(workflows.calls(page)), [
            (2, ["demo"]), (3, ["test", "dev", "-R", "a"]), (4, [])])


if __name__ == "__main__":
    if workflows.yaml is None:
        print("THE WORKFLOWS ARE NOT TESTED: no PyYAML in build/python")
    else:
        unittest.main()
