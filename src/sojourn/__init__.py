"""Passive, fine-grained measurement of latency, loss and resource use."""

__version__ = "0.1.0"
