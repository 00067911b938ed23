"""Execution of programs that a model has written and nobody has read.

A candidate and the tests that judge it never share a process. What the candidate can say is only what its functions
return, as plain values; the tests compare on their own side, and the verdict goes through a pipe that the candidate
never had. `Sandbox` runs jobs (`job.py`) under the strongest confinement (`confinement.py`) that this machine allows,
which attacks find out (`trial.py`).
"""
