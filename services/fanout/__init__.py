"""The fan-out process: expands accepted events into runs, workspaces taking turns."""
