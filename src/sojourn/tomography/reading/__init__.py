"""Traces from files and from the wire."""
