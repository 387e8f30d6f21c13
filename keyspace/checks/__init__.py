"""The checks C1 to C12 of FILLED-IN 10, one module a subject; `keyspace.fsck` walks the keys and calls them."""
