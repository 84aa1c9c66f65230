"""The command that repeats a run, made from its configuration."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from typing import Any

from varangian import studies
from varangian.core.errors import BadInput
from varangian.engine.options import RunOptions, option_types
from varangian.experiments.spec import catalogue, settings_of


def command_of(config: str, out: str) -> str | None:
    """The command line that is equivalent to a configuration file; None for an unknown study.

    The code of a study of one's own is not run for this, so all of its settings are in the command.

    >>> print(command_of('study = "school"\\nrules = ["alone"]\\nseeds = 2\\n[settings]\\nbatch = 5', "again"))
    varangian run school --rule alone --seeds 2 --set batch=5 --out again
    """
    try:
        stored = tomllib.loads(config)
    except tomllib.TOMLDecodeError:
        return None
    offered, study = catalogue(studies), stored.get("study")
    if not isinstance(study, str) or (study not in offered and not stored.get("sources")):
        return None
    words = ["varangian", "run", study]
    for option, name in (("--rule", "rules"), ("--attack", "attacks"), ("--byzantine", "byzantine")):
        for value in stored.get(name, []):
            words += [option, _typed(value, ",")]
    for name, usual in (("seeds", 1), ("rounds", None)):
        if stored.get(name, usual) != usual:
            words += [f"--{name}", str(stored[name])]
    try:
        words += RunOptions.of({name: stored[name] for name in option_types() if name in stored}).words
    except BadInput:
        return None
    words += _settings(stored.get("settings", {}), settings_of(offered[study]()) if study in offered else {})
    return shlex.join([*words, "--out", out])


def _settings(stored: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in stored.items():
        if (tuple(value) if isinstance(value, list) else value) != usual.get(name):
            words += ["--set", f"{name}={_typed(value, '/')}"]
    return words


def _typed(value: Any, between: str) -> str:
    """A value as typed. Lists of agents have commas, also after a single agent; other lists of numbers have slashes."""
    if isinstance(value, list):
        return between.join(map(str, value)) + ("," if between == "," and len(value) == 1 else "")
    return str(value).lower() if isinstance(value, bool) else str(value)
