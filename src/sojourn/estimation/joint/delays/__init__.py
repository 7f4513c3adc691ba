"""Mean delays of all flows together: linear prediction, priors learned from the flows, calibration."""
