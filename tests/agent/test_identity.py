"""An agent's key files: what is wrong with them is said at the start, and changes are taken up while it runs."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from small_fleets import fleet, with_certificate

from varangian.agent import keys
from varangian.agent.identity import FILES, Identity
from varangian.core.errors import BadInput


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fleet(tmp_path / "keys", ["a", "b"])
    return tmp_path / "keys" / "agents" / "a"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_missing_or_damaged_file_is_named(folder: Path, file: str, content: bytes | None) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(BadInput, match=str(folder)):
        Identity.load(folder)


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
def test_a_key_that_others_may_read_is_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Identity.load(folder)
    assert not caplog.records
    (folder / "agent.pem").chmod(0o640)
    Identity.load(folder)
    assert "chmod 600" in caplog.text
    caplog.clear()
    renewed = folder / "new"
    renewed.write_bytes((folder / "agent.pem").read_bytes())
    renewed.chmod(0o604)
    renewed.replace(folder / "agent.pem")
    found.refresh()
    assert "chmod 600" in caplog.text, "also while it runs"


@pytest.mark.parametrize("file", ["ca.crt", "ca.crl"])
def test_files_of_another_authority_are_refused(folder: Path, tmp_path: Path, file: str) -> None:
    fleet(tmp_path / "other", ["a"])
    (folder / file).write_bytes((tmp_path / "other" / "agents" / "a" / file).read_bytes())
    with pytest.raises(BadInput, match=r"did not issue|not signed by"):
        Identity.load(folder)


def test_an_expired_certificate_does_not_start(folder: Path, tmp_path: Path) -> None:
    old = with_certificate(Identity.load(folder).now, tmp_path / "keys", "a", -timedelta(minutes=1))
    (folder / "agent.pem").write_bytes(old.key_pem + old.certificate.public_bytes(Encoding.PEM))
    with pytest.raises(BadInput, match="renew it"):
        Identity.load(folder)


def test_a_renewal_is_taken_up(folder: Path, tmp_path: Path) -> None:
    identity = Identity.load(folder)
    before = identity.now.certificate
    assert not identity.refresh()
    keys.renew(tmp_path / "keys", "a")
    assert identity.refresh()
    assert identity.now.certificate != before
    assert identity.name == "a"
    assert not identity.refresh()


def test_a_revocation_is_taken_up(folder: Path, tmp_path: Path) -> None:
    identity = Identity.load(folder)
    assert not identity.now.has_revoked("b")
    keys.revoke(tmp_path / "keys", "b")
    assert identity.refresh()
    assert identity.now.has_revoked("b")


def test_an_older_revocation_list_is_not_taken_up(folder: Path, tmp_path: Path) -> None:
    identity = Identity.load(folder)
    old = (folder / "ca.crl").read_bytes()
    keys.revoke(tmp_path / "keys", "b")
    assert identity.refresh()
    (folder / "ca.crl").write_bytes(old)
    os.utime(folder / "ca.crl", ns=(1, 1))
    assert not identity.refresh()
    assert identity.now.has_revoked("b")


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_an_invalid_new_file_changes_nothing_and_is_logged(
    folder: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    identity = Identity.load(folder)
    before = identity.now
    (folder / "agent.pem").unlink()
    if content is not None:
        (folder / "agent.pem").write_bytes(content)
    assert not identity.refresh()
    assert identity.now is before
    assert "not used" in caplog.text
    assert not identity.refresh()
    assert len(caplog.records) == 1, "one line per change, not one per look"


def test_another_agents_certificate_is_not_taken_up(folder: Path, tmp_path: Path) -> None:
    identity = Identity.load(folder)
    (folder / "agent.pem").write_bytes((tmp_path / "keys" / "agents" / "b" / "agent.pem").read_bytes())
    assert not identity.refresh()
    assert identity.name == "a"
