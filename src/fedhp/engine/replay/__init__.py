"""Rounds without training: a recorded run under other planners.

Read first: whatif.py (the command's side), then executor.py (answers the round loop from the
record instead of training).
"""
