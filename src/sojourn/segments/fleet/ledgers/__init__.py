"""Ledgers across a wire: naming a run's lost packets, and what follows for flows and ranges."""
