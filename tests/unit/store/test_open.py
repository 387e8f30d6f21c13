"""Addresses of stores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from keyspace.clock import SystemClock
from keyspace.store import fdb_adapter
from keyspace.store.errors import StoreUnavailableError
from keyspace.store.open import ACCEPTED_FORMS, open_store


async def write_and_read(url: str) -> bytes | None:
    store = await open_store(url, clock=SystemClock())
    try:
        transaction = store.begin()
        transaction.set(b"k", b"v")
        await transaction.commit()
        return await store.begin().get(b"k")
    finally:
        await store.close()


async def test_a_memory_store_opens() -> None:
    """Would catch an address that is documented and not understood."""
    assert await write_and_read("memory:") == b"v"


async def test_an_embedded_store_opens_at_its_path(tmp_path: Path) -> None:
    """Would catch a path that is cut or changed on its way."""
    path = tmp_path / "a name with: colons"
    assert await write_and_read(f"embedded:{path}") == b"v"
    assert path.exists()


@pytest.mark.parametrize(
    "url", ["", "embedded", "embedded:", "memory", "memory:x", "postgres://h/d", "FDB:/x", "/a/path"]
)
async def test_another_form_is_refused_with_the_accepted_ones(url: str) -> None:
    """Would catch a typing error that opens some other store than the one meant."""
    with pytest.raises(StoreUnavailableError) as caught:
        await open_store(url, clock=SystemClock())
    assert all(form in str(caught.value) for form in ACCEPTED_FORMS)
    assert f"url={url}" in str(caught.value)


async def test_fdb_without_a_path_needs_the_variable() -> None:
    """Would catch a default cluster file that nobody chose."""
    with pytest.raises(StoreUnavailableError, match="set FDB_CLUSTER_FILE or use fdb:PATH"):
        await open_store("fdb:", clock=SystemClock(), environ={})


@pytest.mark.parametrize("named_by", ["path", "variable"])
async def test_a_cluster_file_that_is_not_there_is_named(named_by: str, tmp_path: Path) -> None:
    """Would catch a wait for a cluster that cannot exist."""
    missing = tmp_path / "fdb.cluster"
    url = f"fdb:{missing}" if named_by == "path" else "fdb:"
    with pytest.raises(StoreUnavailableError, match="no such cluster file") as caught:
        await open_store(url, clock=SystemClock(), environ={"FDB_CLUSTER_FILE": str(missing)})
    assert str(missing) in str(caught.value)


def without_library(_: int) -> None:
    raise Exception("Unable to locate the FoundationDB API shared library!")


@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        (None, r"install ryusen-server\[fdb\]"),
        (SimpleNamespace(api_version=without_library), "install the foundationdb-clients package"),
    ],
    ids=["no package", "no C client"],
)
async def test_a_missing_client_is_refused_with_the_remedy(
    package: object, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a traceback out of ctypes where an operator needs one clear line."""
    cluster_file = tmp_path / "fdb.cluster"
    cluster_file.write_text("a:b@127.0.0.1:4500\n")
    monkeypatch.setattr(fdb_adapter, "fdb", package)
    with pytest.raises(StoreUnavailableError, match=remedy):
        await open_store(f"fdb:{cluster_file}", clock=SystemClock())
