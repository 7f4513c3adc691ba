"""Flows' percentiles from their own sampled packets and from the shape that flows share, where that predicts."""
