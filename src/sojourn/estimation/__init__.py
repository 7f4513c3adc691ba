"""From sketches at two observation points to estimates with intervals.

Each estimator here is the published one, made to answer with an interval whose coverage is tested.
"""
