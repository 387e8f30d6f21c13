"""From an empty service to one that takes events: a workspace, its keys, an application's manifest, routing."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx
from ryusen import App, AsyncClient

from topology.launcher import Launcher

__all__ = ["Access", "create_workspace", "open_workspace"]

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What it takes to use one workspace.

    Attributes:
        workspace: its name.
        admin_key: publishes and activates.
        client_key: submits and reads.
        worker_key: opens worker sessions.
    """

    workspace: str
    admin_key: str = field(repr=False)
    client_key: str = field(repr=False)
    worker_key: str = field(repr=False)

    def client(self, url: str, *, timeout_s: float = TIMEOUT_S) -> AsyncClient:
        """Return a client of the workspace at a gateway's address."""
        return AsyncClient(url, self.workspace, self.client_key, timeout_s=timeout_s)


async def create_workspace(url: str, system_key: str, name: str) -> Access:
    """Create a workspace and a key of each kind with the operator's key.

    Raises:
        httpx.HTTPStatusError: the gateway refused.
    """
    headers = {"Authorization": f"Bearer {system_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as http:
        (await http.post("/v1/workspaces", json={"name": name})).raise_for_status()
        secrets: dict[str, str] = {}
        for role in ("admin", "client", "worker"):
            answer = await http.post(f"/v1/workspaces/{name}/keys", json={"role": role, "label": f"local {role}"})
            answer.raise_for_status()
            secrets[role] = answer.json()["secret"]
    return Access(
        workspace=name, admin_key=secrets["admin"], client_key=secrets["client"], worker_key=secrets["worker"]
    )


async def open_workspace(launcher: Launcher, app: App, name: str = "local") -> Access:
    """Create a workspace, publish `app` and route new events to it.

    Raises:
        httpx.HTTPStatusError: the gateway refused the operator's calls.
        ryusen.ApiError: it refused the manifest.
    """
    url = launcher.gateway_url()
    access = await create_workspace(url, launcher.system_key, name)
    async with AsyncClient(url, name, access.admin_key) as admin:
        generation = await admin.publish(app)
        await admin.activate({app.manifest().application: generation})
    return access
