"""Plans of the next round or turn, made from what the workers report.

round_planner.py and turn_planner.py drive the algorithm (planner.py: what they share),
link_estimates.py measures the network, outliers.py keeps single numbers from deciding anything.
"""
