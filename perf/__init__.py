"""Workloads W1 to W11 and their harness."""
