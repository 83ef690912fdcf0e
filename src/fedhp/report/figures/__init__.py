"""Figures: comparisons, single runs, the world, the paper's own; drawn without pyplot.

Read first: comparison.py and style.py. *panels.py draw on axes that are given.
"""
