"""The coordinator: leads, plans rounds, collects reports and commits (Algorithm 2).

Read first: coordinator.py (one round, top to bottom) and conductor.py (the round protocol as a
state machine). service.py checks every call, handlers.py answers it, state.py is what both
share. planning.py and turns.py drive the algorithm, orders.py turns a plan into messages,
link_estimates.py, capacity.py and survey.py measure the network, run_record.py writes the
record, leadership.py is the process around it all, metrics.py the Prometheus page.
"""
