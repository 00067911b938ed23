"""C kernels for CPUs, built on the machine that runs them. Everything here has an alternative in PyTorch."""
