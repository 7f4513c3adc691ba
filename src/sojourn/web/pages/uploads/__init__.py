"""Captures and traces that viewers upload, and the reports of them."""
