"""Formats of calls: between tags, or as the whole turn. `registry.py` has the table of the formats."""
