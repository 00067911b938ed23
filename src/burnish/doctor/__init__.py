"""Examination of an installation and its machine for `burnish doctor`."""
