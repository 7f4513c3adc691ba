"""Domo: how long each packet of a collection network waited at each hop, from what the sink alone has seen."""
