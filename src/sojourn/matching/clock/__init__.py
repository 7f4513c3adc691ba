"""The receiver's clock against the sender's: offset, skew and steps, and how sure they are."""
