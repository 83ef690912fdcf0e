"""Plans of the next round or turn, made from what the workers report.

planning.py holds the planner, what it needs to know, and the survey; round_planner.py and
turn_planner.py drive the algorithm (the first has what they share, and how single numbers are kept
from deciding anything). link_estimates.py measures the network.
"""
