"""Packets in: capture files and live interfaces, decoded by kernels; exact matching; clocks."""
