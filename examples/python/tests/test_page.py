"""The Python blocks of the package's page run as they stand."""
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def test_blocks_run(capsys):
    """One after the other, because a block goes on from those before it."""
    names = {}
    assert BLOCKS
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    assert "nan" not in capsys.readouterr().out
