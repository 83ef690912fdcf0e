"""Running experiments: from a plan to a record.

Read first: loop.py (the round loop) and events.py (the same for asynchronous algorithms). Both ask
an executor (executor.py): sharded.py over shards (shard.py, threads.py) that live in this process
(local.py) or in Ray's actors (ray.py). prepare.py builds and checks everything before,
context.py what plans need, trial.py tries the algorithm, memory.py the memory; testing.py tests
while the next round trains; accounting.py counts time and bytes. runs/ has run folders and
campaigns, replay/ recorded runs under other planners.
"""
