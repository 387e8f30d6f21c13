"""What every claimer of queued work shares: due pointers in memory, bells, affinity, deferral of what fails."""
