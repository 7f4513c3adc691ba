"""Segments of the fleet answered: runs as they become complete, and questions from what was stored of them."""
