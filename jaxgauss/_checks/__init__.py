"""Types of arguments, options, and every check with its message. Imports nothing else of the package but kernels."""
