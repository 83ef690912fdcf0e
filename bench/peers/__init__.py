"""Programs that measure other libraries; each is run by the Python of a venv of its own."""
