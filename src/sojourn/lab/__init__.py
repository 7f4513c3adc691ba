"""Worlds to test in: generated ones with the truth known, and real ones out of network namespaces."""
