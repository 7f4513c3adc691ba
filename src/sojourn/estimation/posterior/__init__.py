"""Flows' means from all that was recorded: one hierarchical model, checked against packets that it did not see."""
