"""`sojourn plan`: how large a sketch has to be."""
