"""The coordinator: leads, plans rounds, collects reports and commits (Algorithm 2).

Read first: coordinator.py (one round, top to bottom) and conductor.py (the round protocol as a
state machine). service.py checks every call, handlers.py answers it and has the state that both
use: members (who takes part), attempts (orders, reports, consequences), planning (plans of rounds
and turns) and phase.py; context.py is what these share. committed_state.py is what the
ledger holds, run_record.py writes the record, reachability.py knows the broken links. process is
everything around one that leads: settings, the lead, metrics.
"""
