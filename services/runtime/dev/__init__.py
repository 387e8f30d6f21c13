"""`ryusen dev`: gateway, fan-out, dispatcher and a worker on one port, in one process tree, over one store."""
