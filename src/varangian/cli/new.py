"""`varangian new`: a file with a rule, an attack or a study to start from."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from varangian import experiments
from varangian.core.errors import BadInput, unknown

TEMPLATES = Path(__file__).parent / "templates"
LONGEST = 60
HINTS = {
    "rule": """Check it: python {file}
Run it:   varangian run target-localization --rules alone,loss-based,{file} --byzantine 20
Compare:  varangian tournament target-localization --rules loss-based,{file} --attacks alie,uniform --byzantine 20""",
    "attack": """Check it: python {file}
Run it:   varangian run target-localization --attack {file} --byzantine 20
Compare:  varangian tournament target-localization --rules average,loss-based --attacks alie,{file} --byzantine 20""",
    "study": """Look at it: varangian studies {file}
Run it:     varangian run {file} --seeds 3 --out runs/{name}
Compare:    varangian tournament {file} --rules average,loss-based --attacks uniform,alie""",
}
"""What to do with the file next."""


def new(
    kind: Annotated[str, typer.Argument(metavar="rule|attack|study", help="What to write.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as `exponential`; the file is NAME.py.")],
) -> None:
    """Write a file NAME.py with a rule, an attack or a study. It runs as it is; change it to your own.

    varangian new rule exponential

    varangian new study landmines
    """
    if kind not in HINTS:
        raise unknown("kind of file", kind, HINTS)
    python_name = checked_name(name, kind)
    text = (TEMPLATES / f"{kind}.py").read_text(encoding="utf-8")
    text = text.replace(f"my_{kind}", python_name).replace(f"my-{kind}", python_name.replace("_", "-"))
    file = Path(f"{python_name}.py")
    try:
        with file.open("x", encoding="utf-8") as writing:
            writing.write(text)
    except FileExistsError as error:
        raise BadInput(f"{file} is there already; take another name, or remove it") from error
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from error
    print(f"Written: {file}\n{HINTS[kind].format(file=file, name=python_name)}")


def checked_name(name: str, kind: str) -> str:
    """The name in Python.

    >>> checked_name("two-words", "rule")
    'two_words'
    """
    python_name = name.replace("-", "_")
    if not re.fullmatch("[a-z][a-z0-9_]*", python_name) or keyword.iskeyword(python_name) or len(name) > LONGEST:
        raise BadInput(f"{name!r} cannot be a name; use small letters, digits and hyphens, as in two-words")
    own_code = experiments.own_code
    if any(python_name.replace("_", "-") in own_code.Offered((one,)) for one in own_code.PACKAGES):
        raise BadInput(f"{name} is the name of a built-in rule, attack or study; take another")
    if find_spec(python_name) is not None and not Path(f"{python_name}.py").exists():
        raise BadInput(
            f"{name} is the name of a Python package, which a file {python_name}.py would hide; take another"
        )
    return python_name
