"""The sizes at which the specification's proofs are run: small ones with every test run, its own ones with `make scale`."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["at_scale"]


def at_scale(*values: Any, name: str | None = None) -> Any:
    """Return a parameter that only `make scale` runs; `name` is its id, else pytest makes one of the values."""
    return pytest.param(*values, marks=pytest.mark.scale, id=name)
