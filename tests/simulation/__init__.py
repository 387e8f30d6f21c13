"""The whole service in one process on a virtual clock, driven by scripted decisions under faults; README.md says how to read it."""
