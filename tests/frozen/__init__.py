"""Results that may not change: `make frozen` compares them, `python -m frozen --update` keeps them.

cases.py lists tiny runs, running.py carries them out through fedhp's outer surfaces, expected.json
has their digests and outputs.json what the commands print about some. refused.json has experiments
that are refused, with the key that each refusal names. recorded.tar.xz has run folders of an
earlier commit, which still open, go on and verify (recorded.py).
"""
