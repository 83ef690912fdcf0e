"""The real network: a coordinator that plans, workers that exchange models over mutual TLS."""
