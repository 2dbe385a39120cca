"""The assets of the HTML page of a load test."""
