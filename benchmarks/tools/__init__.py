"""What makes committed tables: of costs, of mixtures, of the pages' figures."""
