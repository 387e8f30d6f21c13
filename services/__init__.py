"""The processes: gateway, fan-out, dispatcher, and what they share."""
