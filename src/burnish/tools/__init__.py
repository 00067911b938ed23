"""Tools that a model may call in its turns: how calls are written and read, and what comes back as text.

Everything here is a function of its arguments: no tokens, no processes, no run. `parsers/` reads the calls of a turn,
`checking.py` compares them with the tools' schemas, `loading.py` finds the functions and `results.py` turns what they
return or raise into text for the model.
"""
