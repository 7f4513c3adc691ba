"""Guaranteed bounds on every arrival time: propagation and linear programs."""
