"""The pytest plugin of the server distribution: fixtures for users' own tests."""

from __future__ import annotations
