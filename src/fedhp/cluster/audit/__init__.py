"""Checks of a finished run: promises kept, models repeated bit by bit, records merged.

Read first: invariants.py (the promises of docs/protocol.md, one function each) and timeline.py
(the histories of all processes in one timeline). verify.py compares a run with its repetition in
simulation: committed_rounds.py reads what was done, replay.py does it again. merge.py joins the
records of several coordinators.
"""
