"""A finished run checked: promises kept, models repeated bit by bit, records merged.

Read first: invariants.py (the promises of docs/protocol.md as functions) over timeline.py (the
histories of all processes put together). verify.py repeats a run in simulation (replay.py does
the training); merge.py joins the records of several coordinators (pieces.py: whose counts).
"""
