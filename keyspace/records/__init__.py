"""Versioned records: what the values of the keyspace say."""
