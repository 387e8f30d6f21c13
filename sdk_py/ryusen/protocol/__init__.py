"""The wire messages between worker and dispatcher, and portable values: the one definition both sides import."""
