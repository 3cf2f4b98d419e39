"""The Python blocks of the package's page run as they stand."""
import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number, capsys):
    exec(compile(BLOCKS[number], f"{PAGE.name}, block {number}", "exec"), {})
    assert "nan" not in capsys.readouterr().out


def test_page_has_blocks():
    assert BLOCKS
