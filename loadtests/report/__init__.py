"""Reports of load tests: a JSON document that can be read back, and an HTML page."""
