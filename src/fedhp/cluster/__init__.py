"""The real network: a coordinator that plans, workers that exchange models over mutual TLS.

Read first: protocol (the messages), then coordinator and worker, the two programs. security has
certificates and TLS, ledger keeps what is committed, audit checks the histories of a run, ops
starts and watches processes. failpoints.py and history.py serve the tests and the audit, events.py
declares what histories say, metrics_server.py serves metrics.
"""

from __future__ import annotations

import os
import sys

# Only TLS 1.3 may be used, but gRPC has no setting for it in Python. This list applies to TLS 1.2
# alone, and it leaves only suites for RSA keys: our certificates have ECDSA keys, so a TLS 1.2
# handshake finds no suite, on either side. TLS 1.3 ignores the list. gRPC reads it once, when it
# is imported; after that it is too late, and fedhp.cluster.security.tls raises an error.
CIPHERS_SETTING = "GRPC_SSL_CIPHER_SUITES"
RSA_ONLY = "ECDHE-RSA-AES256-GCM-SHA384"
TLS13_ONLY = "grpc" not in sys.modules or os.environ.get(CIPHERS_SETTING) == RSA_ONLY
os.environ[CIPHERS_SETTING] = RSA_ONLY
# gRPC's own log lines about refused handshakes do not help users; tls.cause_of does.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
