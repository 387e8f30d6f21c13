"""Talking to a service from the command line: where it is, with which key, and what its refusals mean for the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import click
import httpx
import msgspec

from services.runtime.cli.output import pairs
from services.runtime.process import SERVER_VERSION
from services.runtime.running import ExitCode

__all__ = ["Api", "Refused", "api_options", "path_of"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

TIMEOUT_S = 10.0
STREAM_SILENCE_S = 30.0
URL_DEFAULT = "http://127.0.0.1:8080"
PAGES_MAX = 10_000
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_NOT_READY = frozenset({429, 502, 503, 504})


class Refused(click.ClickException):
    """The service refused, or did not answer; the exit code says which."""

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        """Carry one line for people; `is_passing` says that the same may succeed later."""
        super().__init__(message)
        self.is_passing = is_passing
        # click declares it on the class and reads it from the instance.
        self.exit_code = int(ExitCode.NOT_READY if is_passing else ExitCode.FAILED)  # type: ignore[misc]

    def show(self, file: Any = None) -> None:
        """Print the line on standard error."""
        click.echo(f"ryusen: {self.message}", err=True)


def path_of(*parts: str) -> str:
    """Return a path below the API's version, each part quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def api_options(function: Decorated) -> Decorated:
    """Give a command --url, --key and --workspace, and hand it an `Api` as `api`."""
    for option in (
        click.option("--workspace", "-w", envvar="RYUSEN_WORKSPACE", show_envvar=True, default="", help="The workspace."),
        click.option(
            "--key", envvar="RYUSEN_KEY", show_envvar=True, default="", help="A bearer key; better given by the variable."
        ),
        click.option(
            "--url", envvar="RYUSEN_URL", show_envvar=True, default=URL_DEFAULT, show_default=True,
            help="The gateway's address.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


@dataclass
class Api:
    """One service, one key, one workspace."""

    url: str
    key: str
    workspace_name: str

    @property
    def workspace(self) -> str:
        """The workspace.

        Raises:
            UsageError: none was named.
        """
        if not self.workspace_name:
            raise click.UsageError("name a workspace with --workspace or RYUSEN_WORKSPACE")
        return self.workspace_name

    def path(self, *parts: str) -> str:
        """Return a path inside the workspace."""
        return path_of("workspaces", self.workspace, *parts)

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str | int | None] | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Return the body of a good answer.

        Raises:
            Refused: a problem, or no answer.
        """
        with self._client() as client:
            try:
                response = client.request(
                    method,
                    path,
                    params={name: value for name, value in (query or {}).items() if value is not None},
                    content=body,
                    headers={**(headers or {}), **({"Content-Type": "application/json"} if body else {})},
                )
            except httpx.TransportError as error:
                raise self._unreachable(error) from None
        if not response.is_success:
            raise _refusal(response.status_code, response.content)
        return response.content

    def read(self, path: str, **query: str | int | None) -> Any:
        """Return the decoded answer to a GET."""
        return msgspec.json.decode(self.ask("GET", path, query=query))

    def items(self, path: str, *, count_max: int, **query: str | int | None) -> Iterator[dict[str, Any]]:
        """Yield a list's entries over as many pages as `count_max` needs."""
        cursor: str | None = None
        left = count_max
        for _ in range(PAGES_MAX):
            page = self.read(path, **query, limit=min(left, 500), cursor=cursor)
            yield from page["items"]
            left -= len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None or left <= 0:
                return

    def lines(self, path: str, **query: str | int | None) -> Iterator[str]:
        """Yield the lines of a stream until it ends.

        Raises:
            Refused: a problem, or the connection broke.
        """
        timeout = httpx.Timeout(TIMEOUT_S, read=STREAM_SILENCE_S)
        with self._client() as client:
            try:
                with client.stream("GET", path, params=query, timeout=timeout) as response:
                    if not response.is_success:
                        raise _refusal(response.status_code, response.read())
                    yield from response.iter_lines()
            except httpx.TransportError as error:
                raise self._unreachable(error) from None

    def _client(self) -> httpx.Client:
        headers = {"User-Agent": f"ryusen-cli/{SERVER_VERSION}", "Accept": "application/json"}
        if self.key:
            if not (self.key.isascii() and self.key.isprintable()):
                raise click.UsageError("the key must be printable ASCII text")
            headers["Authorization"] = f"Bearer {self.key}"
        parts = urlsplit(self.url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise click.UsageError(f"the address must look like http://host:port, not {self.url!r}")
        base = urlunsplit((_SCHEMES[parts.scheme], parts.netloc, parts.path.rstrip("/"), "", ""))
        # How requests travel is the caller's to say; the command line itself leaves it open, tests do not.
        transport = click.get_current_context().find_object(httpx.BaseTransport)
        return httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT_S, transport=transport)

    def _unreachable(self, error: httpx.TransportError) -> Refused:
        return Refused(f"no answer from {self.url}: {error or type(error).__name__}", is_passing=True)


def _refusal(status: int, content: bytes) -> Refused:
    try:
        problem = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    detail = problem.pop("detail", f"HTTP {status}")
    name = problem.pop("code", f"http_{status}")
    members = {key: value for key, value in problem.items() if key not in ("type", "title", "status")}
    return Refused(f"{detail} [{name}]" + (f" {pairs(members)}" if members else ""), is_passing=status in _NOT_READY)
