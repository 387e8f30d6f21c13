"""What customers may import, pinned, so that a name neither slips out nor disappears unnoticed."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import ryusen

PUBLIC = [
    "ApiError",
    "App",
    "AsyncClient",
    "Attempt",
    "Client",
    "ConfigurationError",
    "Context",
    "DeclarationRefused",
    "Function",
    "InvalidValue",
    "NonRetryable",
    "NotInAttempt",
    "Retry",
    "RetryAfter",
    "RyusenError",
    "Step",
    "StepFailed",
    "Unreachable",
    "current_attempt",
    "serve",
]


def test_the_public_names_are_these() -> None:
    assert ryusen.__all__ == PUBLIC
    assert all(hasattr(ryusen, name) for name in PUBLIC)


def test_every_name_a_module_exports_is_there() -> None:
    for module in pkgutil.walk_packages(ryusen.__path__, "ryusen."):
        loaded = importlib.import_module(module.name)
        missing = [name for name in getattr(loaded, "__all__", []) if not hasattr(loaded, name)]
        assert not missing, f"{module.name} exports {missing}"


def test_importing_the_sdk_pulls_in_neither_the_server_nor_pydantic() -> None:
    """The SDK is what customers install; it must stay light (ARCHITECTURE 1)."""
    code = "import sys, ryusen; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout
    for forbidden in ("keyspace", "services", "pydantic", "fdb", "lmdb", "starlette"):
        assert f"'{forbidden}'" not in loaded
