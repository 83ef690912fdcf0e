"""The server of the live page: its answers, its stream, and who is refused."""
