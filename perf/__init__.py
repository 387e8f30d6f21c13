"""Workloads W1 to W11 and their harness: real processes, a load process of its own, one report a run."""
