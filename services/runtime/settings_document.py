"""ops/configuration.md, made from the table of settings: `python -m services.runtime.settings_document > ops/configuration.md`."""

from __future__ import annotations

import sys

from services.runtime.settings import SETTINGS, Group, Kind, Setting

__all__ = ["settings_markdown"]

_HEAD = """\
# Configuration

Made from the table in `services/runtime/settings.py`; a test fails when this page is stale.

A value comes from a TOML file (`--config FILE` or `RYUSEN_CONFIG`, settings by name), then the environment, then flags; the
later one wins. `ryusen config` prints what holds and where it came from; every process takes `--check` to do the same and
exit. A value that cannot be is refused at start with its name, its origin and the reason: exit code 2.

The commands that talk to a service take `RYUSEN_URL`, `RYUSEN_KEY` and `RYUSEN_WORKSPACE` instead, and so do workers
(`RYUSEN_URL`, `RYUSEN_KEY`, and `RYUSEN_RELEASE` for the name of what is deployed).
"""


def settings_markdown() -> str:
    """Return the page."""
    parts = [_HEAD]
    for group in Group:
        parts.append(f"\n## {group.value.capitalize()}\n")
        parts.append(
            "| setting | environment | flag | default | unit | allowed | meaning |\n|---|---|---|---|---|---|---|"
        )
        parts += [_row(setting) for setting in SETTINGS if setting.group is group]
    return "\n".join(parts) + "\n"


def _row(setting: Setting) -> str:
    default = "none" if setting.default == "" else f"`{setting.default}`"
    flag = "none, because others can read a command line" if setting.kind is Kind.SECRET else f"`{setting.flag}`"
    allowed = setting.range.replace("|", "or")
    return (
        f"| `{setting.name}` | `{setting.env}` | {flag} | {default} | {setting.unit} | {allowed} | {setting.meaning} |"
    )


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
