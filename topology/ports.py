"""Free ports on the loopback address, chosen before anything starts so that a restarted process is found where it was."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

__all__ = ["HOST", "free_ports"]

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below what systems give to outgoing connections, so that none takes the port of a process that is being restarted."""
TRIES_MAX = 1_000

_drawn = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Return `count` different ports, drawn at random, that nobody listens on now; somebody may take one before it is used.

    Raises:
        OSError: too few of the ports that were looked at were free.
    """
    found: list[int] = []
    with ExitStack() as stack:
        # All are held together, or one of them might be drawn twice.
        for port in _drawn.sample(PORTS, k=TRIES_MAX):
            if len(found) == count:
                break
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                sock.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise OSError(f"{count} ports are needed, and only {len(found)} of {TRIES_MAX} looked at are free")
    return found
