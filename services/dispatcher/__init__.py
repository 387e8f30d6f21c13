"""The dispatcher process: worker sessions, leases for them, settlement of what they did, recovery of what was lost."""
