"""Metrics and their sinks, rollout records, alarms, and the live display."""
