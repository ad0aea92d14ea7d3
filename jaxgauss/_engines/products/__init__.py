"""Matrix products about one center, for points near one another."""
