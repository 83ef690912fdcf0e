"""Claims and their verdicts: what is asked of the runs, and how the answer is judged.

Read first: verdicts.py (what a claim is, how it is judged), then acceptance.py (the project's own
bars) and paper.py (the paper's claims). questions.py and step_questions.py compute the answers
from paired runs (paired.py, pool.py); table.py prints them.
"""
