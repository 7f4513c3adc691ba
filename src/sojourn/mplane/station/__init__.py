"""The monitoring station: paths from segments, changes, diagnosis."""
