"""How models write calls, one file per form. `registry.py` has the table of the forms."""
