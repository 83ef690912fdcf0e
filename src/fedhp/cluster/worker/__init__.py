"""A worker: joins, trains, exchanges models with peers and reports (Algorithm 1).

Read first: worker.py (from joining to leaving) and rounds.py (how it carries out an order).
learner.py trains in its own thread, model_store.py keeps models on disk, coordinator_client.py
and peer_client.py call others, peer_server.py serves peers, session.py is the worker's
membership in a run, data.py its part of the experiment.
"""
