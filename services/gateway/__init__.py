"""The HTTP API: authenticates, validates, runs one transition, answers after its commit."""
