"""A shard: some of the workers, their models as rows of one matrix, their data and threads.

`shard.py` holds the parts together; read `rows.py` first. `trainer.py` runs local steps,
`mixer.py` exchanges and mixes, `tester.py` tests, `turns.py` has what an asynchronous worker does,
`groups.py` what a group average needs. Executors call the parts (sharded.py), a worker of the
network those of its shard of one (cluster/worker/learner.py).
"""
