"""The durable work queue: items, the ready index, due pointers, leases and bells (ARCHITECTURE 4)."""
