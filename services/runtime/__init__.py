"""What the server processes share: configuration, lifecycle, telemetry, the HTTP server and the command line."""
