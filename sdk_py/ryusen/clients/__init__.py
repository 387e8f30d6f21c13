"""What the client's two faces share: requests, answers, retries and event streams, without any input or output."""
