"""A worker: joins, trains, exchanges models with peers and reports (Algorithm 1).

Read first: worker.py (its life) and rounds.py (what it does with an order). learner.py trains in
a thread, model_store.py keeps models on disk, coordinator_client.py and peer_client.py call
others, peer_server.py and model_offer.py serve peers, session.py is the worker's membership in
a run, data.py its own samples.
"""
