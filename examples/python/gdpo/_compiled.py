"""The compiled libraries, which the installed package has and its source has not."""
import pathlib

#: Where they lie.
FOLDER = pathlib.Path(__file__).parent


def library(name: str) -> pathlib.Path:
    """The library of that name. Errors: ImportError where it is not compiled."""
    path = FOLDER / name
    if not path.exists():
        raise ImportError(f"gdpo was imported from {FOLDER}, which is its source without the "
                          "compiled operators; needed: the installed package (pip install "
                          "./examples/python), and a program in another folder than "
                          "examples/python")
    return path
