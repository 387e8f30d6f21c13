"""`ryusen workspaces` and `ryusen keys`."""

from __future__ import annotations

import click
import msgspec

from keyspace.records.tenancy import Role
from services.runtime.cli.api import Api, api_options, path_of
from services.runtime.cli.options import as_json
from services.runtime.cli.output import instant, print_json, print_table

__all__ = ["keys", "workspaces"]

COUNT_MAX = 100_000


@click.group()
def workspaces() -> None:
    """Create and list workspaces; creating takes the operator's key."""


@workspaces.command()
@click.argument("name")
@click.option("--retention-ms", type=int, default=None, help="How long ended runs and idempotency keys are kept.")
@api_options
@as_json
def create(name: str, retention_ms: int | None, is_json: bool, **where: str) -> None:
    """Create the workspace NAME."""
    body = {"name": name} if retention_ms is None else {"name": name, "retention_ms": retention_ms}
    answer = _api(where).ask("POST", path_of("workspaces"), body=msgspec.json.encode(body))
    if is_json:
        print_json(answer)
        return
    click.echo(msgspec.json.decode(answer)["name"])


@workspaces.command("list")
@api_options
@as_json
def list_workspaces(is_json: bool, **where: str) -> None:
    """List the workspaces that the key reaches."""
    found = list(_api(where).items(path_of("workspaces"), count_max=COUNT_MAX))
    if is_json:
        print_json(found)
        return
    print_table(
        ("workspace", "created"),
        [(one["name"], instant(one["created_at_ms"])) for one in found],
        empty="there are no workspaces",
    )


@click.group()
def keys() -> None:
    """Create, list and revoke bearer keys."""


@keys.command("create")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What the key may do.")
@click.option("--label", default="", help="What it is for.")
@api_options
@as_json
def create_key(role: str, label: str, is_json: bool, **where: str) -> None:
    """Create a key and print its secret, this once."""
    api = _api(where)
    answer = api.ask("POST", api.path("keys"), body=msgspec.json.encode({"role": role, "label": label}))
    if is_json:
        print_json(answer)
        return
    found = msgspec.json.decode(answer)
    click.echo(found["secret"])
    click.echo(f"key {found['key']}, role {found['role']}; the secret is shown only here", err=True)


@keys.command("list")
@api_options
@as_json
def list_keys(is_json: bool, **where: str) -> None:
    """List the workspace's keys, revoked ones included."""
    api = _api(where)
    found = api.read(api.path("keys"))["items"]
    if is_json:
        print_json(found)
        return
    print_table(
        ("key", "role", "label", "created", "revoked"),
        [
            (one["key"], one["role"], one["label"], instant(one["created_at_ms"]), instant(one["revoked_at_ms"]))
            for one in found
        ],
        empty="there are no keys",
    )


@keys.command()
@click.argument("key_id", metavar="ID")
@api_options
@as_json
def revoke(key_id: str, is_json: bool, **where: str) -> None:
    """Revoke the key ID."""
    api = _api(where)
    answer = api.ask("DELETE", api.path("keys", key_id))
    if is_json:
        print_json(answer)
        return
    click.echo(msgspec.json.decode(answer)["key"])


def _api(where: dict[str, str]) -> Api:
    return Api(where["url"], where["key"], where["workspace"])
