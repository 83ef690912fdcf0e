"""The coordinator: leads, plans rounds, collects reports and commits (Algorithm 2).

Read first: coordinator.py (one round, top to bottom) and conductor.py (the round protocol as a
state machine). service.py checks every call, handlers.py answers it, state.py is what both
halves share. round_planner.py and turn_planner.py drive the algorithm (planner.py: what they
share), orders.py turns a plan into messages, link_estimates.py measures the network.
setup_checks.py compares what the workers have, setup_process.py finds out what this machine has.
committed_state.py is what the ledger holds, run_record.py writes the record, leadership.py is
the process around it all, metrics.py the Prometheus page.
"""
