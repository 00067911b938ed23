"""Saving a run so that it can be killed at any instant and resumed as if nothing had happened."""
