"""Free ports on the loopback address, chosen before anything starts so that a restarted process is found where it was."""

from __future__ import annotations

import socket
from contextlib import ExitStack

__all__ = ["HOST", "free_ports"]

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nobody listens on now; somebody may take one before it is used."""
    with ExitStack() as stack:
        # All are held together, or the system might hand out one of them twice.
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
