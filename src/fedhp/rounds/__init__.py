"""A round is one value with one owner: observed, planned, measured, recorded.

planner.py asks the algorithm and turns what was measured into the round's record, whether virtual
time drives it (engine/) or reports off the wire (cluster/coordinator).
"""
