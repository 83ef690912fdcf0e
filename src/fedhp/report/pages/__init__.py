"""HTML pages: a report on any runs, and the reproduction of the paper.

Read first: page.py (sections to one HTML file), then run_report.py (with the sentences of
findings.py) or reproduction.py.
"""
