"""Programs that measure other libraries, each run by the Python of its own venv."""
