"""What travels between machines, and what is refused.

Read first: wire.proto (every message), then attempt.py (which try at which round), guard.py (who
may send a message, and when) and message_checks.py (what it may contain). codec.py turns a model
into bounded chunks and back, and has the two sides of a transfer; calls.py is how a server takes
calls. addresses.py has names and HOST:PORT; limits.py has every bound by name.
"""
