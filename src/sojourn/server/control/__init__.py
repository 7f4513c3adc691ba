"""The control unit: whom streams belong to, what nodes are assigned, how that fares, and the fleet's segments."""
