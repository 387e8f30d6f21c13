"""What makes a move: a function of the world and of the move's own draws that says what happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from simulation.scenario import Draws
from simulation.world import World

__all__ = ["Maker"]

Maker = Callable[[World, Draws], Awaitable[str]]
