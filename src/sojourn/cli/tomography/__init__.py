"""`sojourn tomography`: where each packet of a collection network waited."""
