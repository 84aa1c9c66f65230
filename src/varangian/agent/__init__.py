"""One agent on a real network: keys, messages, mailbox, transport. Needs `pip install varangian[agent]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from varangian.core.errors import BadInput
from varangian.core.lazy import lazy

if TYPE_CHECKING:
    from varangian.agent import config as config
    from varangian.agent import fleet as fleet
    from varangian.agent import keys as keys
    from varangian.agent import logs as logs
    from varangian.agent import start as start
    from varangian.agent import terminal as terminal
    from varangian.agent import watch as watch

__all__ = ["config", "fleet", "keys", "logs", "start", "terminal", "watch"]
_NEEDED = {"cryptography", "prometheus_client", "zenoh"}
_get, __dir__ = lazy(__name__, modules={name: name for name in __all__})


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        hint = "install what agents need: pip install varangian[agent]"
        raise BadInput(f"the package {error.name} is missing; {hint}") from error
