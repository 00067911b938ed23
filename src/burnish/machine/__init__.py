"""What this machine can do, and what is left of it to this process."""
