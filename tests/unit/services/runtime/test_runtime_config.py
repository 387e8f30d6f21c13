"""Settings: one table, three sources, every fault named at once."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import services
from services.runtime.config import Config, ConfigError, load_config, shown_value
from services.runtime.settings import SETTINGS, Kind, setting_named
from services.runtime.settings_document import settings_markdown

OPS = Path(services.__file__).parent.parent / "ops"


def faults(**environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(environ={f"RYUSEN_{name.upper()}": value for name, value in environ.items()})
    return caught.value.faults


def test_the_table_and_the_fields_are_the_same() -> None:
    assert [item.name for item in fields(Config)][:-2] == [setting.name for setting in SETTINGS]
    assert all(setting_named(setting.name) is setting for setting in SETTINGS)
    assert len({setting.env for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.meaning.endswith(".") for setting in SETTINGS)


def test_the_page_of_settings_is_not_stale() -> None:
    """Run `python -m services.runtime.settings_document > ops/configuration.md` after changing the table."""
    assert (OPS / "configuration.md").read_text() == settings_markdown()


def test_later_sources_win(tmp_path: Path) -> None:
    """HOUSE 10: file, then environment, then flags; each value knows where it came from."""
    file = tmp_path / "ryusen.toml"
    file.write_text('lease_ms = 20000\nlog_level = "debug"\ngateway_port = 1\n')
    environ = {"RYUSEN_CONFIG": str(file), "RYUSEN_LEASE_MS": "30_000", "RYUSEN_GATEWAY_PORT": "2"}
    config = load_config(environ=environ, flags={"gateway_port": "3", "log_format": None})
    assert (config.log_level, config.lease_ms, config.gateway_port, config.log_format) == ("debug", 30_000, 3, "text")
    origins = {name: config.origin_of(setting) for name in ("log_level", "lease_ms", "gateway_port", "store")
               if (setting := setting_named(name))}  # fmt: skip
    assert origins == {
        "log_level": f"file {file}",
        "lease_ms": "variable RYUSEN_LEASE_MS",
        "gateway_port": "flag --gateway-port",
        "store": "default",
    }


def test_a_clusters_own_variable_names_the_store_only_when_nothing_else_does() -> None:
    environ = {"FDB_CLUSTER_FILE": "/etc/foundationdb/fdb.cluster"}
    assert load_config(environ=environ).store == "fdb:/etc/foundationdb/fdb.cluster"
    assert load_config(environ=environ | {"RYUSEN_STORE": "memory:"}).store == "memory:"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"lease_ms": "x"}, r"lease_ms \(variable RYUSEN_LEASE_MS\): 'x' is not an integer"),
        ({"lease_ms": ""}, "is not an integer"),
        ({"lease_ms": "1.5"}, "is not an integer"),
        ({"lease_ms": "9" * 30}, "is not an integer"),
        ({"lease_ms": "999"}, "999 is out of range; allowed are 1000 to 3600000 ms"),
        ({"gateway_port": "-1"}, "-1 is out of range"),
        ({"gateway_port": "65536"}, "65536 is out of range"),
        ({"log_format": "xml"}, r"'xml' is none of text \| json"),
        ({"store": ""}, "must have 1 to 1000 characters"),
        ({"key_prefix": "x" * 33}, "must have 0 to 32 characters"),
        ({"system_key": "short"}, "must have 24 to 1000 characters"),
        ({"metrics_path": "metrics"}, "must begin with a slash"),
        ({"lease_ms": "1000"}, "lease_ms=1000: must be at least 20 times skew_ms, 10000"),
        ({"payload_bytes_max": "1048576"}, "allowance_bytes=2000000"),
        (
            {"run_timeout_default_ms": "60001", "run_timeout_max_ms": "60000"},
            "run_timeout_default_ms=60001: must be at most run_timeout_max_ms, 60000",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_name_and_reason(values: dict[str, str], fault: str) -> None:
    found = faults(**values)
    assert any(re.search(fault, one) for one in found), found


def test_a_secret_is_never_shown() -> None:
    (fault,) = faults(system_key="too-short")
    assert "too-short" not in fault
    config = load_config(environ={"RYUSEN_SYSTEM_KEY": "a-secret-of-many-characters"})
    assert "a-secret" not in repr(config)
    setting = setting_named("system_key")
    assert setting is not None
    assert shown_value(setting, config) == "(set)"
    assert shown_value(setting, Config()) == "(not set)"
    assert setting.flag is None
    assert [one.name for one in SETTINGS if one.kind is Kind.SECRET] == ["system_key"]


def test_all_faults_are_told_at_once() -> None:
    assert len(faults(lease_ms="x", skew_ms="0", log_level="loud")) == 3


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("lease_ms = ", "cannot be read as TOML"),
        ("leese_ms = 5", "leese_ms .*there is no such setting"),
        ("lease_ms = true", "is not an integer"),
        ("lease_ms = 1.5", "is not an integer"),
        ("store = 5", "must be text, not int"),
        ("[gateway]\nport = 1", "there is no such setting"),
    ],
)
def test_a_file_is_read_strictly(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "ryusen.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=fault):
        load_config(file=file)


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(environ={"RYUSEN_CONFIG": str(tmp_path / "none.toml")})


def test_a_variable_of_our_prefix_that_is_no_setting_is_named_and_ignored() -> None:
    """Kubernetes makes such variables for every service, so they must not keep a process from starting."""
    config = load_config(environ={"RYUSEN_GATEWAY_SERVICE_HOST": "10.0.0.1", "RYUSEN_URL": "x", "PATH": "y"})
    assert config.ignored == ("RYUSEN_GATEWAY_SERVICE_HOST",)


def test_a_config_made_in_code_is_held_to_the_same_ranges() -> None:
    with pytest.raises(ConfigError, match="requests_max"):
        Config(requests_max=0)
