"""Every setting of the server processes, in one table.

Parsing, the options of the command line, `ryusen config` and ops/configuration.md are all made from it, so none can tell
another story. A setting's value comes from a TOML file, then the environment, then flags; the later one wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from keyspace.limits import (
    ALLOWANCE_BYTES_DEFAULT,
    ALLOWANCE_BYTES_MAX,
    LEASE_MS_DEFAULT,
    LEASE_MS_MIN,
    PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX,
    RUN_TIMEOUT_MS_MAX,
    SKEW_MS_DEFAULT,
)

__all__ = ["SETTINGS", "Group", "Kind", "Setting", "setting_named"]

ENV_PREFIX = "RYUSEN_"
LEASE_MS_MAX = 3_600_000
SKEW_MS_MAX = 60_000
PORT_MAX = 65_535
KEY_PREFIX_CHARS_MAX = 32
"""The prefix travels with every key three times in FoundationDB's accounting, so it is kept short."""
SYSTEM_KEY_CHARS_MIN = 24
TEXT_CHARS_MAX = 1_000


class Group(StrEnum):
    """Which processes a setting concerns."""

    COMMON = "all processes"
    GATEWAY = "gateway"
    DISPATCHER = "dispatcher"
    FANOUT = "fan-out"


class Kind(StrEnum):
    """What a value may be."""

    TEXT = "text"
    INTEGER = "integer"
    SECRET = "secret"
    """Text that is never printed and has no flag, because other users of a machine can read a command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: the field of `Config`, and the key in the file.
        default: what holds when no source names it.
        group: which processes it concerns.
        kind: what a value may be.
        unit: of an integer, for people.
        low: the least integer or the least number of characters.
        high: the greatest.
        choices: the allowed texts, when they can be listed.
        meaning: what it does, one or two sentences.
    """

    name: str
    default: str | int
    group: Group
    kind: Kind
    meaning: str
    unit: str = ""
    low: int = 0
    high: int = TEXT_CHARS_MAX
    choices: tuple[str, ...] = ()

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str | None:
        """The flag, or None for a secret."""
        return None if self.kind is Kind.SECRET else "--" + self.name.replace("_", "-")

    @property
    def range(self) -> str:
        """The allowed values, for people."""
        if self.choices:
            return " | ".join(self.choices)
        if self.kind is Kind.INTEGER:
            return f"{self.low} to {self.high}"
        return f"{self.low} to {self.high} characters"


def _integer(name: str, default: int, group: Group, low: int, high: int, unit: str, meaning: str) -> Setting:
    return Setting(
        name=name, default=default, group=group, kind=Kind.INTEGER, unit=unit, low=low, high=high, meaning=meaning
    )


def _text(name: str, default: str, group: Group, meaning: str, *, low: int = 1, high: int = TEXT_CHARS_MAX) -> Setting:
    return Setting(name=name, default=default, group=group, kind=Kind.TEXT, low=low, high=high, meaning=meaning)


def _choice(name: str, choices: tuple[str, ...], group: Group, meaning: str) -> Setting:
    return Setting(name=name, default=choices[0], group=group, kind=Kind.TEXT, choices=choices, meaning=meaning)


SETTINGS: tuple[Setting, ...] = (
    _text(
        "store", "embedded:var/ryusen", Group.COMMON,
        "Where the state lives: embedded:PATH (a folder on this machine), fdb:PATH (a FoundationDB cluster file), fdb: (the "
        "cluster file that FDB_CLUSTER_FILE names). When nothing names a store and FDB_CLUSTER_FILE is set, that cluster.",
    ),
    _text(
        "key_prefix", "", Group.COMMON,
        "Stands before every key, so that several deployments can share one store; equal in all processes of one.",
        low=0, high=KEY_PREFIX_CHARS_MAX,
    ),
    _integer(
        "allowance_bytes", ALLOWANCE_BYTES_DEFAULT, Group.COMMON, 65_540, ALLOWANCE_BYTES_MAX, "bytes",
        "What one transaction may weigh; at least four times payload_bytes_max plus 65,536.",
    ),
    _integer(
        "payload_bytes_max", PAYLOAD_BYTES_DEFAULT, Group.COMMON, 1, PAYLOAD_BYTES_MAX, "bytes",
        "The largest event payload, step result or run output that is accepted.",
    ),
    _integer(
        "lease_ms", LEASE_MS_DEFAULT, Group.COMMON, LEASE_MS_MIN, LEASE_MS_MAX, "ms",
        "How long a worker keeps work without renewing; at least twenty times skew_ms.",
    ),
    _integer(
        "skew_ms", SKEW_MS_DEFAULT, Group.COMMON, 1, SKEW_MS_MAX, "ms",
        "How far the clocks of live processes may lie apart; one further off than this turns unready and stops committing.",
    ),
    _integer(
        "drain_ms", 10_000, Group.COMMON, 0, 600_000, "ms",
        "How long a process that was told to stop (SIGTERM) may finish what it has begun.",
    ),
    _choice("log_format", ("text", "json"), Group.COMMON, "How log lines look on standard error."),
    _choice(
        "log_level", ("info", "debug", "warning", "error"), Group.COMMON, "The least severity that is logged."
    ),
    _text("metrics_host", "127.0.0.1", Group.COMMON, "The address on which the metrics endpoint listens."),
    _integer(
        "metrics_port", 0, Group.COMMON, 0, PORT_MAX, "port",
        "The port of the Prometheus endpoint; 0 means that there is none.",
    ),
    _text("metrics_path", "/metrics", Group.COMMON, "The path of the Prometheus endpoint; begins with a slash."),
    _text("gateway_host", "127.0.0.1", Group.GATEWAY, "The address on which the API listens."),
    _integer("gateway_port", 8080, Group.GATEWAY, 0, PORT_MAX, "port", "The API's port; 0 takes a free one."),
    Setting(
        name="system_key", default="", group=Group.GATEWAY, kind=Kind.SECRET, low=SYSTEM_KEY_CHARS_MIN,
        meaning="The operator's bearer key, which may create workspaces and keys; empty means that there is none.",
    ),
    _integer(
        "requests_max", 512, Group.GATEWAY, 1, 100_000, "requests",
        "Requests worked on at once; more are answered 429 with Retry-After.",
    ),
    _integer(
        "streams_max", 256, Group.GATEWAY, 1, 100_000, "streams",
        "History streams open at once; more are answered 429 with Retry-After.",
    ),
    _integer(
        "body_ms", 10_000, Group.GATEWAY, 100, 600_000, "ms",
        "How long a caller may take to send a request's body; slower ones are answered 408.",
    ),
    _integer(
        "key_cache_ms", 2_000, Group.GATEWAY, 0, 5_000, "ms",
        "How long a looked-up bearer key is believed; a revoked key may still act for as long. What stands open ends within 5 s.",
    ),
    _integer(
        "ready_ms", 2_000, Group.COMMON, 10, 60_000, "ms",
        "How long the store may take to answer before the process calls itself unready.",
    ),
    _text("dispatcher_host", "127.0.0.1", Group.DISPATCHER, "The address on which worker sessions are accepted."),
    _integer(
        "dispatcher_port", 8081, Group.DISPATCHER, 0, PORT_MAX, "port", "The port for workers; 0 takes a free one."
    ),
    _integer("sessions_max", 1_000, Group.DISPATCHER, 1, 100_000, "sessions", "Worker sessions at once; more are refused."),
    _integer(
        "dispatch_concurrency", 64, Group.DISPATCHER, 1, 4_096, "transactions", "Dispatcher transactions at once."
    ),
    _integer("fanout_concurrency", 16, Group.FANOUT, 1, 1_024, "transactions", "Fan-out transactions at once."),
    _integer(
        "rescan_ms", 30_000, Group.COMMON, 1_000, 3_600_000, "ms",
        "How often fan-out and dispatcher look at all pointers, which covers a wake-up that was lost.",
    ),
    _integer(
        "run_timeout_default_ms", 0, Group.COMMON, 0, RUN_TIMEOUT_MS_MAX, "ms",
        "How long a run may take whose function declares no timeout, a child run too; 0 is for ever. A run shows that its "
        "deadline is the deployment's. At most run_timeout_max_ms where that is set.",
    ),
    _integer(
        "run_timeout_max_ms", 0, Group.COMMON, 0, RUN_TIMEOUT_MS_MAX, "ms",
        "The longest run timeout that a manifest or an invocation may declare; a longer one is refused, never shortened. 0 allows any.",
    ),
    _choice(
        "continuation", ("on", "off"), Group.DISPATCHER,
        "Whether a worker goes on behind its own successes, one transaction a step; off leaves every step to the queue.",
    ),
)  # fmt: skip
"""The table. A test holds it equal to the fields of `Config`."""

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def setting_named(name: str) -> Setting | None:
    """Return the setting of that name."""
    return _BY_NAME.get(name)
