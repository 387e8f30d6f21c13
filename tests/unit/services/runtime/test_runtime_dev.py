"""The local server's own key: found again at a later start, made anew for another store; and where its code is."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from keyspace.clock import VirtualClock
from keyspace.keyspace import Keyspace
from keyspace.records.tenancy import Role
from keyspace.store.embedded import memory_store
from keyspace.transitions.keys import authenticate, list_keys, revoke_key
from services.runtime.dev.access import access_file, open_access
from services.runtime.dev.supervisor import code_folder


def keyspace_of_its_own() -> Keyspace:
    clock = VirtualClock()
    return Keyspace(memory_store(clock=clock), clock=clock)


@pytest.mark.case(79)
async def test_a_later_start_finds_the_same_key(tmp_path: Path) -> None:
    """Case 079: what a user exported in another terminal goes on working after a restart."""
    keyspace, file = keyspace_of_its_own(), tmp_path / "deep" / "s.dev.json"
    first = await open_access(keyspace, "dev", file)
    assert await open_access(keyspace, "dev", file) == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    owner = await keyspace.transact("read", lambda tx: authenticate(tx, first.secret))
    assert owner is not None
    assert (owner.workspace, owner.role) == ("dev", Role.ADMIN)
    assert len(await keyspace.transact("read", lambda tx: list_keys(tx, "dev"))) == 1


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b'{"workspace":"dev","secret":"ryk_other"}', b"\xff", b"x" * 20_000]
)
async def test_a_file_that_does_not_fit_costs_a_new_key_and_no_more(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "s.dev.json"
    if content is not None:
        file.write_bytes(content)
    keyspace = keyspace_of_its_own()
    made = await open_access(keyspace, "dev", file)
    assert await open_access(keyspace, "dev", file) == made


async def test_another_workspace_store_or_a_revoked_key_means_a_new_one(tmp_path: Path) -> None:
    keyspace, file = keyspace_of_its_own(), tmp_path / "s.dev.json"
    first = await open_access(keyspace, "dev", file)
    other = await open_access(keyspace, "other", file)
    assert other.secret != first.secret
    (key,) = await keyspace.transact("read", lambda tx: list_keys(tx, "other"))
    await keyspace.transact("revoke_key", lambda tx: revoke_key(tx, "other", key.key_id))
    again = await open_access(keyspace, "other", file)
    assert again.secret != other.secret
    assert (await open_access(keyspace_of_its_own(), "other", file)).secret != again.secret


def test_the_key_lies_beside_an_embedded_store() -> None:
    assert access_file("embedded:var/ryusen") == Path("var/ryusen.dev.json")
    assert access_file("fdb:/etc/x") == Path("var/ryusen.dev.json")


def test_the_folder_of_an_application_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dev_single.py").write_text("raise SystemExit('imported')")
    (tmp_path / "dev_package").mkdir()
    (tmp_path / "dev_package" / "__init__.py").write_text("raise SystemExit('imported')")
    assert code_folder("dev_single:app") == tmp_path
    assert code_folder("dev_package.inner:app") == tmp_path / "dev_package"
    for wrong in ("dev_nothing:app", "dev_single", ":app", "..x:app", ""):
        with pytest.raises(LookupError):
            code_folder(wrong)
