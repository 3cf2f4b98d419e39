"""Drives the playground in headless Chromium, and compares its numbers with the native library's.

    playground_test.py CHROMIUM PAGE PROGRAM FOLDER

PROGRAM is the page's C++ source as a program of this machine. Pictures of the page go to FOLDER.
"""
import contextlib
import json
import pathlib
import random
import subprocess
import sys
import time
import unittest

from browser import Page

CHROMIUM, PAGE, PROGRAM, FOLDER = sys.argv[1:]
SEED = 20260131
WIDTHS = (1200, 360)


def native(requests: list) -> list:
    """The answers of the library on this machine."""
    text = "".join(f"{request}\n.\n" for request in requests)
    out = subprocess.run([PROGRAM], input=text, capture_output=True, text=True, check=True).stdout
    return [answer.removeprefix("\n") for answer in out.split(".\n")][:len(requests)]


def requests_of_advantages(estimators: list, draw: random.Random) -> list:
    """Every estimator, on groups of all sizes with missing, equal, tied, huge and tiny rewards."""
    values = ["0", "1", "0.5", "-0.25", "nan", "inf", "1e30", "1e-30", "100000.1", "0.1"]
    requests = []
    for name in estimators:
        for group, prompts, rewards in ((8, 1, 2), (4, 2, 3), (2, 4, 1), (1, 3, 2)):
            pool = draw.sample(values, draw.randint(2, len(values)))
            table = [draw.choice(pool) for _ in range(group * prompts * rewards)]
            weights = [draw.choice(["1", "0.5", "0", "2"]) for _ in range(rewards)]
            gate = "gates 0 1 0.5\n" if rewards > 1 and draw.random() < 0.3 else ""
            tokens = [str(draw.randint(1, 9)) for _ in range(group * prompts)]
            requests.append(f"advantages {name}\nrewards {rewards} {' '.join(table)}\n"
                            f"group {group}\nweights {' '.join(weights)}\n{gate}"
                            f"tokens {' '.join(tokens)}")
    return requests


def requests_of_losses(losses: list, draw: random.Random) -> list:
    """Every loss at ratios inside and outside of the clip, for advantages of both signs."""
    requests = []
    for name in losses:
        for advantage in (1, -1.5, 0):
            ratios = " ".join(repr(draw.uniform(-1.5, 1.5)) for _ in range(5))
            requests.append(f"loss {name}\nadvantage {advantage}\nkl {draw.uniform(-1, 1)!r}\n"
                            f"log_ratios 0 {ratios}")
    return requests


class Playground(unittest.TestCase):
    """One page for all tests, in the order of their names' numbers."""

    @classmethod
    def setUpClass(cls) -> None:
        cls._open = contextlib.ExitStack()
        cls.page = cls._open.enter_context(Page(CHROMIUM, pathlib.Path(PAGE).as_uri()))
        end = time.monotonic() + 60
        while cls.page.run("document.body && document.body.dataset.ready") != "yes":
            if time.monotonic() > end:
                raise RuntimeError(f"the page is not ready after a minute: {cls.page.errors}")
            time.sleep(0.05)
        cls.draw = random.Random(SEED)

    @classmethod
    def tearDownClass(cls) -> None:
        cls._open.close()

    def tearDown(self) -> None:
        self.assertEqual(self.page.errors, [])

    def answers(self, requests: list) -> list:
        return self.page.run(f"{json.dumps(requests)}.map(request => library(request))")

    def shown(self, estimator: str) -> list:
        """The advantages that the page shows for an estimator."""
        return self.page.run(
            "[...document.querySelectorAll('#results table')]"
            f".filter(table => table.caption.textContent === {estimator!r})"
            ".flatMap(table => [...table.querySelectorAll('.value')])"
            ".map(cell => cell.textContent)")

    def expect_shown(self, estimator: str, request: str) -> None:
        """What the page shows is the native library's, rounded to three digits."""
        exact = [float(word) for word in native([request])[0].split()]
        shown = [float(text.replace("\u2212", "-")) for text in self.shown(estimator)]
        self.assertEqual(len(shown), len(exact))
        for a, b in zip(shown, exact):
            self.assertAlmostEqual(a, b, delta=5.1e-4)

    def test_1_the_same_bits(self) -> None:
        """17 digits of every answer: the library in the browser and a build without FMA agree."""
        names = {kind: native([kind])[0].split() for kind in ("estimators", "losses")}
        self.assertGreater(len(names["estimators"]), 30)
        self.assertGreater(len(names["losses"]), 20)
        requests = (["estimators", "losses", "nothing", "advantages gdpoo\nrewards 1 0\ngroup 1",
                     "advantages gdpo\nrewards 1 x\ngroup 1", "advantages gdpo\nrewards 1 0 1"]
                    + requests_of_advantages(names["estimators"], self.draw)
                    + requests_of_losses(names["losses"], self.draw))
        refused = 0
        for request, here, there in zip(requests, native(requests), self.answers(requests)):
            refused += here.startswith("error ")
            # A NaN has no sign that is promised.
            self.assertEqual(there.strip().replace("-nan", "nan"),
                             here.strip().replace("-nan", "nan"), request)
        self.assertEqual(refused, 4, "requests that are refused; all others have numbers")

    def test_2_the_collapse(self) -> None:
        """The first screen: five completions tie under GRPO, and none under GDPO."""
        self.page.run("byId('tab-advantages').click(), byId('collapse').click()")
        rewards = "2 1 0 0 1 0 1 0 1 0 1 0 0 0 0 0 0"
        for estimator in ("grpo", "dr_grpo", "gdpo"):
            self.expect_shown(estimator, f"advantages {estimator}\nrewards {rewards}\ngroup 8")
        ties = ("[...document.querySelectorAll('#results table')].map(table => "
                "[...table.querySelectorAll('.tie')].map(cell => cell.textContent).join(''))")
        self.assertEqual(self.page.run(ties), ["aaaaa", "aaaaa", ""])

    def test_3_three_observations(self) -> None:
        """Equal rewards give 0; a shift changes nothing; the spread matters without a std only."""
        three = ("grpo", "dr_grpo", "gdpo")
        click = "byId({!r}).click()".format
        self.page.run(click("collapse"))
        before = {name: self.shown(name) for name in three}
        self.page.run(click("shift"))
        self.assertEqual({name: self.shown(name) for name in three}, before)
        self.page.run(click("shrink"))
        self.assertEqual(self.shown("grpo"), before["grpo"])
        self.assertEqual(self.shown("gdpo"), before["gdpo"])
        halves = [float(text.replace("\u2212", "-")) / 2 for text in before["dr_grpo"]]
        for text, half in zip(self.shown("dr_grpo"), halves):
            self.assertAlmostEqual(float(text.replace("\u2212", "-")), half, delta=1.1e-3)
        self.page.run(click("equal"))
        for name in three:
            self.assertEqual(self.shown(name), ["0.000"] * 8)
        self.page.run(click("collapse") + "," + click("missing"))
        self.expect_shown("gdpo", "advantages gdpo\n"
                          "rewards 2 nan 0 0 1 0 1 0 1 0 1 0 0 0 0 0 0\ngroup 8")

    def test_4_the_keyboard(self) -> None:
        """A slider moves with the arrow keys, and numbers follow; tabs change with them, too."""
        self.page.run("byId('tab-advantages').click(), byId('collapse').click()")
        self.page.run("document.querySelector('#table input[type=range]').focus()")
        self.page.press("ArrowRight")
        self.expect_shown("gdpo", "advantages gdpo\n"
                          "rewards 2 1.05 0 0 1 0 1 0 1 0 1 0 0 0 0 0 0\ngroup 8")
        self.page.press("Tab")  # to the number
        self.assertEqual(self.page.run("document.activeElement.type"), "number")
        self.page.run("byId('tab-advantages').focus()")
        self.page.press("ArrowRight")
        self.assertFalse(self.page.run("byId('loss').hidden"))
        self.assertTrue(self.page.run("byId('advantages').hidden"))
        self.assertEqual(self.page.run("document.activeElement.id"), "tab-loss")
        # Whatever can be operated can be reached by Tab, and has a name.
        unnamed = self.page.run(
            "[...document.querySelectorAll('input, select, button')].filter(element => "
            "!(element.ariaLabel || element.labels?.length || element.textContent.trim()))"
            ".map(element => element.outerHTML)")
        self.assertEqual(unnamed, [])

    def test_5_sizes(self) -> None:
        """Completions, prompts, rewards, weights and gates reach the library."""
        change = "byId({!r}).value = {}, byId({!r}).dispatchEvent(new Event('change'))".format
        self.page.run("byId('tab-advantages').click(), byId('collapse').click()")
        self.page.run(change("rows", 6, "rows"))
        self.page.run(change("group", 3, "group"))
        self.page.run(change("columns", 3, "columns"))
        self.page.run("{const field = document.querySelector('#weights input');"
                      "field.value = 2; field.dispatchEvent(new Event('input'));"
                      "const gate = document.querySelector('#weights select');"
                      "gate.value = 1; gate.dispatchEvent(new Event('change'))}")
        self.page.run(change("more", "'rloo'", "more"))
        rewards = "3 1 0 0 0 1 0 0 1 0 0 1 0 0 1 0 0 0 0"
        for estimator in ("gdpo", "rloo"):
            self.expect_shown(estimator, f"advantages {estimator}\nrewards {rewards}\ngroup 3\n"
                              "weights 2 1 1\ngates 0 1 1")
        self.page.run("byId('reset').click()")
        self.assertEqual(self.shown("rloo"), [])

    def test_6_a_loss(self) -> None:
        """Value and gradient of a loss by name, and the message of a setting that is unknown."""
        self.page.run("byId('tab-loss').click()")
        words = self.page.run("[...document.querySelectorAll('#curves p')].map(p => p.textContent)")
        exact = native(["loss dapo\nadvantage 1\nkl 0\nlog_ratios 0.09531017980432493"])[0].split()
        self.assertEqual([word.split()[0] for word in words],
                         [f"\u2212{-float(number):.3f}" for number in exact])
        fill = "byId('settings').value = {!r}, byId('settings').dispatchEvent(new Event('input'))"
        self.page.run(fill.format("hihg=3"))
        self.assertIn("hihg", self.page.run("document.querySelector('#curves .error').textContent"))
        self.page.run(fill.format("high=0.05"))
        words = self.page.run("[...document.querySelectorAll('#curves p')].map(p => p.textContent)")
        self.assertEqual([word.split()[0] for word in words], ["\u22121.050", "0.000"])
        self.page.run(fill.format(""))

    def test_7_every_width(self) -> None:
        """At 1200 and 360 pixels, light and dark, nothing sticks out; the pictures are for eyes."""
        for tab in ("advantages", "loss"):
            self.page.run(f"byId('tab-{tab}').click(), byId('collapse').click()")
            for scheme in ("light", "dark"):
                self.page.color_scheme(scheme)
                for width in WIDTHS:
                    self.page.resize(width, 900)
                    size = "document.documentElement.scroll{}".format
                    self.assertLessEqual(self.page.run(size("Width")), width, f"{tab} {scheme}")
                    self.page.resize(width, self.page.run(size("Height")))
                    self.page.screenshot(pathlib.Path(FOLDER) / f"{tab}_{scheme}_{width}.png")

    def test_8_no_network(self) -> None:
        """The page is one file: it loads nothing, and names no address to load from."""
        loaded = self.page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertEqual([name for name in loaded if not name.startswith("data:")], [])


if __name__ == "__main__":
    print("seed", SEED)
    pathlib.Path(FOLDER).mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1], verbosity=2)
