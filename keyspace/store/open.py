"""Opens a store from the address an operator gives: `embedded:PATH`, `fdb:PATH`, `fdb:` or `memory:`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from keyspace.clock import Clock
from keyspace.store.api import Store
from keyspace.store.embedded import memory_store, open_embedded
from keyspace.store.errors import StoreUnavailableError
from keyspace.store.fdb_adapter import open_fdb

__all__ = ["ACCEPTED_FORMS", "CLUSTER_FILE_VARIABLE", "open_store"]

CLUSTER_FILE_VARIABLE = "FDB_CLUSTER_FILE"
"""Where `fdb:` without a path finds the cluster file, as FoundationDB's own tools do."""

ACCEPTED_FORMS = (
    "embedded:PATH (a folder on this machine)",
    "fdb:PATH (a FoundationDB cluster file)",
    f"fdb: (the cluster file named by {CLUSTER_FILE_VARIABLE})",
    "memory: (this process only; lost when it ends)",
)


async def open_store(url: str, *, clock: Clock, environ: Mapping[str, str] | None = None) -> Store:
    """Open the store that `url` names.

    Args:
        url: one of ACCEPTED_FORMS; a path is taken as written, relative to the working directory when it is relative.
        clock: the store's time, for its 5 s rule, backoff and versions where it has no cluster to ask.
        environ: where `fdb:` looks for the cluster file; the process's environment when None.

    Returns:
        The open store; the caller closes it.

    Raises:
        StoreUnavailableError: an unknown form, a missing path or a store that cannot be opened; names the remedy.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory" and not rest:
        return memory_store(clock=clock)
    if colon and scheme == "embedded" and rest:
        return open_embedded(Path(rest), clock=clock)
    if colon and scheme == "fdb":
        path = rest or (os.environ if environ is None else environ).get(CLUSTER_FILE_VARIABLE, "")
        if not path:
            raise StoreUnavailableError(f"no cluster file was named: set {CLUSTER_FILE_VARIABLE} or use fdb:PATH")
        return await open_fdb(Path(path), clock=clock)
    raise StoreUnavailableError(f"not an address of a store: use one of {'; '.join(ACCEPTED_FORMS)} url={url}")
