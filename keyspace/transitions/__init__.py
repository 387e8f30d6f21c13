"""One module a transition: load, decide, write, record. Each runs in an open transaction and commits nothing itself."""
