"""`python -m bench auto`: what `auto` reaches in many kinds of traffic, beside its peers at the same memory."""
