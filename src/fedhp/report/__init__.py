"""Runs turned into tables, figures and words; nothing here prints."""
