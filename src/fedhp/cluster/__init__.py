"""The real network: a coordinator that plans, workers that exchange models over mutual TLS."""

from __future__ import annotations

import os
import sys

# Only TLS 1.3 is wanted, but gRPC has no setting for it in Python. This list governs TLS 1.2
# alone, and all it leaves are suites for RSA keys: our certificates have ECDSA keys, so a
# TLS 1.2 handshake finds no suite that fits, on either side. TLS 1.3 takes no notice of it.
# gRPC reads it once, when it is imported; after that it is too late, and fedhp.cluster.security.tls
# refuses to work rather than to speak TLS 1.2.
CIPHERS_SETTING = "GRPC_SSL_CIPHER_SUITES"
RSA_ONLY = "ECDHE-RSA-AES256-GCM-SHA384"
TLS13_ONLY = "grpc" not in sys.modules or os.environ.get(CIPHERS_SETTING) == RSA_ONLY
os.environ[CIPHERS_SETTING] = RSA_ONLY
# Its own lines about refused handshakes are for its developers; tls.why_refused has the words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
