"""Durable workflows in ordinary Python functions."""
