"""`ryusen manifests` and `ryusen routing`: what an application declares, and what new events are pinned to."""

from __future__ import annotations

import click
import msgspec
from ryusen import RyusenError
from ryusen.__main__ import load_app
from ryusen.protocol.manifest import encode_manifest

from services.runtime.cli.api import Api, api_options
from services.runtime.cli.options import as_json
from services.runtime.cli.output import instant, print_json, print_table

__all__ = ["manifests", "routing"]

COUNT_DEFAULT = 50
COUNT_MAX = 100_000


@click.group()
def manifests() -> None:
    """Publish and read manifests."""


@manifests.command()
@click.argument("app")
@click.option("--activate", "is_activate", is_flag=True, help="Also route new events by it; other applications stay.")
@api_options
@as_json
def publish(app: str, is_activate: bool, is_json: bool, **where: str) -> None:
    """Publish the manifest of APP, named as module:attribute."""
    api = _api(where)
    try:
        manifest = load_app(app).manifest()
    except (RyusenError, LookupError) as error:
        raise click.UsageError(str(error)) from None
    answer = api.ask(
        "POST", api.path("applications", manifest.application, "manifests"), body=encode_manifest(manifest)
    )
    found = msgspec.json.decode(answer)
    routed = None
    if is_activate:
        routed = _activate(api, {manifest.application: found["generation"]}, is_merge=True)
    if is_json:
        print_json(answer if routed is None else {"manifest": msgspec.Raw(answer), "routing": msgspec.Raw(routed)})
        return
    click.echo(f"{found['application']} manifest generation {found['generation']}")
    if routed is not None:
        click.echo(f"active since routing generation {msgspec.json.decode(routed)['generation']}")


@manifests.command("list")
@click.argument("application")
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=COUNT_DEFAULT, show_default=True, help="How many.")
@api_options
@as_json
def list_(application: str, count: int, is_json: bool, **where: str) -> None:
    """List an application's manifest generations, the newest first."""
    api = _api(where)
    found = list(api.items(api.path("applications", application, "manifests"), count_max=count))
    if is_json:
        print_json(found)
        return
    print_table(
        ("generation", "functions", "bindings", "published", "by"),
        [
            (
                str(one["generation"]),
                str(one["function_count"]),
                str(one["binding_count"]),
                instant(one["published_at_ms"]),
                one["published_by"],
            )
            for one in found
        ],
        empty="nothing was published",
    )


@click.group()
def routing() -> None:
    """See and change which manifest generations new events are pinned to."""


@routing.command()
@api_options
@as_json
def show(is_json: bool, **where: str) -> None:
    """Show the active routing generation."""
    api = _api(where)
    _print(api.ask("GET", api.path("routing")), is_json=is_json)


@routing.command()
@click.argument("applications", nargs=-1, required=True, metavar="APPLICATION=GENERATION...")
@click.option("--replace", "is_replace", is_flag=True, help="Drop the applications that are not named.")
@api_options
@as_json
def activate(applications: tuple[str, ...], is_replace: bool, is_json: bool, **where: str) -> None:
    """Route new events by these manifest generations."""
    api = _api(where)
    wanted: dict[str, int] = {}
    for text in applications:
        name, _, generation = text.rpartition("=")
        if not name or not (generation.isascii() and generation.isdigit()) or name in wanted:
            raise click.UsageError(f"name each application once, as APPLICATION=GENERATION, not {text!r}")
        wanted[name] = int(generation)
    _print(_activate(api, wanted, is_merge=not is_replace), is_json=is_json)


def _activate(api: Api, applications: dict[str, int], *, is_merge: bool) -> bytes:
    body = msgspec.json.encode({"applications": applications, "merge": is_merge})
    return api.ask("POST", api.path("routing"), body=body)


def _print(answer: bytes, *, is_json: bool) -> None:
    if is_json:
        print_json(answer)
        return
    found = msgspec.json.decode(answer)
    click.echo(f"routing generation {found['generation']}, active since {instant(found['activated_at_ms'])}", err=True)
    print_table(
        ("application", "manifest generation"),
        [(name, str(generation)) for name, generation in found["applications"].items()],
        empty="no routing generation was ever activated",
    )


def _api(where: dict[str, str]) -> Api:
    return Api(where["url"], where["key"], where["workspace"])
