"""Runs turned into tables, figures, sentences and pages; nothing here prints.

groups.py and rounds.py read runs; formatting.py writes numbers; tables.py, describe.py, explain.py,
whatif.py and export.py answer the commands of the same names (describe: `fedhp show`). claims/
judges runs against the paper and this project's bars, figures/ draws, pages/ makes HTML.
"""
