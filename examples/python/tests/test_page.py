"""The Python blocks of pages run as they are, and print what the page says that they print."""
import json
import pathlib
import re

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2]
BLOCKS = re.compile(r"^```python\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.S | re.M)


def run(text, name, capsys):
    """Runs the blocks of a page one after the other, because a block goes on from those before it.

    Returns for each block what it has printed, and what the page says: the text block that follows
    it, or None.
    """
    names, blocks = {}, BLOCKS.findall(text)
    assert len(blocks) == text.count("```python\n")
    assert sum(bool(said) for _, said in blocks) == text.count("```text\n")
    printed = []
    for number, (block, said) in enumerate(blocks):
        exec(compile(block, f"{name}, block {number}", "exec"), names)
        printed.append((capsys.readouterr().out, said or None))
    return printed


def test_package_page(capsys):
    """Numbers of its steps are random ones, and not on the page; what is on it is printed."""
    page = EXAMPLES / "python" / "README.md"
    outputs = run(page.read_text(encoding="utf-8"), page, capsys)
    assert any(said is not None for _, said in outputs)
    assert all(printed == said for printed, said in outputs if said is not None)
    assert not any("nan" in printed for printed, _ in outputs)


def test_notebook(capsys):
    """Its cells run from top to bottom; it is committed without what they print, which the site
    shows as it is printed there."""
    page = EXAMPLES / "python" / "docs" / "notebook.ipynb"
    cells = [cell for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]
             if cell["cell_type"] == "code"]
    names = {}
    for number, cell in enumerate(cells):
        assert cell["outputs"] == [] and cell["execution_count"] is None
        exec(compile("".join(cell["source"]), f"{page}, cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "group 1 of 2" in printed and "nan" not in printed.split()


def test_front_page(capsys):
    """The first lines of Python that a reader sees."""
    page = EXAMPLES.parent / "README.md"
    (printed, said), = run(page.read_text(encoding="utf-8"), page, capsys)
    assert printed == said


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what goes wrong by hand
def test_by_hand(capsys):
    """Every number of the page is what its blocks print."""
    page = EXAMPLES / "by_hand" / "README.md"
    outputs = run(page.read_text(encoding="utf-8"), page, capsys)
    assert sum(said is not None for _, said in outputs) > 10
    for number, (printed, said) in enumerate(outputs):
        assert printed == (said or ""), f"block {number}"


def test_other_output_is_found(capsys):
    """What a page says is compared to the letter, and what it leaves out is seen."""
    page = "```python\nprint(0.5)\n```\n\n```text\n0.50\n```\n\n```python\nprint(1)\n```\n"
    assert run(page, "page", capsys) == [("0.5\n", "0.50\n"), ("1\n", None)]
