"""The workers of the run: who may take part, what they have, whether they can be reached.

Read first: members.py (certificates, the allow-list and removals; join, ask, leave).
catch_up.py: those without the committed model. setup_checks.py compares their data,
modules and models, setup_process.py finds out what this machine has; dial_back.py finds out
whether others can connect to a worker.
"""
