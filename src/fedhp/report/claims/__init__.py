"""Claims and their verdicts: the paper's claims, this project's bars, and how both are judged.

Read first: judging.py (what a claim is, how it is judged), then acceptance.py (this project's
bars) and paper.py (the paper's claims). questions.py computes the answers from the finished runs,
paired by seed (runs.py).
"""
