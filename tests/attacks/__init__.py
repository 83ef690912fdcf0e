"""What one party of a federation could do to the others; each test fails without its defence."""
