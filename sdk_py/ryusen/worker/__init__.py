"""The worker: a sans-IO core that decides, passes and attempts that run user code, and a shell that does the input and output."""
