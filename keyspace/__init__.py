"""The durable core: store, keyspace, records, queue and transitions. It knows bytes and records; no HTTP, no sockets, no SDK."""
