"""Tools that a model may call in its turns: formats of calls, checks, and results as text.

Everything here is a function of its arguments: no tokens, no processes, no run. `parsers/` reads the calls of a turn,
`checking.py` compares them with the tools' schemas, `loading.py` finds the functions and `results.py` turns their
return values and exceptions into text for the model.
"""
