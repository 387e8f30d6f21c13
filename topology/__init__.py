"""Named local topologies of real processes, a launcher for them, and the demo."""
