"""The control unit: what each node records, which agent speaks for it, and how its streams fare."""
