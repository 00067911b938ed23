"""Save a run so that it can be killed at any time and resumed as if nothing had happened."""
