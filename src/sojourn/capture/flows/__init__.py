"""Flows of one observation point: their table, their time windows, their two directions."""
