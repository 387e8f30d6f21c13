"""The SDK's version, as it names itself to the service."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["SDK", "VERSION"]

try:
    VERSION = version("ryusen")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0"

SDK = f"ryusen-python/{VERSION}"
