"""One revision a module, in order; what a revision has made is never changed, a later one changes it."""
