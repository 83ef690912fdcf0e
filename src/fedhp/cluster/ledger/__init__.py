"""Where the committed state of a run is stored, and who may write it.

Read first: base.py (what every ledger promises, and how states are signed), then local.py (a
SQLite database on this machine) or etcd.py (a ledger that several coordinators share;
etcd_client.py speaks to it).
"""
