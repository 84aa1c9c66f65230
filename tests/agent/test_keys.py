"""The authority of a fleet: who may do what, what is written, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from varangian.agent import certificates, keys
from varangian.agent.identity import Identity, read_credentials
from varangian.core.errors import BadInput


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def certificate(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "agents" / name / "agent.pem").read_bytes())


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    keys.create_authority(tmp_path / "keys")
    return tmp_path / "keys"


def test_an_issued_identity_is_complete_and_valid_for_a_year(authority: Path) -> None:
    made = keys.issue(authority, "hospital-a", ["a.example.org", "192.0.2.7"])
    assert sorted(path.name for path in made.iterdir()) == ["agent.pem", "ca.crl", "ca.crt"]
    assert Identity.load(made).name == "hospital-a"
    found = certificate(authority, "hospital-a")
    assert abs(found.not_valid_after_utc - datetime.now(UTC) - keys.YEAR) < timedelta(minutes=5)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example.org"]
    assert [str(at) for at in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    above = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    assert above.not_valid_after_utc - datetime.now(UTC) > 9 * keys.YEAR


def test_openssl_takes_the_certificates_as_valid(authority: Path) -> None:
    keys.issue(authority, "a")
    keys.issue(authority, "b")
    keys.revoke(authority, "b")
    check = ["openssl", "verify", "-crl_check", "-CAfile", authority / "ca.crt", "-CRLfile", authority / "ca.crl"]
    results = [subprocess.run([*check, authority / "agents" / n / "agent.pem"], capture_output=True) for n in "ab"]
    assert [result.returncode == 0 for result in results] == [True, False]
    assert b"certificate revoked" in results[1].stderr + results[1].stdout


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_secrets_are_never_readable_by_others(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment: the mode is right when a file gets its name, and before."""
    seen: list[tuple[str, int]] = []
    replace = os.replace

    def watched(source: str, target: str | Path) -> None:
        seen.append((Path(target).name, mode(Path(source))))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    before = os.umask(umask)
    try:
        keys.create_authority(tmp_path / "keys")
        keys.issue(tmp_path / "keys", "a")
        keys.renew(tmp_path / "keys", "a")
    finally:
        os.umask(before)
    secret = [bits for name, bits in seen if name in ("ca.key", "agent.pem")]
    assert secret == [0o600] * 3
    for path in (tmp_path / "keys").rglob("*"):
        if b"PRIVATE KEY" in (path.read_bytes() if path.is_file() else b""):
            assert mode(path) == 0o600, path
    assert mode(tmp_path / "keys" / "agents" / "a") & 0o077 == 0


def test_nothing_is_overwritten(authority: Path) -> None:
    keys.issue(authority, "a")
    before = contents(authority)
    with pytest.raises(BadInput, match="there already"):
        keys.create_authority(authority)
    with pytest.raises(BadInput, match="renew a"):
        keys.issue(authority, "a")
    assert contents(authority) == before


@pytest.mark.parametrize("file", ["ca.key", "ca.crt", "ca.crl", "issued.json", "agents"])
def test_a_folder_with_any_part_of_an_authority_is_left_alone(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("old")
    with pytest.raises(BadInput, match=file):
        keys.create_authority(tmp_path)
    assert contents(tmp_path) == {file: b"old"}


BAD_NAMES = ["", ".", "..", "../x", "a/b", "A", "a_b", "-a", "a-", "a" * 64, "a\n", "ä", "a b", "*", "a\0"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_are_checked_first(authority: Path, name: str) -> None:
    before = contents(authority)
    for action in (keys.issue, keys.renew, keys.revoke):
        with pytest.raises(BadInput, match="is no name here"):
            action(authority, name)
    assert contents(authority) == before


@pytest.mark.parametrize("host", ["", "a b", "host:80", "ex_ample/", "a\n", "*.example.org"])
def test_hosts_are_checked_first(authority: Path, host: str) -> None:
    before = contents(authority)
    with pytest.raises(BadInput, match="no host name"):
        keys.issue(authority, "a", [host])
    assert contents(authority) == before


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    keys.create_authority(tmp_path / "keys", timedelta(days=10))
    with pytest.raises(BadInput, match="fewer days"):
        keys.issue(tmp_path / "keys", "a")
    keys.issue(tmp_path / "keys", "a", lifetime=timedelta(days=9))


def test_renewal_makes_a_new_key_for_the_same_hosts(authority: Path) -> None:
    keys.issue(authority, "a", ["a.example.org"])
    old = certificate(authority, "a")
    keys.renew(authority, "a")
    new = certificate(authority, "a")
    assert new.public_key() != old.public_key()
    names = [c.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for c in (old, new)]
    assert names[0] == names[1]
    keys.renew(authority, "a", ["b.example.org"])
    assert keys.issued(authority)[-1].hosts == ("b.example.org",)


def test_revocation_covers_every_certificate_of_a_name_and_is_final(authority: Path) -> None:
    keys.issue(authority, "a")
    keys.issue(authority, "b")
    old = certificate(authority, "a").serial_number
    keys.renew(authority, "a")
    keys.revoke(authority, "a")
    revoked = read_credentials(authority / "agents" / "b").revoked
    assert revoked == {old, certificate(authority, "a").serial_number}
    assert read_credentials(authority / "agents" / "b").has_revoked("a")
    assert not read_credentials(authority / "agents" / "b").has_revoked("b")
    with pytest.raises(BadInput, match="was revoked"):
        Identity.load(authority / "agents" / "a")
    for action in (keys.issue, keys.renew):
        with pytest.raises(BadInput, match="another name"):
            action(authority, "a")
    keys.revoke(authority, "b")
    last = x509.load_pem_x509_crl((authority / "ca.crl").read_bytes())
    assert certificates.list_number(last) == 3
    assert len(last) == 3


def test_certificates_made_at_once_are_all_noted(authority: Path) -> None:
    """A certificate that is not noted could not be revoked. Those that found the authority busy say so."""

    def make(number: int) -> str:
        try:
            keys.issue(authority, f"agent-{number}")
        except BadInput as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(24)))
    noted = {entry.name for entry in keys.issued(authority)}
    there = {path.name for path in (authority / "agents").iterdir()}
    assert noted == there == {f"agent-{i}" for i, error in enumerate(made) if not error}
    assert "" in made
    assert all("in use" in error for error in made if error)


def test_a_failure_half_way_leaves_nothing_that_cannot_be_revoked(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop at each step of writing: a certificate with a key on disk is always on the list of what was issued."""
    write = keys._write
    for step in range(4):
        steps = iter(range(10))

        def failing(path: Path, content: bytes, mode: int = 0o644, steps=steps, step=step) -> None:  # type: ignore[no-untyped-def]
            if next(steps) == step:
                raise OSError(28, "No space left on device")
            write(path, content, mode)

        monkeypatch.setattr(keys, "_write", failing)
        with pytest.raises(OSError, match="No space"):
            keys.issue(authority, f"a{step}")
        monkeypatch.setattr(keys, "_write", write)
        noted = {entry.name for entry in keys.issued(authority)}
        with_key = {path.parent.name for path in (authority / "agents").glob("*/agent.pem")}
        assert with_key <= noted
        (keys.renew if f"a{step}" in noted else keys.issue)(authority, f"a{step}")
        assert Identity.load(authority / "agents" / f"a{step}").name == f"a{step}"


@pytest.mark.parametrize("damage", ["", "{", "[1]", '[{"name": "a"}]', "null"])
def test_a_damaged_list_is_said_to_be_damaged(authority: Path, damage: str) -> None:
    (authority / "issued.json").write_text(damage)
    with pytest.raises(BadInput, match="damaged"):
        keys.issue(authority, "a")


def test_an_authority_with_another_ones_key_is_refused(authority: Path, tmp_path: Path) -> None:
    keys.create_authority(tmp_path / "other")
    (authority / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(BadInput, match="do not belong together"):
        keys.issue(authority, "a")


def test_help_does_not_wait_for_cryptography() -> None:
    code = "import sys, varangian.cli; sys.exit('cryptography' in sys.modules or 'zenoh' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
