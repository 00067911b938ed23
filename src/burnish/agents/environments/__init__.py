"""Environments that answer a model's turns: classes of the user's, games with `step`, servers.

Environments and plain tools run in processes of their own (`host.py`), so whatever one of them does, the run goes on.
The tool `python` and the tools of MCP servers are asked from threads of the training process. Nothing here knows tokens
or models.
"""
