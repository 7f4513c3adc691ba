"""Recording inside a router: between its interfaces, class by class."""
