"""What can be wrong with a machine that measures, and what to do about it."""
