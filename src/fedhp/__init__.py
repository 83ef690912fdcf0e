"""fedhp: decentralized federated learning among unequal participants."""

__version__ = "0.1.0"
