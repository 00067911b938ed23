"""Environments that answer a model's turns: users' classes, games with `step`, servers.

Environments and plain tools run in their own processes (`warm_parent.py`), so whatever one of them does, the run goes
on. The tool `python` and the tools of MCP servers are asked from threads of the training process. Nothing here knows
tokens or models.
"""
