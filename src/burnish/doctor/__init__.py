"""What `burnish doctor` says about an installation and its machine."""
