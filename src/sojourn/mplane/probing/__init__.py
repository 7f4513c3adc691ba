"""Active probes over links and virtual links, and their reflector."""
