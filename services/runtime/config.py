"""The configuration of a process: built once at the entry point, then passed down; no other module reads the environment.

A value that cannot be is refused at start with the setting's name, where the value came from and the reason, all faults in
one go (exit code 2).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from keyspace.budget import check_allowance
from keyspace.errors import Refusal
from keyspace.limits import SKEW_LEASE_FACTOR
from keyspace.store.open import CLUSTER_FILE_VARIABLE
from services.runtime.settings import ENV_PREFIX, SETTINGS, Kind, Setting, setting_named

__all__ = ["CONFIG_FILE_VARIABLE", "Config", "ConfigError", "load_config", "shown_value"]

CONFIG_FILE_VARIABLE = "RYUSEN_CONFIG"
FILE_BYTES_MAX = 1_000_000
CLIENT_VARIABLES = frozenset({"RYUSEN_URL", "RYUSEN_KEY", "RYUSEN_WORKSPACE", CONFIG_FILE_VARIABLE})
"""Variables of our prefix that are no settings of a server: they belong to the commands that call one."""


class ConfigError(Exception):
    """Settings cannot be what they are; `faults` says of each which one, from where, and why."""

    def __init__(self, faults: list[str]) -> None:
        """Keep the faults, one sentence each."""
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting with its value; `services.runtime.settings.SETTINGS` tells what each one means, its unit and range.

    `origins` says for each setting where its value came from: `default`, a file, a variable or a flag. `ignored` names the
    variables of our prefix that are no settings: a misspelt one is warned of, not refused, because Kubernetes makes such
    variables by itself for every service.
    """

    store: str = "embedded:var/ryusen"
    key_prefix: str = ""
    allowance_bytes: int = 2_000_000
    payload_bytes_max: int = 262_144
    lease_ms: int = 15_000
    skew_ms: int = 500
    drain_ms: int = 10_000
    log_format: str = "text"
    log_level: str = "info"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    metrics_path: str = "/metrics"
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8080
    system_key: str = field(default="", repr=False)
    requests_max: int = 512
    streams_max: int = 256
    body_ms: int = 10_000
    key_cache_ms: int = 2_000
    ready_ms: int = 2_000
    dispatcher_host: str = "127.0.0.1"
    dispatcher_port: int = 8081
    sessions_max: int = 1_000
    dispatch_concurrency: int = 64
    fanout_concurrency: int = 16
    rescan_ms: int = 30_000
    run_timeout_default_ms: int = 0
    run_timeout_max_ms: int = 0
    continuation: str = "on"
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    ignored: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse values out of range and relations that do not hold, also for a Config made in code.

        Raises:
            ConfigError: with every fault.
        """
        faults = [
            fault
            for setting in SETTINGS
            if (fault := _range_fault(setting, getattr(self, setting.name), self.origin_of(setting)))
        ]
        faults += self._relation_faults()
        if faults:
            raise ConfigError(faults)

    def origin_of(self, setting: Setting) -> str:
        """Return where the value of `setting` came from."""
        return self.origins.get(setting.name, "default")

    def _relation_faults(self) -> list[str]:
        faults = []
        if self.skew_ms * SKEW_LEASE_FACTOR > self.lease_ms:
            faults.append(
                f"lease_ms={self.lease_ms}: must be at least {SKEW_LEASE_FACTOR} times skew_ms, "
                f"{self.skew_ms * SKEW_LEASE_FACTOR}"
            )
        try:
            check_allowance(self.allowance_bytes, self.payload_bytes_max)
        except Refusal as refusal:
            faults.append(f"allowance_bytes={self.allowance_bytes}: {refusal}")
        if 0 < self.run_timeout_max_ms < self.run_timeout_default_ms:
            faults.append(
                f"run_timeout_default_ms={self.run_timeout_default_ms}: must be at most run_timeout_max_ms, "
                f"{self.run_timeout_max_ms}"
            )
        if not self.metrics_path.startswith("/"):
            faults.append(f"metrics_path={self.metrics_path!r}: must begin with a slash")
        return faults


def load_config(
    *,
    flags: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """Build the configuration from file, then environment, then flags.

    Args:
        flags: values by setting name as text; None where a flag was not given.
        environ: the process's environment.
        file: a TOML file; when None, the one that RYUSEN_CONFIG names, if any.

    Raises:
        ConfigError: with every fault: unknown names, wrong types, values out of range, relations that do not hold.
    """
    environ = environ or {}
    path = file or (Path(environ[CONFIG_FILE_VARIABLE]) if environ.get(CONFIG_FILE_VARIABLE) else None)
    faults: list[str] = []
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    sources = (
        [] if path is None else [_from_file(path, faults)],
        [_from_environment(environ)],
        [{n: (v, f"flag --{n.replace('_', '-')}") for n, v in (flags or {}).items() if v is not None}],
    )
    for source in (entry for group in sources for entry in group):
        for name, (value, origin) in source.items():
            setting = setting_named(name)
            assert setting is not None, name
            parsed = _parse(setting, value, origin, faults)
            if parsed is not None:
                values[name], origins[name] = parsed, origin
    if "store" not in values and environ.get(CLUSTER_FILE_VARIABLE):
        values["store"] = f"fdb:{environ[CLUSTER_FILE_VARIABLE]}"
        origins["store"] = f"variable {CLUSTER_FILE_VARIABLE}"
    if faults:
        # What could be read is judged too, so that one start shows every fault.
        try:
            Config(**values, origins=origins)
        except ConfigError as error:
            faults += error.faults
        raise ConfigError(faults)
    return Config(**values, origins=origins, ignored=_unknown_variables(environ))


def shown_value(setting: Setting, config: Config) -> str | int:
    """Return a value as it may be printed: a secret only as whether there is one."""
    value: str | int = getattr(config, setting.name)
    if setting.kind is Kind.SECRET:
        return "(set)" if value else "(not set)"
    return value


def _from_file(path: Path, faults: list[str]) -> dict[str, tuple[Any, str]]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            faults.append(f"file {path}: is larger than {FILE_BYTES_MAX} bytes")
            return {}
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        faults.append(f"file {path}: cannot be read as TOML: {error}")
        return {}
    faults += [f"{name} (file {path}): there is no such setting" for name in found if setting_named(name) is None]
    return {name: (value, f"file {path}") for name, value in found.items() if setting_named(name) is not None}


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {
        setting.name: (environ[setting.env], f"variable {setting.env}")
        for setting in SETTINGS
        if setting.env in environ
    }


def _unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {setting.env for setting in SETTINGS} | CLIENT_VARIABLES
    return tuple(sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known))


def _parse(setting: Setting, value: Any, origin: str, faults: list[str]) -> str | int | None:
    if setting.kind is Kind.INTEGER:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        text = value.replace("_", "") if isinstance(value, str) else ""
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 18:
            return int(text)
        faults.append(f"{setting.name} ({origin}): {value!r} is not an integer ({setting.range} {setting.unit})")
        return None
    if isinstance(value, str):
        return value
    faults.append(f"{setting.name} ({origin}): must be text, not {type(value).__name__}")
    return None


def _range_fault(setting: Setting, value: str | int, origin: str) -> str | None:
    where = f"{setting.name}" + ("" if origin == "default" else f" ({origin})")
    if isinstance(value, int):
        if setting.low <= value <= setting.high:
            return None
        return f"{where}: {value} is out of range; allowed are {setting.range} {setting.unit}"
    if setting.kind is Kind.SECRET:
        if not value or setting.low <= len(value) <= setting.high:
            return None
        return f"{where}: must have {setting.range}"
    if setting.choices:
        return None if value in setting.choices else f"{where}: {value!r} is none of {setting.range}"
    if not setting.low <= len(value) <= setting.high or "\x00" in value:
        return f"{where}: {value!r} must have {setting.range} and no NUL"
    return None


assert {item.name for item in fields(Config)} == {setting.name for setting in SETTINGS} | {"origins", "ignored"}
assert all(
    item.default == setting.default for item in fields(Config) for setting in SETTINGS if item.name == setting.name
)
