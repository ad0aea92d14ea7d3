"""Where a sum is computed, and what decides it: attention kernels behind the bridge, XLA's tiles."""
