"""`sojourn mplane`: planning, probing, recording in routers, and the monitoring station."""
