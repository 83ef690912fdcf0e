"""Attempts at a round: orders, deadlines, and who is the cause when one fails.

orders.py turns a plan into messages. Group averages: blame.py, group_checks.py, checkpoints.py.
"""
