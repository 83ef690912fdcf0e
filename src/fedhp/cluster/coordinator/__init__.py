"""The coordinator: leads, plans rounds, collects reports and commits (Algorithm 2).

Read first: coordinator.py (one round, top to bottom) and conductor.py (the round protocol as a
state machine). service.py checks and answers every call, and has the state that both use:
members (who takes part), attempts (orders, reports, consequences) and planning (plans of rounds
and turns); context.py is what these share. committed_state.py is what the ledger and the record
hold, reachability.py knows the broken links. process is
everything around one that leads: settings, the lead, metrics.
"""
