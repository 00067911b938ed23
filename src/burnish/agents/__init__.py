"""Conversations of the policy with tools, environments and agents: over any engine, in tokens."""
