"""The transaction port and its adapters. Only `fdb_adapter` imports `fdb`; everything else sees `api`."""
