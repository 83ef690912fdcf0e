"""Measured claims about speed: ratios within one run, never absolute times (see README.md)."""
