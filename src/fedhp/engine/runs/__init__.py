"""Runs on disk: one folder, many runs as a campaign, the paper's suite.

Read first: run.py (create, commit every round, checkpoint, resume). campaign.py distributes runs
over processes (job.py is one of them); variants.py reads "name:key=value"; suite.py lists the
runs of the paper's figures.
"""
