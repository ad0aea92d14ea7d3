"""What callers may say: types, options, and every check with its message. Beneath everything."""
