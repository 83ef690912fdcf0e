"""Do the tests notice? Small faults are planted in the pure rooms, one at a time: `make mutants`.

operators.py plants them; rooms.py says where; recording.py finds out which tests run which lines,
selection.py which of them are worth running; worker.py runs them in a copy of the tree.
equivalent.toml lists the mutants that no test can notice, with the reason of each.
"""
