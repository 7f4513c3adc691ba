"""The node unit: what records on a measured node, and what brings its epochs to the query unit."""
