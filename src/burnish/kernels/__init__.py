"""Code in C for CPUs, built on the machine that runs it; everything here has a way round in PyTorch."""
