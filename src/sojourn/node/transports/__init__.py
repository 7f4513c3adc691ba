"""How a node reaches the query unit."""
