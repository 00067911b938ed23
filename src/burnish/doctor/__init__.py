"""What this machine and this installation are, what they can do, and what is wrong with them: `burnish doctor`."""
