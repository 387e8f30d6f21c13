"""Durable workflows in ordinary Python functions.

app = App("orders")

@app.function(on="order.placed")
async def fulfil(ctx: Context, order: Order) -> Receipt:
    stock = await ctx.step.run("reserve", reserve, order)
    return await ctx.step.run("ship", ship, order, stock)
"""

from ryusen.app import App, Function
from ryusen.async_client import AsyncClient
from ryusen.client import Client
from ryusen.context import Attempt, Context, Step, current_attempt
from ryusen.errors import (
    ApiError,
    ConfigurationError,
    DeclarationRefused,
    InvalidValue,
    NonRetryable,
    NotInAttempt,
    RetryAfter,
    RyusenError,
    StepFailed,
    Unreachable,
)
from ryusen.retry import Retry
from ryusen.serving import serve

__all__ = [
    "ApiError",
    "App",
    "AsyncClient",
    "Attempt",
    "Client",
    "ConfigurationError",
    "Context",
    "DeclarationRefused",
    "Function",
    "InvalidValue",
    "NonRetryable",
    "NotInAttempt",
    "Retry",
    "RetryAfter",
    "RyusenError",
    "Step",
    "StepFailed",
    "Unreachable",
    "current_attempt",
    "serve",
]
