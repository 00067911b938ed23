"""Tools that need no code of the user's. `burnish.tools.loading` has the table of them."""
