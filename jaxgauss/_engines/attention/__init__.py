"""The attention kernels of PyTorch, called through the bridge."""
