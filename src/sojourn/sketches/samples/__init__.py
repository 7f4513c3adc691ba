"""Coordinated samples: the same packets kept at both ends."""
