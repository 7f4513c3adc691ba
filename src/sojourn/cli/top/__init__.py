"""`sojourn top`: what happens now, again and again: flows of interfaces, or of a segment."""
