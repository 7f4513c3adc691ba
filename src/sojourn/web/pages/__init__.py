"""The dashboard: pages of a query unit, for browsers. Nothing of it is imported before somebody visits but `front`."""
