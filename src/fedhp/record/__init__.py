"""What a run leaves behind: SQLite records, checkpoints, and how to read them."""
