"""`varangian keys`: a fleet's certificates from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import assert_refused, varangian_

from varangian.agent.identity import Identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert varangian_("keys", "init", tmp_path / "keys").status == 0
    return tmp_path / "keys"


def test_from_nothing_to_an_identity_and_back(folder: Path) -> None:
    said = varangian_("keys", "issue", "hospital-a", "--dir", folder, "--host", "a.example.org", "--days", "30")
    assert said.status == 0 and str(folder / "agents" / "hospital-a") in said.out
    identity = Identity.load(folder / "agents" / "hospital-a")
    before = identity.now.certificate
    assert varangian_("keys", "renew", "hospital-a", "--dir", folder).status == 0
    assert identity.refresh() and identity.now.certificate != before
    assert varangian_("keys", "issue", "b", "--dir", folder).status == 0
    assert varangian_("keys", "revoke", "hospital-a", "--dir", folder).status == 0
    listed = varangian_("keys", "list", "--dir", folder).out.splitlines()
    assert [line.split()[:2] for line in listed] == [["hospital-a", "revoked"]] * 2 + [["b", "valid"]]
    assert "a.example.org" in listed[1], "a renewal keeps the hosts"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["init", "{folder}"], ["ca.key", "there already"]),
        (["issue", "../x"], ["'../x'", "small letters"]),
        (["issue", "a", "--host", "x y"], ["'x y'", "host name"]),
        (["issue", "a", "--days", "9000"], ["fewer days"]),
        (["renew", "nobody"], ["nobody", "keys list"]),
        (["revoke", "nobody"], ["nobody", "keys list"]),
    ],
)
def test_bad_input_is_one_line(folder: Path, words: list[str], parts: list[str]) -> None:
    where = [] if words[0] == "init" else ["--dir", folder]
    before = sorted(folder.rglob("*"))
    assert_refused(varangian_("keys", *(word.format(folder=folder) for word in words), *where), parts)
    assert sorted(folder.rglob("*")) == before


def test_no_authority(tmp_path: Path) -> None:
    for words in (["issue", "a"], ["renew", "a"], ["revoke", "a"], ["list"]):
        assert_refused(varangian_("keys", *words, "--dir", tmp_path / "none"), ["no authority", "keys init"])
    assert not (tmp_path / "none").exists()
