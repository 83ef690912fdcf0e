"""Who a machine is: its certificate, and mutual TLS 1.3.

Read first: identity.py (a certificate read and checked), then tls.py (credentials, channels, the
true cause of a refusal). certificates.py issues them; addresses.py parses HOST:PORT.
"""
