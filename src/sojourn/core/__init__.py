"""What everything else is made of: hashing, keys and ids, batches, estimates, errors, units.

Nothing here imports another Sojourn package. Numba is imported only by the modules whose
name ends in ``kernels``, so that parsing a command line stays fast.
"""
