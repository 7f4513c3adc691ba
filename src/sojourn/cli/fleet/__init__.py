"""Commands of the fleet: `agent`, `serve`, `nodes`, `query`, `token` and `sink`."""
