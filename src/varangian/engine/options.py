"""The options of a run, in one place.

The keywords of `simulate`, the options of the command line, the keys of `config.toml`, the fingerprint of a run, the
report's "run again" command and the manual's table all come from the fields of `RunOptions`. To add an option, add a
field here, and its type to `RunSettings`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from types import NoneType
from typing import Any, TypedDict, TypeVar, get_args, get_type_hints

from varangian.core.checks import plain, whole_number
from varangian.core.errors import BadInput, unknown
from varangian.core.sizes import read_size

Function = TypeVar("Function", bound=Callable[..., Any])

DTYPES = ("float32", "float64")
COMPILE = ("auto", "on", "off")


def _option(
    default: object, help: str, *, metavar: str | None = None, changes_results: bool = True, local: bool = False
) -> Any:
    """A field with what people need to know about it; a `local` one is for rounds played by this process."""
    about = {"help": help, "metavar": metavar, "changes_results": changes_results, "local": local}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class RunOptions:
    """How to compute and record a run.

    >>> RunOptions(threads=2)
    RunOptions(device='auto', dtype='float32', judge_dtype=None, memory=None, compile='auto', threads=2, \
record_every=None, byzantine_listen=False, save_models=None)
    """

    device: str = _option(
        "auto", "Where to compute: `auto`, `cpu`, `cuda`, `cuda:1`, …", metavar="D", changes_results=False
    )
    dtype: str = _option("float32", "The number type: `float32` or `float64`.", metavar="TYPE")
    judge_dtype: str | None = _option(
        None, "Judge neighbours in another number type, such as `bfloat16`; faster on a GPU.", metavar="TYPE"
    )
    memory: str | int | None = _option(
        None,
        "Use at most this much memory, such as `4GiB`. A run that cannot fit is rejected up front.",
        metavar="SIZE",
        changes_results=False,
    )
    compile: str | bool = _option(
        "auto",
        "Compile rounds: `on`, `off`, or `auto`, which does so where it pays and is quick. `on` takes 2 to 20 seconds; "
        "then rounds are two to four times as fast. On a CPU it needs a C++ compiler. Results differ by rounding.",
        metavar="WHEN",
        changes_results=False,
        local=True,
    )
    threads: int | None = _option(
        None,
        "Use this many CPU cores. By default one for small networks, all for large ones.",
        metavar="N",
        changes_results=False,
        local=True,
    )
    record_every: int | None = _option(
        None, "Record every N rounds. By default every round, if that takes little memory.", metavar="N"
    )
    byzantine_listen: bool = _option(
        False, "Byzantine agents combine what they hear, as honest agents do. By default they train alone."
    )
    save_models: bool | None = _option(
        None,
        "Write every agent's final model to `models/` in the run folder. In Python: keep the models in the result. "
        "By default Python keeps small ones, and the command line none.",
        changes_results=False,
    )

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise unknown("dtype", str(self.dtype), DTYPES)
        if isinstance(self.compile, bool):
            object.__setattr__(self, "compile", "on" if self.compile else "off")
        if self.compile not in COMPILE:
            raise unknown("compile", str(self.compile), COMPILE)
        if self.memory is not None:
            read_size(self.memory)
        for name in ("threads", "record_every"):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name, least=1)
        if not isinstance(self.byzantine_listen, bool):
            raise BadInput(f"byzantine_listen must be True or False, but is {self.byzantine_listen!r}")

    @staticmethod
    def of(given: Mapping[str, Any]) -> RunOptions:
        """Options from a mapping; also with the numbers and types of NumPy and torch.

        The error for an unknown name suggests the nearest known one.

        >>> RunOptions.of({"thread": 2})
        Traceback (most recent call last):
        varangian.core.errors.BadInput: unknown option 'thread'; did you mean 'threads'? (known: ...)
        """
        known = [one.name for one in fields(RunOptions)]
        for name in given:
            if name not in known:
                raise unknown("option", name, known)
        return RunOptions(**{name: plain(value) for name, value in given.items()})

    @property
    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults.

        >>> RunOptions(dtype="float64").changed
        {'dtype': 'float64'}
        """
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    @property
    def fingerprint(self) -> tuple[tuple[str, Any], ...]:
        """The options that differ from their defaults and change results by more than rounding.

        Runs that differ in them must not be confused.

        >>> RunOptions(dtype="float64", threads=2).fingerprint
        (('dtype', 'float64'),)
        """
        deciding = {one.name for one in fields(self) if one.metadata["changes_results"]}
        return tuple((name, value) for name, value in self.changed.items() if name in deciding)

    @property
    def words(self) -> list[str]:
        """What to type for the changed options.

        >>> RunOptions(judge_dtype="bfloat16", compile=True).words
        ['--judge-dtype', 'bfloat16', '--compile', 'on']
        """
        words: list[str] = []
        for name, value in self.changed.items():
            words += [_flag(name, value)] if isinstance(value, bool) else [_flag(name), str(value)]
        return words


class RunSettings(TypedDict, total=False):
    """The fields of `RunOptions` as keywords, for type checkers. A test compares the two."""

    device: str
    dtype: str
    judge_dtype: str | None
    memory: str | int | None
    compile: str | bool
    threads: int | None
    record_every: int | None
    byzantine_listen: bool
    save_models: bool | None


def option_fields() -> Iterator[Field[Any]]:
    """The fields of `RunOptions` in order; `metadata` has `help`, `metavar`, `changes_results` and `local`."""
    yield from fields(RunOptions)


def option_types() -> dict[str, tuple[type, ...]]:
    """The types that each option takes besides None, the first of which the command line reads.

    >>> option_types()["memory"]
    (<class 'str'>, <class 'int'>)
    """
    hints = get_type_hints(RunOptions)
    taken = {name: get_args(hints[name]) or (hints[name],) for name in (one.name for one in option_fields())}
    return {name: tuple(kind for kind in kinds if kind is not NoneType) for name, kinds in taken.items()}


def option_table() -> str:
    """The options as a table in Markdown, for the manual."""
    lines = ["| option | by default | what it does | may change with `--resume` |", "|---|---|---|---|"]
    for one in option_fields():
        flag = _flag(one.name) + (f" {one.metadata['metavar']}" if one.metadata["metavar"] else "")
        usual: dict[Any, str] = {None: "", False: "off", True: "on"}
        default = usual.get(one.default, f"`{one.default}`")
        lines.append(
            f"| `{flag}` | {default} | {one.metadata['help']} | {'no' if one.metadata['changes_results'] else 'yes'} |"
        )
    return "\n".join(lines) + "\n"


def _flag(name: str, value: bool = True) -> str:
    """
    >>> _flag("judge_dtype"), _flag("save_models", False)
    ('--judge-dtype', '--no-save-models')
    """
    return f"--{'' if value else 'no-'}{name.replace('_', '-')}"


def takes_run_options(function: Function) -> Function:
    """A decorator for functions with `**options`: shows the fields of `RunOptions` in their signature and help."""
    signature = inspect.signature(function, eval_str=False)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in option_fields()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    about = [f"    {one.name}: {one.metadata['help']}" for one in option_fields()]
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    place = next(place for place, line in enumerate(lines) if line.strip().startswith("**options"))
    function.__doc__ = "\n".join((*lines[:place], *about, *lines[place + 1 :]))
    return function
