"""Attempts at a round: orders, reports, deadlines, and who is the cause when one fails.

Read first: attempts.py (begin, report, give up, commit; deadlines, and who kept the others
waiting). orders.py turns a plan into messages and knows who got which. Group averages: groups.py,
with blame.py, group_checks.py and checkpoints.py.
"""
