"""The authority of a fleet: makes, renews and revokes the agents' certificates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

YEAR = timedelta(days=365)


def create_authority(folder: Path, lifetime: timedelta = 10 * YEAR) -> None:
    """Make a new certificate authority in `folder`: `ca.key`, `ca.crt`, `ca.crl`, and a list of what it issued."""
    raise NotImplementedError


def issue(folder: Path, name: str, hosts: Sequence[str] = ("localhost",), lifetime: timedelta = YEAR) -> Path:
    """A key and a certificate for the agent `name`: the folder `folder/agents/name`, to be copied to its machine.

    Args:
        folder: The authority's folder.
        name: Small letters, digits and hyphens.
        hosts: Host names and addresses at which neighbours reach this agent.
        lifetime: How long the certificate is valid.
    """
    raise NotImplementedError


def renew(folder: Path, name: str, lifetime: timedelta = YEAR) -> Path:
    """A new key and certificate for `name`, in its folder. Running agents that use the folder pick them up."""
    raise NotImplementedError


def revoke(folder: Path, name: str) -> Path:
    """Revoke every certificate of `name`. Returns the new revocation list, to be copied to all agents."""
    raise NotImplementedError
