"""Rounds without training: a recorded run under other planners.

Read first: whatif.py (what is compared and what it rests on), then executor.py (answers the
loops from the record instead of training).
"""
