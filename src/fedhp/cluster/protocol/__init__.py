"""What travels between machines, and what is refused.

Read first: wire.proto (every message), then guard.py (who may send it, and when) and
message_checks.py with field_checks.py (what it may contain). codec.py and compression.py turn a
model into bounded chunks and back; limits.py has every bound by name.
"""
