"""Metrics, where they go, and what people look at: sinks, rollout records, alarms, live display, report."""
