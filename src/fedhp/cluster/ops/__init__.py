"""Running a federation: start processes, give an operator's orders, check a machine.

Read first: launch.py (a whole federation on one machine, over processes.py). operator.py calls a
coordinator, doctor.py checks this machine, logs.py formats what a process writes,
progress.py reads how far a run is.
"""
