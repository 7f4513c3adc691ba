"""Clients of the query unit's HTTP interface."""
