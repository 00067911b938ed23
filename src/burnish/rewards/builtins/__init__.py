"""Built-in rewards. `burnish.rewards.registry` has the table of them."""
