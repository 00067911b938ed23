"""Built-in rewards; the table of them is `burnish.rewards.registry`."""
