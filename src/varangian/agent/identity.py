"""Who an agent is on the network: its key and certificate, the authority it trusts, and who has been revoked."""

from __future__ import annotations

from pathlib import Path


class Identity:
    """The files of one agent's folder: `agent.key`, `agent.crt`, `ca.crt`, `ca.crl`. Re-read when they change."""

    @staticmethod
    def load(folder: Path) -> Identity:
        """Read and check the folder; `BadInput` says what is wrong with it."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name in the certificate."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Read the files again if they changed. True if something is new. Invalid files are ignored, and logged."""
        raise NotImplementedError
