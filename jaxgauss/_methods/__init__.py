"""What people sum kernels for: MMD, tests, Stein, densities, bandwidths. Made of sums; knows no engine."""
