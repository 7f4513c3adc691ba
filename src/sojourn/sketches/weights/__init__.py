"""Flow weights of an LDS, by policy."""
