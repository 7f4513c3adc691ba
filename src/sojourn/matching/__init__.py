"""Exact pairing of the packets of two observation points: delays, losses, edges, directions."""
