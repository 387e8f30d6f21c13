"""Named topologies and the launcher of the local ones."""
