"""Worlds to test in, generated from a seed, with the truth known."""
