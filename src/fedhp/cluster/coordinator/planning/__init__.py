"""Plans of the next round or turn, made from what the workers report.

planning.py holds the planner and what it needs to know; round_planner.py and turn_planner.py
drive the algorithm (planner.py: what they share). link_estimates.py and survey.py measure the
network, outliers.py keeps single numbers from deciding anything.
"""
