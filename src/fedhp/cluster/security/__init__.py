"""Who a machine is: its certificate, and mutual TLS 1.3.

Read first: identity.py (loads and checks a certificate), then tls.py (credentials, channels, the
true cause of a refused call). certificates.py issues them, renewal.py watches their dates,
handshakes.py logs failed handshakes.
"""
