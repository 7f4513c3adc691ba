"""Segments between nodes of a fleet: their points, what they record, and how the two ends are compared."""
