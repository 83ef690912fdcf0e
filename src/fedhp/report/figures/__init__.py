"""Figures: comparisons, single runs, the paper's own, a data split; drawn without pyplot.

Read first: style.py (how all of them look), then comparison.py. Functions called draw_* and *_bars
draw on axes that are given.
"""
