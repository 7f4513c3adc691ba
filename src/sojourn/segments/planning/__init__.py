"""The memory that a wanted error needs, found by trying plans in simulated worlds."""
