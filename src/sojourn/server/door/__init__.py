"""What every request passes: connections, sign-in, limits, admission."""
