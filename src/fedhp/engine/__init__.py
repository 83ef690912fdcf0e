"""Running experiments: prepare.py (the gate), loop.py (THE round loop), events.py (its
asynchronous twin), local.py (training on this machine), run.py (folders, commits, resume)."""
